//! One limiter's algorithm with its numbers.

use crate::clock::Micros;

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;

/// One limiter: an algorithm with its numbers, within the range that the arithmetic holds for. Made by
/// [`Spec::policy`](super::Spec::policy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `fixed-window`
    FixedWindow(FixedWindow),
    /// `sliding-log`
    SlidingLog(SlidingLog),
    /// `sliding-window`
    SlidingWindow(SlidingWindow),
    /// `token-bucket` and `gcra`
    Bucket(Bucket),
    /// `concurrency`
    Concurrency(Concurrency),
}

impl Policy {
    /// What `remaining` counts down from: the limit, or a bucket's burst.
    pub const fn quota(&self) -> u64 {
        match self {
            Self::FixedWindow(policy) => policy.limit,
            Self::SlidingLog(policy) => policy.limit,
            Self::SlidingWindow(policy) => policy.limit,
            Self::Bucket(policy) => policy.burst,
            Self::Concurrency(policy) => policy.limit,
        }
    }

    /// How long a request that has no room yet may be held until it has.
    pub fn queue(&self) -> Micros {
        match self {
            Self::Bucket(policy) => Micros(policy.queue.unwrap_or(0)),
            Self::FixedWindow(_) | Self::SlidingLog(_) | Self::SlidingWindow(_) | Self::Concurrency(_) => {
                Micros(0)
            }
        }
    }

    /// The same limiter, which holds no request: one without room is refused. Those that are held keep their slots.
    #[must_use]
    pub fn holding_none(self) -> Self {
        match self {
            Self::Bucket(policy) => Self::Bucket(Bucket {
                queue: policy.queue.map(|_| 0),
                ..policy
            }),
            other => other,
        }
    }

    /// A bucket of a part of this limiter's quota, which stands in for it: `part` of the limit drains in a window, and
    /// `part` of the quota may be owed at once, but at least `cost`, so that a request of it has room at times.
    #[must_use]
    pub fn stand_in(&self, part: impl Fn(u64) -> u64, cost: u64) -> Self {
        let window = match self {
            Self::FixedWindow(policy) => policy.window,
            Self::SlidingLog(policy) => policy.window,
            Self::SlidingWindow(policy) => policy.window,
            Self::Bucket(policy) => policy.window,
            Self::Concurrency(_) => return *self,
        };
        Self::Bucket(Bucket {
            limit: part(self.limit()),
            burst: part(self.quota()).max(cost),
            window,
            queue: None,
        })
    }

    /// Units a window, or in flight.
    pub const fn limit(&self) -> u64 {
        match self {
            Self::FixedWindow(policy) => policy.limit,
            Self::SlidingLog(policy) => policy.limit,
            Self::SlidingWindow(policy) => policy.limit,
            Self::Bucket(policy) => policy.limit,
            Self::Concurrency(policy) => policy.limit,
        }
    }

    /// The time in which the quota renews itself, in seconds, if it is a whole number of them: the window, for a bucket what a
    /// full debt takes to drain; `None` also if time does not renew it.
    pub fn window_secs(&self) -> Option<u64> {
        let (units, limit, window) = self.rate()?;
        let second = limit * u128::from(Micros::SECOND.0);
        let whole = (units * window)
            .is_multiple_of(second)
            .then_some(units * window / second)?;
        u64::try_from(whole).ok()
    }

    /// `(u, l, w)`: the quota renews itself in u × w / l microseconds.
    fn rate(&self) -> Option<(u128, u128, u128)> {
        let (units, limit, window) = match self {
            Self::FixedWindow(policy) => (1, 1, policy.window),
            Self::SlidingLog(policy) => (1, 1, policy.window),
            Self::SlidingWindow(policy) => (1, 1, policy.window),
            Self::Bucket(policy) => (policy.burst, policy.limit.max(1), policy.window),
            Self::Concurrency(_) => return None,
        };
        Some((units.into(), limit.into(), window.into()))
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::Micros;
    use crate::limit::{Kind, Spec};

    #[test]
    fn whole_seconds_or_none() {
        let spec = |kind, limit, window, burst| Spec {
            kind,
            limit,
            window: Some(Micros(window)),
            precision: 1,
            blend: true,
            burst,
            queue: None,
            cost: 1,
        };
        for (secs, spec) in [
            (Some(60), spec(Kind::FixedWindow, 100, 60_000_000, None)),
            (None, spec(Kind::SlidingLog, 100, 1_500_000, None)),
            (None, spec(Kind::SlidingWindow, 100, 1_000, None)),
            (Some(60), spec(Kind::TokenBucket, 100, 60_000_000, None)),
            (Some(6), spec(Kind::TokenBucket, 100, 60_000_000, Some(10))),
            (None, spec(Kind::Gcra, 100, 60_000_000, None)),
            (None, spec(Kind::Gcra, 3, 1_000_000, None)),
            (Some(1), spec(Kind::Gcra, 3, 1_000_000, Some(3))),
        ] {
            let policy = spec.policy().unwrap();
            assert_eq!(policy.window_secs(), secs, "{spec:?}");
        }
        let mut slots = spec(Kind::Concurrency, 5, 0, None);
        slots.window = None;
        let policy = slots.policy().unwrap();
        assert_eq!(policy.window_secs(), None);
    }
}
