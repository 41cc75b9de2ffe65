//! What limiters of one process share, whatever rules are in force.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::Lobby;
use super::shed::Shed;
use crate::limit::Policy;
use crate::rules::{Charge, OnOutage, RuleTable};
use crate::store::By;

/// What outlives a change of the rules. Clones share it.
#[derive(Clone, Default)]
pub struct Lasting {
    /// Where requests wait for their turn.
    pub(super) lobby: Lobby,
    /// Who was just refused.
    pub(super) shed: Arc<Shed>,
    /// The rules that are in force now: a request that began under others is given back under these.
    pub(super) in_force: Arc<ArcSwapOption<RuleTable>>,
}

impl Lasting {
    /// Says that these rules are in force from now on.
    pub(super) fn put_in_force(&self, table: &Arc<RuleTable>) {
        self.in_force.store(Some(Arc::clone(table)));
    }

    /// The limiter of a charge as it is now: time that has passed since the last charge counts at the limit in force. A
    /// limiter that is gone is as it was.
    pub(super) fn policy(&self, planned: &Arc<RuleTable>, charge: &Charge) -> Policy {
        let in_force = self.in_force.load();
        match in_force.as_ref() {
            Some(table) if !Arc::ptr_eq(table, planned) => {
                table.successor(planned, charge).unwrap_or(charge.policy)
            }
            _ => charge.policy,
        }
    }
}

/// The limiter that a charge was decided by, if its rule's is `policy`.
pub(super) fn decided_by(table: &RuleTable, charge: &Charge, by: By, policy: Policy) -> Policy {
    match (by, table.rule(charge.rule).map(|rule| rule.on_outage)) {
        (By::Fallback, Some(OnOutage::Local(share))) => policy.stand_in(|units| share.of(units), charge.cost),
        _ => policy,
    }
}
