//! What a rule says of its algorithm, and everything that can be wrong with it.

use std::str::FromStr;

use crate::clock::Micros;

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::sliding_log::{self, SlidingLog};
use super::sliding_window::{PRECISION_MAX, SlidingWindow};
use super::{Policy, RANGE};

/// An algorithm by its name in the rule table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `fixed-window`
    FixedWindow,
    /// `sliding-log`
    SlidingLog,
    /// `sliding-window`
    SlidingWindow,
    /// `token-bucket`
    TokenBucket,
    /// `gcra`
    Gcra,
    /// `concurrency`
    Concurrency,
}

/// A name that no algorithm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such algorithm")]
pub struct UnknownKind;

/// What a rule says of its algorithm, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The algorithm.
    pub kind: Kind,
    /// Units of cost a window; for `concurrency`, in flight.
    pub limit: u64,
    /// The window; `concurrency` has none.
    pub window: Option<Micros>,
    /// Sub-windows of a `sliding-window`.
    pub precision: u64,
    /// Whether a `sliding-window` weights its oldest sub-window (else it counts in full).
    pub blend: bool,
    /// A bucket's size; `None` is the algorithm's default.
    pub burst: Option<u64>,
    /// How long `gcra` may hold a request that has no room yet; `None` is not at all.
    pub queue: Option<Micros>,
    /// The cost of one request, 0 for a request that is only measured.
    pub cost: u64,
}

/// One thing wrong with a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key of the rule table that is at fault: `limit`, `window`, `precision`, `burst`, `queue`, `cost`.
    pub field: &'static str,
    /// What is wrong, as a lower-case sentence without a full stop.
    pub problem: String,
    /// What would be right.
    pub hint: String,
}

/// The lengths of time that a window and a queue may have, in microseconds.
const LENGTHS: std::ops::Range<u64> = 1_000..RANGE;
const LENGTH: &str = "at least 1ms, and less than 50 days and 21 hours";

impl Kind {
    /// All algorithms.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::Gcra,
        Self::Concurrency,
    ];

    /// The name in the rule table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingLog => "sliding-log",
            Self::SlidingWindow => "sliding-window",
            Self::TokenBucket => "token-bucket",
            Self::Gcra => "gcra",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether the algorithm has a window: time gives quota back.
    pub const fn has_window(self) -> bool {
        !matches!(self, Self::Concurrency)
    }

    /// Whether the algorithm is a bucket, and so has a burst.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra)
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or(UnknownKind)
    }
}

