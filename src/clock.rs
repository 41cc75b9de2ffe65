//! The clock: the one place that reads time.
//!
//! Limits are decided in integer microseconds of a store's clock ([`Micros`]). The memory store's clock is monotonic
//! with an epoch offset that is fixed when the process starts, so that a step of the wall clock moves no window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds: a length of time, or an instant since the Unix epoch. Below 2^53 everywhere, so that a Redis script
/// can hold it without loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Microseconds in one second.
    pub const SECOND: Self = Self(1_000_000);

    /// A length of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A length of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// This instant moved by `length` towards the future.
    pub const fn plus(self, length: Self) -> Self {
        Self(self.0.saturating_add(length.0))
    }

    /// This instant moved by `length` towards the past.
    pub const fn minus(self, length: Self) -> Self {
        Self(self.0.saturating_sub(length.0))
    }

    /// What separates this instant from the earlier `other`, or zero if `other` is not earlier.
    pub const fn since(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Seconds, rounded up.
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

impl From<Duration> for Micros {
    fn from(length: Duration) -> Self {
        Self(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))
    }
}

/// A source of [`Micros`] since the Unix epoch.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Monotonic { origin: Instant, epoch: Micros },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, set to the wall clock once, now.
    pub fn monotonic() -> Self {
        Self(Source::Monotonic {
            origin: now(),
            epoch: wall(),
        })
    }

    /// A clock that stands at `start` until it is [set](Self::set): for tests, models and the lab.
    pub fn manual(start: Micros) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(start.0))))
    }

    /// The instant now.
    pub fn now(&self) -> Micros {
        match &self.0 {
            Source::Monotonic { origin, epoch } => {
                epoch.plus(now().saturating_duration_since(*origin).into())
            }
            Source::Manual(at) => Micros(at.load(Ordering::Acquire)),
        }
    }

    /// Moves a manual clock, and every clone of it, to `to`. A monotonic clock is left alone.
    pub fn set(&self, to: Micros) {
        if let Source::Manual(at) = &self.0 {
            at.store(to.0, Ordering::Release);
        }
    }
}

/// The monotonic instant now, for timeouts and for measuring.
#[expect(clippy::disallowed_methods, reason = "the one reader of the monotonic clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock now, which may be set at any moment: for what outlives the process.
pub fn wall() -> Micros {
    #[expect(clippy::disallowed_methods, reason = "the one reader of the wall clock")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.unwrap_or_default().into()
}
