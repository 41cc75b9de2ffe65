//! Proof of a charge, whatever the algorithm.

use super::{bucket, concurrency, fixed_window, sliding_log, sliding_window};

/// Proof of one charge: what a refund needs to give back exactly what was charged, where it was charged. Whoever holds
/// it gives it back at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// From a fixed window.
    FixedWindow(fixed_window::Receipt),
    /// From a sliding log.
    SlidingLog(sliding_log::Receipt),
    /// From a sliding window.
    SlidingWindow(sliding_window::Receipt),
    /// From a token bucket or `gcra`.
    Bucket(bucket::Receipt),
    /// Of units in flight.
    Concurrency(concurrency::Receipt),
}

impl Receipt {
    /// The units that were charged.
    pub const fn cost(&self) -> u64 {
        match self {
            Self::FixedWindow(receipt) => receipt.cost,
            Self::SlidingLog(receipt) => receipt.cost,
            Self::SlidingWindow(receipt) => receipt.cost,
            Self::Bucket(receipt) => receipt.cost,
            Self::Concurrency(receipt) => receipt.cost,
        }
    }

    /// Whether it is for units that are held while the request is in flight: these are released when it ends, whatever
    /// its outcome, and never before.
    pub const fn is_held(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }
}

impl From<fixed_window::Receipt> for Receipt {
    fn from(receipt: fixed_window::Receipt) -> Self {
        Self::FixedWindow(receipt)
    }
}

impl From<sliding_log::Receipt> for Receipt {
    fn from(receipt: sliding_log::Receipt) -> Self {
        Self::SlidingLog(receipt)
    }
}

impl From<sliding_window::Receipt> for Receipt {
    fn from(receipt: sliding_window::Receipt) -> Self {
        Self::SlidingWindow(receipt)
    }
}

impl From<bucket::Receipt> for Receipt {
    fn from(receipt: bucket::Receipt) -> Self {
        Self::Bucket(receipt)
    }
}

impl From<concurrency::Receipt> for Receipt {
    fn from(receipt: concurrency::Receipt) -> Self {
        Self::Concurrency(receipt)
    }
}
