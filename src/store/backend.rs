//! The store that the config chose.

use std::sync::Arc;

use super::{Memory, Refund, Reserved, Store, Trouble};
use crate::clock::Micros;
use crate::rules::{Charge, RuleTable};

/// The store that the config chose: one concrete type for all floors above.
#[derive(Clone)]
pub enum Backend {
    /// In this process.
    Memory(Arc<Memory>),
}

impl Backend {
    /// Forgets a part of what has expired; called about once a second.
    pub fn sweep(&self) {
        match self {
            Self::Memory(store) => {
                store.sweep();
            }
        }
    }
}

impl Store for Backend {
    async fn reserve(&self, table: &RuleTable, charges: &[Charge]) -> Result<Reserved, Trouble> {
        match self {
            Self::Memory(store) => store.reserve(table, charges).await,
        }
    }

    fn refund(&self, table: &RuleTable, refunds: &[Refund]) {
        match self {
            Self::Memory(store) => store.refund(table, refunds),
        }
    }

    fn now(&self) -> Micros {
        match self {
            Self::Memory(store) => store.now(),
        }
    }
}
