//! Where the state of limiters lives: one atomic call decides all charges of a request.
//!
//! [`Store::reserve`] turns the charges of a plan into [`Reserved`]; a receipt in it goes back through
//! [`Store::refund`]. A store never looks at a request, and never decides what an outcome owes.

mod backend;
pub mod memory;
pub mod redis;
pub mod snapshot;

#[cfg(test)]
mod contract;

use smallvec::SmallVec;

use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::{Policy, Receipt, Verdict};
use crate::rules::{Charge, RuleId, RuleTable};

pub use backend::Backend;
pub use memory::Memory;
pub use redis::Redis;

/// What a store decided about one request, from one atomic look at its state.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// When it was decided, on the clock of this process's memory.
    pub now: Micros,
    /// Whether every limiter that is not a dry run admitted the request. If not, nothing was charged.
    pub admitted: bool,
    /// A ruling for each charge, in order.
    pub rulings: SmallVec<[Ruling; 2]>,
}

/// One limiter's part of a [`Reserved`].
#[derive(Clone, Debug)]
pub struct Ruling {
    /// The key that was decided on: the charge's own, or its rule's overflow key.
    pub key: LimitKey,
    /// Who decided.
    pub by: By,
    /// When, on the clock of who decided: each server has its own.
    pub now: Micros,
    /// What the limiter says.
    pub verdict: Verdict<Receipt>,
}

/// Who made a ruling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The memory of this process, on the caller's own key.
    Memory,
    /// The memory of this process, which was full: the overflow key answered for this caller.
    Overflow,
    /// The memory of this process, on behalf of a store that could not.
    Fallback,
    /// A server, in this life of its own.
    Server(u32),
    /// The edge of this process, which remembers what a server said.
    Edge,
}

impl Ruling {
    /// How far off a retry is; nothing where there is none.
    pub fn off(&self) -> Micros {
        self.verdict
            .retry
            .map(|retry| retry.since(self.now))
            .unwrap_or_default()
    }
}

/// A charge to give back.
#[derive(Clone, Debug)]
pub struct Refund {
    /// The rule that asked for it.
    pub rule: RuleId,
    /// The key that was charged.
    pub key: LimitKey,
    /// The limiter, with the limit that is now in force.
    pub policy: Policy,
    /// The proof of the charge.
    pub receipt: Receipt,
    /// Who charged it.
    pub by: By,
}

/// Not all charges of a request were decided: the store could not, or one part of it refused before another was asked.
#[derive(Clone, Debug)]
pub struct Partial {
    /// Whether the limiters that were decided, dry runs aside, admitted the request. If not, nothing was charged.
    pub admitted: bool,
    /// A ruling for each charge that was decided, in order.
    pub rulings: SmallVec<[Option<Ruling>; 2]>,
}

/// A store of limiter state, shared by all workers.
pub trait Store: Send + Sync {
    /// Decides all `charges` of one request, which a plan of `table` asks for, atomically: either every limiter (dry runs
    /// aside) has room and all are charged, or nothing changes. A dry-run limiter is charged only if the request is admitted and it has room itself.
    ///
    /// # Errors
    /// Not all was decided.
    fn reserve(
        &self,
        table: &RuleTable,
        charges: &[Charge],
    ) -> impl Future<Output = Result<Reserved, Box<Partial>>> + Send;

    /// Gives charges back that plans of `table` asked for. It is sent, not waited for.
    fn refund(&self, table: &RuleTable, refunds: &[Refund]);
}