impl Spec {
    /// The limiter that this describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn policy(&self) -> Result<Policy, Vec<Fault>> {
        let mut faults = self.out_of_range();
        self.unfit(&mut faults);
        if !faults.is_empty() {
            return Err(faults);
        }
        let (limit, window) = (self.limit, self.window.unwrap_or_default().0);
        Ok(match self.kind {
            Kind::FixedWindow => Policy::FixedWindow(FixedWindow { limit, window }),
            Kind::SlidingLog => Policy::SlidingLog(SlidingLog { limit, window }),
            Kind::SlidingWindow => Policy::SlidingWindow(SlidingWindow {
                limit,
                window,
                precision: usize::try_from(self.precision).unwrap_or(1),
                part: window.div_ceil(self.precision.max(1)),
                blend: self.blend,
            }),
            Kind::TokenBucket | Kind::Gcra => Policy::Bucket(Bucket {
                limit,
                burst: self.quota(),
                window,
                queue: self.queue.map(|queue| queue.0),
            }),
            Kind::Concurrency => Policy::Concurrency(Concurrency { limit }),
        })
    }

    /// What `remaining` counts down from: the limit; a bucket's burst, which for a `token-bucket` is the limit and for
    /// `gcra` 1 where the rule does not say.
    pub fn quota(&self) -> u64 {
        match self.kind {
            Kind::TokenBucket => self.burst.unwrap_or(self.limit),
            Kind::Gcra => self.burst.unwrap_or(1),
            Kind::FixedWindow | Kind::SlidingLog | Kind::SlidingWindow | Kind::Concurrency => self.limit,
        }
    }

    /// What makes the limiter's state its own. Two specs with one fingerprint can take over each other's state: limit,
    /// burst, blend, queue and cost are not part of it.
    pub fn fingerprint(&self) -> String {
        let (name, window) = (self.kind.name(), self.window.unwrap_or_default().0);
        match self.kind {
            Kind::Concurrency => name.to_owned(),
            Kind::SlidingWindow => format!("{name} {window} {}", self.precision),
            Kind::FixedWindow | Kind::SlidingLog | Kind::TokenBucket | Kind::Gcra => {
                format!("{name} {window}")
            }
        }
    }

    /// Numbers that are out of range by themselves.
    fn out_of_range(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let largest = RANGE - 1;
        if !(1..=largest).contains(&self.limit) {
            faults.push(fault(
                "limit",
                format!("{} is no limit", self.limit),
                format!("1 to {largest}"),
            ));
        }
        faults.extend(self.window_fault());
        if self.kind == Kind::SlidingWindow && !(1..=PRECISION_MAX).contains(&self.precision) {
            let problem = format!("{} sub-windows are out of range", self.precision);
            faults.push(fault("precision", problem, format!("1 to {PRECISION_MAX}")));
        }
        faults.extend(self.burst_fault());
        faults.extend(self.queue_fault());
        if self.cost > largest {
            faults.push(fault(
                "cost",
                format!("{} is out of range", self.cost),
                format!("0 to {largest}"),
            ));
        }
        faults
    }

    fn window_fault(&self) -> Option<Fault> {
        let name = self.kind.name();
        let (problem, hint) = match self.window {
            Some(_) if !self.kind.has_window() => (format!("{name} has no window"), "leave it out"),
            None if self.kind.has_window() => (format!("{name} needs a window"), "a minute, perhaps"),
            Some(window) if !LENGTHS.contains(&window.0) => {
                (format!("a window of {} µs is out of range", window.0), LENGTH)
            }
            _ => return None,
        };
        Some(fault("window", problem, hint.to_owned()))
    }

    fn burst_fault(&self) -> Option<Fault> {
        let burst = self.burst?;
        let (problem, hint) = if !self.kind.is_bucket() {
            let hint = "leave it out, or choose token-bucket or gcra";
            (format!("{} has no burst", self.kind.name()), hint.to_owned())
        } else if !(1..RANGE).contains(&burst) {
            (format!("{burst} is no burst"), format!("1 to {}", RANGE - 1))
        } else {
            return None;
        };
        Some(fault("burst", problem, hint))
    }

    fn queue_fault(&self) -> Option<Fault> {
        let queue = self.queue?;
        let (problem, hint) = if self.kind != Kind::Gcra {
            let problem = format!("{} has no queue", self.kind.name());
            (problem, "leave it out, or choose gcra")
        } else if !LENGTHS.contains(&queue.0) {
            (format!("a queue of {} µs is out of range", queue.0), LENGTH)
        } else {
            return None;
        };
        Some(fault("queue", problem, hint.to_owned()))
    }

    /// Adds numbers that do not go together, where each by itself has no fault yet.
    fn unfit(&self, faults: &mut Vec<Fault>) {
        let (limit, window, quota) = (self.limit, self.window.unwrap_or_default().0, self.quota());
        let fine = |fields: [&str; 3]| faults.iter().all(|fault| !fields.contains(&fault.field));
        let (limit_fine, all_fine) = (fine(["limit"; 3]), fine(["limit", "window", "burst"]));
        let (cost_fine, queue_fine) = (fine(["limit", "burst", "cost"]), fine(["queue"; 3]));
        if self.kind == Kind::SlidingLog && limit_fine && limit > sliding_log::LIMIT_MAX {
            let problem = format!("a sliding-log of {limit} keeps that many entries for each caller");
            let hint = format!(
                "at most {}, or sliding-window, whose size is fixed",
                sliding_log::LIMIT_MAX
            );
            faults.push(fault("limit", problem, hint));
        }
        let drains = u128::from(quota) * u128::from(window);
        let range = u128::from(RANGE) * u128::from(limit);
        let queue = self.queue.unwrap_or_default().0;
        let waits = u128::from(queue) * u128::from(limit);
        let micros = drains / u128::from(limit.max(1));
        if self.kind.is_bucket() && all_fine && drains >= range {
            let problem = format!("a bucket of {quota} takes {micros} µs to drain");
            let hint = "burst × window / limit below 50 days and 21 hours".to_owned();
            faults.push(fault("burst", problem, hint));
        } else if self.kind == Kind::Gcra && all_fine && queue_fine && drains + waits >= range {
            let problem =
                format!("a bucket of {quota} takes {micros} µs to drain, and {queue} more with its queue");
            let hint = "burst × window / limit + queue below 50 days and 21 hours".to_owned();
            faults.push(fault("queue", problem, hint));
        }
        if cost_fine && self.cost > quota {
            let (problem, hint) = self.never_fits(quota);
            faults.push(fault("cost", problem, hint));
        }
    }

    fn never_fits(&self, quota: u64) -> (String, String) {
        let cost = self.cost;
        let what = if self.kind.is_bucket() { "burst" } else { "limit" };
        let problem = format!("a request that costs {cost} never fits into a {what} of {quota}");
        let hint = match self.kind {
            Kind::Gcra => format!("set burst to at least {cost}"),
            _ => format!("a cost of at most {quota}, or a larger {what}"),
        };
        (problem, hint)
    }
}

