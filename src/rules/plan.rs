//! What one request will be charged.

use std::sync::Arc;

use smallvec::SmallVec;

use super::RuleTable;
use crate::identity::LimitKey;
use crate::limit::Policy;

/// The place of a rule in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub usize);

/// One limiter to be asked for one request.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The rule that asks for it.
    pub rule: RuleId,
    /// The place of the override that gave the limiter, if one did.
    pub allowance: Option<usize>,
    /// The caller's key with this limiter.
    pub key: LimitKey,
    /// The key that all new callers of the rule share when the store is full.
    pub overflow: LimitKey,
    /// The limiter, after overrides.
    pub policy: Policy,
    /// The rule's own limiter, which the overflow key is decided by.
    pub own: Policy,
    /// Units that the request costs; 0 is always admitted and only reads.
    pub cost: u64,
    /// Whether the limiter may reject without consequence.
    pub dry_run: bool,
}

impl Charge {
    /// The limiter of the key that is decided on: the caller's, or that of the `overflowed`.
    pub fn limiter(&self, overflowed: bool) -> &Policy {
        if overflowed { &self.own } else { &self.policy }
    }

    /// The charge as the overflow key is asked for it: at the rule's own limit, whoever calls.
    pub fn shared(&self) -> Self {
        Self {
            allowance: None,
            policy: self.own,
            ..self.clone()
        }
    }
}

/// All limiters that apply to a request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The table that the plan was made from; a reload does not change it.
    pub table: Arc<RuleTable>,
    /// A charge for each rule that applies, in table order.
    pub charges: SmallVec<[Charge; 2]>,
    /// The dry-run rules that would have blocked the caller.
    pub spared: SmallVec<[RuleId; 2]>,
}
