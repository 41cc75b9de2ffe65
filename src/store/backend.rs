//! The store that the config chose.

use std::sync::Arc;

use super::{By, Memory, Redis, Refund, Store};
use crate::rules::RuleTable;

/// The store that the config chose: one concrete type for all floors above.
#[derive(Clone)]
pub enum Backend {
    /// In this process.
    Memory(Arc<Memory>),
    /// In Redis; the memory has what is decided in this process all the same.
    Redis(Arc<Redis>, Arc<Memory>),
}

impl Backend {
    /// Forgets a part of what has expired; called about once a second.
    pub fn sweep(&self) {
        self.memory().sweep();
    }

    /// The memory of this process.
    pub fn memory(&self) -> &Memory {
        match self {
            Self::Memory(memory) | Self::Redis(_, memory) => memory,
        }
    }

    /// Gives charges back that plans of `table` asked for, each to whoever charged it. It is sent, not waited for.
    pub fn refund(&self, table: &RuleTable, refunds: &[Refund]) {
        let Self::Redis(redis, memory) = self else {
            return self.memory().give_back(refunds);
        };
        for refund in refunds {
            let one = std::slice::from_ref(refund);
            match refund.by {
                By::Server(_) => redis.refund(table, one),
                By::Memory | By::Overflow | By::Fallback => memory.give_back(one),
                By::Edge => {}
            }
        }
    }
}
