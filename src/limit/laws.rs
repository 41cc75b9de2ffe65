//! The laws of limiting, on random schedules, for every algorithm.

use proptest::prelude::*;

use crate::clock::Micros;

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::model::{Model, Slip};
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::trial::{Trial, Tried};
use super::{Kind, Receipt, Spec, Verdict};

#[derive(Clone, Debug)]
enum Step {
    /// Time passes: this many millionths of a window, doubled this many times.
    Wait(u64),
    Charge(u64),
    /// Gives back one of the charges that were not given back yet.
    Refund(prop::sample::Index),
    /// The rule changes.
    Limit(u64, u64),
    /// The clock steps by so many thousandths of a window.
    Jump(i64),
}

fn specs(kind: Kind) -> impl Strategy<Value = Spec> {
    let windows = prop_oneof![
        Just(1_000),
        Just(1_001),
        Just(997_331),
        Just(1_000_000),
        Just(86_400_000_000)
    ];
    let limits = prop_oneof![1_u64..6, 1_u64..40, Just(999_983), Just((1 << 42) - 1)];
    // In thousandths of a window, which may be none.
    let queues = prop_oneof![Just(0_u64), 0_u64..200, 0_u64..5_000];
    (limits, 1_u64..40, windows, 1_u64..8, any::<bool>(), queues).prop_map(
        move |(limit, burst, window, precision, blend, queue)| {
            let limit = if kind == Kind::SlidingLog {
                limit.min(10_000)
            } else {
                limit
            };
            let burst = kind.is_bucket().then_some(burst);
            Spec {
                kind,
                limit,
                window: kind.has_window().then_some(Micros(window)),
                precision,
                blend,
                burst,
                queue: Some(Micros(window / 1_000 * queue))
                    .filter(|queue| kind == Kind::Gcra && queue.0 >= 1_000),
                cost: 0,
            }
        },
    )
}

fn steady() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..1_000).prop_map(Step::Wait),
        2 => (0_u64..400_000).prop_map(Step::Wait),
        1 => (0_u64..2_500_000).prop_map(Step::Wait),
        8 => (1_u64..5).prop_map(Step::Charge),
        1 => prop_oneof![Just(0_u64), 1_u64..50, Just(1 << 41)].prop_map(Step::Charge),
        4 => any::<prop::sample::Index>().prop_map(Step::Refund),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => steady(),
        1 => (1_u64..40, 1_u64..40).prop_map(|(limit, burst)| Step::Limit(limit, burst)),
        1 => (-4_000_i64..4_000).prop_map(Step::Jump),
        1 => (-300_i64..300).prop_map(Step::Jump),
    ]
}

/// A charge that was not given back.
struct Kept {
    at: u64,
    /// For how long the request was held.
    hold: u64,
    receipt: Receipt,
    slip: Slip,
}

struct Run<A: Tried> {
    trial: Trial<A>,
    model: Model,
    kept: Vec<Kept>,
}

