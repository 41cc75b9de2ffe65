//! Random requests on several limiters, beside the plain model.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use tollgate::clock::Micros;
use tollgate::identity::LimitKey;
use tollgate::limit::{Receipt, Spec};
use tollgate::rules::{Charge, RuleId};
use tollgate::store::{By, Refund, Store};

use super::{Fixture, charge, new_key, rule, ruled, table};
use crate::limit::model::{Model, Slip};

/// A charge that was not given back: the limiter, the proof of who charged it, and the model's.
type Kept = (usize, (Receipt, By), Slip);

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    /// Charges these of the four limiters, at these costs, some as dry runs.
    Reserve(Vec<(usize, u64, bool)>),
    Refund(Index),
    Limit(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let asked = prop::collection::vec((0_usize..4, 0_u64..4, prop::bool::weighted(0.2)), 1..4);
    let step = prop_oneof![
        2 => (0_u64..30_000_000).prop_map(Step::Pass),
        1 => (0_u64..200_000_000).prop_map(Step::Pass),
        8 => asked.prop_map(|mut asked| {
            asked.sort_unstable_by_key(|(limiter, ..)| *limiter);
            asked.dedup_by_key(|(limiter, ..)| *limiter);
            Step::Reserve(asked)
        }),
        3 => any::<Index>().prop_map(Step::Refund),
        1 => (0_usize..4, 1_u64..12).prop_map(|(limiter, limit)| Step::Limit(limiter, limit)),
    ];
    prop::collection::vec(step, 1..60)
}

/// One limiter beside its model.
struct Pair {
    key: LimitKey,
    model: Model,
}

pub(crate) fn the_answers_are_those_of_the_model<F: Fixture>(fixture: &F) {
    let specs = prop::collection::vec((prop::sample::select(F::KINDS), 1_u64..12, 1_u64..4), 4);
    let config = Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&(specs, steps()), |(specs, steps)| {
        let pair = |(kind, limit, precision)| Pair {
            key: new_key(),
            model: Model::new(Spec {
                precision,
                ..rule(kind, limit)
            }),
        };
        agrees(fixture, specs.into_iter().map(pair).collect(), &steps)
    });
    run.unwrap();
}

fn agrees<F: Fixture>(fixture: &F, mut pairs: Vec<Pair>, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut kept: Vec<Kept> = Vec::new();
    for step in steps {
        match step {
            Step::Pass(micros) => fixture.pass(Micros(*micros)),
            Step::Limit(limiter, limit) => {
                let spec = &mut pairs[*limiter].model.spec;
                *spec = Spec {
                    precision: spec.precision,
                    ..rule(spec.kind, *limit)
                };
            }
            Step::Reserve(asked) => kept.append(&mut reserve(fixture, &mut pairs, asked)?),
            Step::Refund(index) if !kept.is_empty() => {
                let (limiter, (receipt, by), slip) = kept.remove(index.index(kept.len()));
                let Pair { key, model } = &mut pairs[limiter];
                let now = fixture.now();
                let refund = Refund {
                    rule: RuleId(0),
                    key: *key,
                    policy: Spec {
                        cost: 1,
                        ..model.spec.clone()
                    }
                    .policy()
                    .unwrap(),
                    receipt,
                    by,
                };
                fixture.store().refund(table(), &[refund]);
                fixture.settle();
                model.refund(now, &slip);
            }
            Step::Refund(_) => {}
        }
    }
    Ok(())
}

/// Decides with store and models, and compares; returns what was charged.
fn reserve<F: Fixture>(
    fixture: &F,
    pairs: &mut [Pair],
    asked: &[(usize, u64, bool)],
) -> Result<Vec<Kept>, TestCaseError> {
    let charges: Vec<Charge> = asked
        .iter()
        .map(|(limiter, cost, dry_run)| {
            let Pair { key, model } = &pairs[*limiter];
            Charge {
                cost: *cost,
                dry_run: *dry_run,
                ..charge(
                    &Spec {
                        cost: 0,
                        ..model.spec.clone()
                    },
                    *key,
                )
            }
        })
        .collect();
    let reserved = fixture.reserve(&charges);
    let now = ruled(&reserved);
    let room: Vec<bool> = asked
        .iter()
        .map(|(limiter, cost, _)| pairs[*limiter].model.read(now, *cost).admitted)
        .collect();
    let admitted = asked
        .iter()
        .zip(&room)
        .all(|((.., dry_run), room)| *dry_run || *room);
    prop_assert_eq!(reserved.admitted, admitted);
    prop_assert_eq!(reserved.rulings.len(), asked.len());
    let mut kept = Vec::new();
    for (((limiter, cost, _), ruling), room) in asked.iter().zip(&reserved.rulings).zip(room) {
        let Pair { key, model } = &mut pairs[*limiter];
        let (verdict, expected) = (&ruling.verdict, model.read(now, *cost));
        prop_assert_eq!((ruling.key, ruling.by == By::Overflow), (*key, false));
        prop_assert_eq!((verdict.admitted, verdict.retry), (room, expected.retry));
        prop_assert_eq!(u128::from(verdict.limit), model.quota());
        let charged = admitted && room && *cost > 0;
        prop_assert_eq!(verdict.receipt.is_some(), charged);
        let Some(receipt) = verdict.receipt.clone() else {
            prop_assert_eq!(
                (verdict.standing, verdict.refunded),
                (expected.standing, expected.standing)
            );
            continue;
        };
        let slip = model.charge(now, *cost);
        prop_assert_eq!(verdict.standing, model.read(now, 0).standing);
        let mut refunded = model.clone();
        refunded.refund(now, &slip);
        prop_assert_eq!(verdict.refunded, refunded.read(now, 0).standing);
        kept.push((*limiter, (receipt, ruling.by), slip));
    }
    Ok(kept)
}