fn fault(field: &'static str, problem: String, hint: String) -> Fault {
    Fault { field, problem, hint }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Spec};
    use crate::clock::Micros;
    use crate::limit::RANGE;

    fn spec(kind: Kind) -> Spec {
        let window = Micros::from_secs(60);
        Spec {
            kind,
            limit: 100,
            window: kind.has_window().then_some(window),
            precision: 1,
            blend: true,
            burst: None,
            queue: None,
            cost: 1,
        }
    }

    fn fields(spec: &Spec) -> Vec<&'static str> {
        spec.policy()
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(|fault| fault.field)
            .collect()
    }

    #[test]
    fn every_kind_has_a_name_and_a_default() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let policy = spec(kind).policy().unwrap();
            assert_eq!(policy.quota(), if kind == Kind::Gcra { 1 } else { 100 });
        }
        assert!("token bucket".parse::<Kind>().is_err());
    }

    #[test]
    fn all_faults_at_once() {
        let window = Micros(999);
        let bad = Spec {
            limit: 0,
            window: Some(window),
            precision: 61,
            cost: RANGE,
            ..spec(Kind::SlidingWindow)
        };
        assert_eq!(fields(&bad), ["limit", "window", "precision", "cost"]);
        let bad = Spec {
            window: Some(Micros(RANGE)),
            limit: 10_001,
            cost: 10_002,
            ..spec(Kind::SlidingLog)
        };
        assert_eq!(fields(&bad), ["window", "limit", "cost"]);
        let bad = Spec {
            burst: Some(0),
            precision: 0,
            ..spec(Kind::Gcra)
        };
        assert_eq!(fields(&bad), ["burst"], "precision is not gcra's");
    }

    #[test]
    fn each_border() {
        use Kind::{Concurrency, FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};
        let (max, day) = (RANGE - 1, 86_400_000_000);
        #[rustfmt::skip]
        let table = [
            // kind, limit, window, precision, burst, cost, the field at fault
            (FixedWindow, 0, day, 1, None, 0, "limit"),
            (FixedWindow, RANGE, day, 1, None, 0, "limit"),
            (FixedWindow, max, max, 1, None, 0, ""),
            (SlidingLog, 10_001, day, 1, None, 1, "limit"),
            (SlidingLog, 10_000, 1_000, 1, None, 10_000, ""),
            (TokenBucket, 100, 999, 1, None, 1, "window"),
            (SlidingWindow, 100, RANGE, 1, None, 1, "window"),
            (SlidingWindow, 100, day, 0, None, 1, "precision"),
            (SlidingWindow, 100, day, 61, None, 1, "precision"),
            (SlidingWindow, 100, day, 60, None, 1, ""),
            (FixedWindow, 100, day, 0, None, 1, ""),
            (TokenBucket, 100, day, 1, Some(RANGE), 1, "burst"),
            (TokenBucket, 100, day, 1, Some(0), 1, "burst"),
            (FixedWindow, 100, day, 1, Some(5), 1, "burst"),
            (TokenBucket, 1, day, 1, Some(51), 1, "burst"),
            (Gcra, 1, day, 1, Some(50), 1, ""),
            (TokenBucket, 100, day, 1, None, 101, "cost"),
            (TokenBucket, 100, day, 1, Some(101), 101, ""),
            (Gcra, 100, day, 1, None, 2, "cost"),
            (FixedWindow, 100, day, 1, None, RANGE, "cost"),
            (Concurrency, 100, day, 1, None, 1, "window"),
        ];
        for (kind, limit, window, precision, burst, cost, at_fault) in table {
            let spec = Spec {
                kind,
                limit,
                window: Some(Micros(window)),
                precision,
                blend: true,
                burst,
                queue: None,
                cost,
            };
            let expected = if at_fault.is_empty() {
                vec![]
            } else {
                vec![at_fault]
            };
            assert_eq!(fields(&spec), expected, "{spec:?}");
        }
    }

    #[test]
    fn concurrency_has_a_limit_and_nothing_else() {
        let fine = spec(Kind::Concurrency);
        for (bad, at_fault) in [
            (
                Spec {
                    limit: 0,
                    ..fine.clone()
                },
                "limit",
            ),
            (
                Spec {
                    burst: Some(3),
                    ..fine.clone()
                },
                "burst",
            ),
            (
                Spec {
                    cost: 101,
                    ..fine.clone()
                },
                "cost",
            ),
            (
                Spec {
                    queue: Some(Micros::SECOND),
                    ..fine
                },
                "queue",
            ),
            (
                Spec {
                    window: None,
                    ..spec(Kind::Gcra)
                },
                "window",
            ),
        ] {
            assert_eq!(fields(&bad), [at_fault], "{bad:?}");
        }
    }

    #[test]
    fn a_queue_is_gcras_and_drains_in_time() {
        let day = Micros::from_secs(86_400);
        let days = |days: u64| Some(Micros(day.0 * days));
        for (kind, burst, queue, at_fault) in [
            (Kind::Gcra, 1, Some(Micros(1_000)), None),
            (Kind::Gcra, 1, Some(Micros(999)), Some("queue")),
            (Kind::Gcra, 1, Some(Micros(RANGE)), Some("queue")),
            (Kind::Gcra, 25, days(25), None),
            (Kind::Gcra, 25, days(26), Some("queue")),
            (Kind::Gcra, 51, days(1), Some("burst")),
            (Kind::TokenBucket, 1, days(1), Some("queue")),
        ] {
            let spec = Spec {
                limit: 1,
                window: Some(day),
                burst: Some(burst),
                queue,
                ..spec(kind)
            };
            assert_eq!(fields(&spec), Vec::from_iter(at_fault), "{spec:?}");
        }
    }

    #[test]
    fn faults_say_what_would_be_right() {
        let hint = |spec: Spec| spec.policy().unwrap_err().remove(0).hint;
        assert_eq!(
            hint(Spec {
                cost: 3,
                ..spec(Kind::Gcra)
            }),
            "set burst to at least 3"
        );
        assert!(
            hint(Spec {
                limit: 20_000,
                ..spec(Kind::SlidingLog)
            })
            .contains("sliding-window")
        );
    }

    #[test]
    fn a_fingerprint_is_what_state_depends_on() {
        let old = spec(Kind::SlidingWindow);
        assert_eq!(old.fingerprint(), "sliding-window 60000000 1");
        assert_eq!(
            old.fingerprint(),
            Spec {
                limit: 7,
                blend: false,
                cost: 2,
                ..old.clone()
            }
            .fingerprint()
        );
        assert_ne!(
            old.fingerprint(),
            Spec {
                precision: 2,
                ..old.clone()
            }
            .fingerprint()
        );
        assert_ne!(
            old.fingerprint(),
            Spec {
                window: Some(Micros::SECOND),
                ..old
            }
            .fingerprint()
        );
        assert_ne!(
            spec(Kind::Gcra).fingerprint(),
            spec(Kind::TokenBucket).fingerprint()
        );
    }
}
