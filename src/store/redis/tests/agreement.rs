//! Random calls, beside the plain model and the store in memory: digit for digit.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use smallvec::SmallVec;

use super::super::call::Ask;
use super::super::recount::Counted;
use super::{Desk, START};
use crate::clock::{Clock, Micros};
use crate::identity::LimitKey;
use crate::limit::model::{Model, Slip};
use crate::limit::{Kind, Receipt, Spec};
use crate::rules::{Charge, RuleId};
use crate::store::contract::{charge, new_key, timed};
use crate::store::memory::{Memory, Settings};
use crate::store::{By, Refund};

/// A limiter, what it is asked for, and whether as a dry run.
type Wanted = (usize, u64, bool);

/// A request, and how often it comes in a row.
type Request = (Vec<Wanted>, usize);

#[derive(Clone, Debug)]
enum Step {
    /// Time passes: so many thousandths of a second.
    Pass(u64),
    /// The clock steps by so many thousandths of a second.
    Jump(i64),
    /// Requests of one call.
    Call(Vec<Request>),
    /// Gives back some of the charges, in one call.
    Settle(Vec<Index>),
    /// A limiter has another limit.
    Limit(usize, u64, u64),
}

const LIMITERS: usize = 5;

fn specs() -> impl Strategy<Value = Spec> {
    let kinds: Vec<Kind> = timed().collect();
    let windows = prop::sample::select(&[1_000_u64, 1_001, 997_331, 60_000_000, 43_200_000_000][..]);
    let limits = prop_oneof![3 => 1_u64..8, 3 => 1_u64..60, 1 => Just(999_983), 1 => Just((1 << 42) - 1)];
    let queues = prop_oneof![2 => Just(0_u64), 1 => 1_000_u64..100_000_000];
    (
        prop::sample::select(kinds),
        limits,
        1_u64..60,
        windows,
        1_u64..8,
        any::<bool>(),
        queues,
    )
        .prop_map(|(kind, limit, burst, window, precision, blend, queue)| Spec {
            kind,
            limit: if kind == Kind::SlidingLog {
                limit.min(10_000)
            } else {
                limit
            },
            window: Some(Micros(window)),
            precision,
            blend,
            burst: kind.is_bucket().then_some(burst),
            queue: (kind == Kind::Gcra && queue > 0).then_some(Micros(queue)),
            cost: 0,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = prop_oneof![8 => 0_u64..4, 2 => 4_u64..30, 1 => Just(1 << 41)];
    let charges = prop::collection::vec((0..LIMITERS, cost, prop::bool::weighted(0.2)), 1..4);
    let request = (
        charges,
        prop_oneof![3 => Just(1_usize), 1 => 1_usize..12, 1 => Just(300)],
    )
        .prop_map(|(mut charges, times)| {
            charges.sort_unstable_by_key(|(limiter, ..)| *limiter);
            charges.dedup_by_key(|(limiter, ..)| *limiter);
            (charges, times)
        });
    let call = prop::collection::vec(request, 1..8).prop_map(Step::Call);
    let step = prop_oneof![
        3 => (0_u64..2_000).prop_map(Step::Pass),
        2 => (0_u64..200_000).prop_map(Step::Pass),
        1 => (0_u64..200_000_000).prop_map(Step::Pass),
        1 => (-200_000_000_i64..200_000_000).prop_map(Step::Jump),
        1 => (-100_000_i64..1_000).prop_map(Step::Jump),
        1 => (-1_000_i64..1_000).prop_map(Step::Jump),
        12 => call,
        6 => prop::collection::vec(any::<Index>(), 1..8).prop_map(Step::Settle),
        1 => (0..LIMITERS, 1_u64..60, 1_u64..60).prop_map(|(limiter, limit, burst)| Step::Limit(limiter, limit, burst)),
    ];
    prop::collection::vec(step, 1..50)
}

/// One limiter beside its model.
struct Pair {
    key: LimitKey,
    model: Model,
}

/// A charge that was not given back.
struct Kept {
    limiter: usize,
    receipt: Receipt,
    slip: Slip,
}

struct Run<'a> {
    desk: &'a mut Desk,
    clock: u64,
    pairs: Vec<Pair>,
    /// Until the clock is set back: what has expired is forgotten here and held there.
    memory: Option<(Memory, Clock)>,
    kept: Vec<Kept>,
}

impl<'a> Run<'a> {
    fn new(desk: &'a mut Desk, specs: &[Spec]) -> Self {
        let clock = Clock::manual(Micros(START));
        let pair = |spec: &Spec| Pair {
            key: new_key(),
            model: Model::new(spec.clone()),
        };
        desk.set(START);
        Self {
            desk,
            clock: START,
            pairs: specs.iter().map(pair).collect(),
            memory: Some((Memory::new(Settings { max_keys: 1_000 }, clock.clone()), clock)),
            kept: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Pass(millis) => self.set(self.clock + millis * 1_000 + 7),
            Step::Jump(millis) => self.set(self.clock.saturating_add_signed(millis * 1_000 - 3)),
            Step::Limit(limiter, limit, burst) => {
                let spec = &mut self.pairs[*limiter].model.spec;
                spec.limit = *limit;
                spec.burst = spec.burst.map(|_| *burst);
            }
            Step::Call(requests) => self.call(requests)?,
            Step::Settle(indices) => self.settle(indices),
        }
        self.stands()
    }

    fn set(&mut self, clock: u64) {
        if clock < self.clock {
            self.memory = None;
        }
        self.clock = clock;
        self.desk.set(clock);
        if let Some((_, clock)) = &self.memory {
            clock.set(Micros(self.clock));
        }
    }

    fn charge(&self, (limiter, cost, dry_run): Wanted) -> Charge {
        let Pair { key, model } = &self.pairs[limiter];
        Charge {
            cost,
            dry_run,
            ..charge(&model.spec, *key)
        }
    }

    fn call(&mut self, requests: &[Request]) -> Result<(), TestCaseError> {
        let mut asked = Vec::new();
        for (charges, times) in requests {
            asked.extend(std::iter::repeat_n(charges, *times));
        }
        let asks: Vec<Ask> = asked
            .iter()
            .map(|charges| {
                charges
                    .iter()
                    .map(|(limiter, cost, dry_run)| {
                        let Pair { key, model } = &self.pairs[*limiter];
                        let mut asked = self.desk.asked(*key, &model.spec, *cost);
                        asked.dry_run = *dry_run;
                        asked
                    })
                    .collect()
            })
            .collect();
        let (now, counted) = self.desk.reserve(&asks);
        prop_assert_eq!(now, Micros(self.clock));
        prop_assert_eq!(counted.len(), asks.len());
        for (charges, counted) in asked.into_iter().zip(counted) {
            self.as_in_memory(charges, &counted)?;
            self.as_in_the_model(charges, counted)?;
        }
        Ok(())
    }

    fn as_in_memory(&self, charges: &[Wanted], counted: &Counted) -> Result<(), TestCaseError> {
        let Some((memory, _)) = &self.memory else {
            return Ok(());
        };
        let charges: SmallVec<[Charge; 2]> = charges.iter().map(|charge| self.charge(*charge)).collect();
        let reserved = memory.decide(&charges);
        prop_assert_eq!(reserved.admitted, counted.admitted);
        for (ruling, verdict) in reserved.rulings.iter().zip(&counted.verdicts) {
            prop_assert_eq!(&ruling.verdict, verdict);
        }
        Ok(())
    }

    fn as_in_the_model(&mut self, charges: &[Wanted], counted: Counted) -> Result<(), TestCaseError> {
        let now = Micros(self.clock);
        let read = |(limiter, cost, _): &(usize, u64, bool)| self.pairs[*limiter].model.read(now, *cost);
        let readings: Vec<_> = charges.iter().map(read).collect();
        let admitted = charges
            .iter()
            .zip(&readings)
            .all(|((.., dry_run), reading)| *dry_run || reading.admitted);
        prop_assert_eq!(counted.admitted, admitted);
        prop_assert_eq!(counted.verdicts.len(), charges.len());
        for (((limiter, cost, _), verdict), expected) in charges.iter().zip(counted.verdicts).zip(readings) {
            let model = &mut self.pairs[*limiter].model;
            prop_assert_eq!(
                (verdict.admitted, verdict.hold, verdict.retry),
                (expected.admitted, expected.hold, expected.retry)
            );
            prop_assert_eq!(u128::from(verdict.limit), model.quota());
            prop_assert_eq!(
                verdict.receipt.is_some(),
                admitted && expected.admitted && *cost > 0
            );
            let Some(receipt) = verdict.receipt else {
                prop_assert_eq!(
                    (verdict.standing, verdict.refunded),
                    (expected.standing, expected.standing)
                );
                if *cost > 0 {
                    model.step_back(now);
                }
                continue;
            };
            let slip = model.charge(now, *cost);
            prop_assert_eq!(verdict.standing, model.read(now, 0).standing);
            let mut refunded = model.clone();
            refunded.refund(now, &slip);
            prop_assert_eq!(verdict.refunded, refunded.read(now, 0).standing);
            self.kept.push(Kept {
                limiter: *limiter,
                receipt,
                slip,
            });
        }
        Ok(())
    }

    fn settle(&mut self, indices: &[Index]) {
        let (mut owed, mut refunds) = (Vec::new(), Vec::new());
        for index in indices {
            if self.kept.is_empty() {
                break;
            }
            let kept = self.kept.remove(index.index(self.kept.len()));
            let Pair { key, model } = &mut self.pairs[kept.limiter];
            owed.push(self.desk.owed(*key, &model.spec, kept.receipt.clone()));
            refunds.push(Refund {
                rule: RuleId(0),
                key: *key,
                policy: model.spec.policy().unwrap(),
                receipt: kept.receipt,
                by: By::Memory,
            });
            model.refund(Micros(self.clock), &kept.slip);
        }
        if owed.is_empty() {
            return;
        }
        let now = self.desk.settle(&owed);
        assert_eq!(now, Micros(self.clock));
        if let Some((memory, _)) = &self.memory {
            memory.give_back(&refunds);
        }
    }

    /// A look changes nothing and tells the same.
    fn stands(&mut self) -> Result<(), TestCaseError> {
        let limiters: Vec<_> = self
            .pairs
            .iter()
            .map(|pair| (pair.key, &pair.model.spec))
            .collect();
        let standings = self.desk.look(&limiters);
        for (pair, standing) in self.pairs.iter().zip(standings) {
            prop_assert_eq!(standing, pair.model.read(Micros(self.clock), 0).standing);
        }
        Ok(())
    }
}

#[test]
fn the_answers_are_those_of_the_model_and_of_the_memory() {
    let desk = RefCell::new(Desk::on_a_clock());
    let config = Config {
        cases: std::env::var("PROPTEST_CASES").map_or(100, |cases| cases.parse().unwrap()),
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(
        &(prop::collection::vec(specs(), LIMITERS), steps()),
        |(specs, steps)| {
            let mut desk = desk.borrow_mut();
            let mut run = Run::new(&mut desk, &specs);
            steps.iter().try_for_each(|step| run.step(step))
        },
    );
    run.unwrap();
}