impl<A: Tried> Run<A> {
    fn new(spec: Spec) -> Self {
        Self {
            trial: Trial::new(spec.clone()),
            model: Model::new(spec),
            kept: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let window = self.trial.spec.window.unwrap_or(Micros::SECOND).0;
        match step {
            Step::Wait(millionths) => self.trial.clock += window * millionths / 1_000_000,
            Step::Jump(thousandths) => {
                let by = window.cast_signed() * thousandths / 1_000;
                self.trial.clock = self.trial.clock.saturating_add_signed(by);
            }
            Step::Limit(limit, burst) => {
                self.trial.spec.limit = *limit;
                self.trial.spec.burst = self.trial.spec.burst.map(|_| *burst);
                self.model.spec = self.trial.spec.clone();
            }
            Step::Charge(cost) => self.charge(*cost)?,
            Step::Refund(index) if !self.kept.is_empty() => {
                let given = self.kept.remove(index.index(self.kept.len()));
                self.refund(&given)?;
            }
            Step::Refund(_) => {}
        }
        self.honest()
    }

    fn charge(&mut self, cost: u64) -> Result<(), TestCaseError> {
        let clock = Micros(self.trial.clock);
        let expected = self.model.read(clock, cost);
        let verdict = self.trial.ask(cost);
        prop_assert_eq!(
            (verdict.admitted, verdict.hold),
            (expected.admitted, expected.hold)
        );
        prop_assert_eq!(u128::from(verdict.limit), self.model.quota());
        prop_assert_eq!(verdict.retry, expected.retry);
        prop_assert_eq!(verdict.receipt.is_some(), verdict.admitted && cost > 0);
        let Some(receipt) = verdict.receipt.clone() else {
            prop_assert_eq!(verdict.standing, expected.standing);
            prop_assert_eq!(verdict.refunded, expected.standing);
            if cost > 0 {
                self.model.step_back(clock);
                self.rejected(&verdict, cost)?;
            }
            return Ok(());
        };
        prop_assert_eq!(receipt.cost(), cost);
        let slip = self.model.charge(clock, cost);
        prop_assert_eq!(verdict.standing, self.model.read(clock, 0).standing);
        let mut refunded = self.model.clone();
        refunded.refund(clock, &slip);
        prop_assert_eq!(verdict.refunded, refunded.read(clock, 0).standing);
        self.kept.push(Kept {
            at: self.trial.clock,
            hold: verdict.hold.0,
            receipt,
            slip,
        });
        Ok(())
    }

    /// A rejection shows less than the request costs, and names the instant from which on it would be admitted.
    fn rejected(&self, verdict: &Verdict<Receipt>, cost: u64) -> Result<(), TestCaseError> {
        prop_assert!(verdict.standing.remaining < cost);
        if !self.trial.spec.kind.has_window() {
            return Ok(());
        }
        if let Some(Micros(retry)) = verdict.retry {
            prop_assert!(retry > self.trial.clock);
            prop_assert!(self.trial.admits_at(retry, cost));
            prop_assert!(!self.trial.admits_at(retry - 1, cost));
        }
        Ok(())
    }

    fn refund(&mut self, kept: &Kept) -> Result<(), TestCaseError> {
        let before = self.trial.used();
        self.trial.refund(&kept.receipt);
        self.model.refund(Micros(self.trial.clock), &kept.slip);
        let after = self.trial.used();
        prop_assert!(after <= before && before - after <= kept.receipt.cost());
        Ok(())
    }

    /// What is shown comes true: more remains at `next` and not before, all at `full` and not before, and `full` does
    /// not move until then.
    fn honest(&self) -> Result<(), TestCaseError> {
        let clock = self.trial.clock;
        let standing = self.trial.standing_at(clock);
        prop_assert_eq!(standing, self.model.read(Micros(clock), 0).standing);
        if self.model.is_set_back(Micros(clock)) || !self.trial.spec.kind.has_window() {
            return Ok(());
        }
        let quota = self.model.quota();
        let Some(Micros(next)) = standing.next else {
            prop_assert_eq!(
                (u128::from(standing.remaining), standing.full),
                (quota, Some(Micros(clock)))
            );
            return Ok(());
        };
        let Micros(full) = standing.full.unwrap();
        prop_assert!(clock < next && next <= full);
        prop_assert_eq!(self.trial.standing_at(next - 1).remaining, standing.remaining);
        prop_assert!(self.trial.standing_at(next).remaining > standing.remaining);
        for between in [clock + (full - clock) / 3, clock + (full - clock) / 2, full - 1] {
            prop_assert_eq!(self.trial.standing_at(between).full, Some(Micros(full)));
        }
        let end = self.trial.standing_at(full);
        prop_assert_eq!(
            (u128::from(end.remaining), end.next, end.full),
            (quota, None, Some(Micros(full)))
        );
        Ok(())
    }
}

fn agrees<A: Tried>(spec: Spec, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut run = Run::<A>::new(spec);
    steps.iter().try_for_each(|step| run.step(step))
}

/// The charges that stay would all have been admitted if those that were given back had never come.
fn never_too_many<A: Tried>(spec: &Spec, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut run = Run::<A>::new(spec.clone());
    steps.iter().try_for_each(|step| run.step(step))?;
    let mut without = Model::new(spec.clone());
    let mut windows = std::collections::BTreeMap::<u64, u64>::new();
    for Kept { at, receipt, .. } in &run.kept {
        if let Receipt::FixedWindow(receipt) = receipt {
            // A charge that was given back may have opened the window: its end is the receipts'.
            let units = windows.entry(receipt.reset).or_default();
            *units += receipt.cost;
            prop_assert!(*units <= spec.limit);
            prop_assert!((1..=spec.window.unwrap().0).contains(&(receipt.reset - at)));
        } else {
            prop_assert!(without.read(Micros(*at), receipt.cost()).admitted);
            without.charge(Micros(*at), receipt.cost());
        }
    }
    Ok(())
}

/// However requests are held, never more than the burst and what drains meanwhile is released between any two instants,
/// and nobody is overtaken. A slot is told in whole microseconds, rounded up: a gap may be shorter by less than one.
fn slots_are_kept(spec: &Spec, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut run = Run::<Bucket>::new(spec.clone());
    steps.iter().try_for_each(|step| run.step(step))?;
    let (burst, limit) = (run.model.quota(), u128::from(spec.limit));
    let window = u128::from(spec.window.unwrap().0);
    let mut released: Vec<(u64, u64)> = Vec::new();
    for Kept {
        at, hold, receipt, ..
    } in &run.kept
    {
        prop_assert!(*hold <= spec.queue.unwrap_or_default().0);
        let (release, mut units) = (at + hold, 0);
        prop_assert!(released.last().is_none_or(|(last, _)| *last <= release));
        released.push((release, receipt.cost()));
        for (earlier, cost) in released.iter().rev() {
            units += u128::from(*cost);
            let time = u128::from(release - earlier + 1);
            prop_assert!(units.saturating_sub(burst) * window <= limit * time);
        }
    }
    Ok(())
}

fn some(steps: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(steps, 1..60)
}

macro_rules! laws {
    ($($name:ident: $algorithm:ident, $kind:ident;)*) => {$(
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

                #[test]
                fn agrees_with_the_model(spec in specs(Kind::$kind), steps in some(any_step())) {
                    agrees::<$algorithm>(spec, &steps)?;
                }

                #[test]
                fn never_too_many(spec in specs(Kind::$kind), steps in some(steady())) {
                    super::never_too_many::<$algorithm>(&spec, &steps)?;
                }
            }
        }
    )*};
}

laws! {
    fixed_window: FixedWindow, FixedWindow;
    sliding_log: SlidingLog, SlidingLog;
    sliding_window: SlidingWindow, SlidingWindow;
    token_bucket: Bucket, TokenBucket;
    gcra: Bucket, Gcra;
    concurrency: Concurrency, Concurrency;
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_queue_keeps_its_slots(spec in specs(Kind::Gcra), steps in some(steady())) {
        slots_are_kept(&spec, &steps)?;
    }
}
