//! Several threads at once.

use tollgate::rules::Charge;
use tollgate::store::Store;

use super::{Fixture, charge, new_key, refunds, rule, table};

/// Runs `work` in four threads at once and adds up what it counts.
fn race(work: impl Fn(usize) -> usize + Sync) -> usize {
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| {
            scope.spawn({
                let work = &work;
                move || work(thread)
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

pub(crate) fn a_race_for_one_key_admits_the_limit<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let charges = [charge(&rule(kind, 100), new_key())];
        let admitted = race(|_| (0..200).filter(|_| fixture.admits(&charges)).count());
        assert_eq!(admitted, 100, "{kind:?}");
    }
}

pub(crate) fn a_race_for_crossed_keys_admits_the_limit<F: Fixture>(fixture: &F) {
    let keys: Vec<Charge> = F::KINDS
        .iter()
        .map(|kind| charge(&rule(*kind, 100), new_key()))
        .collect();
    let mut turned = keys.clone();
    turned.reverse();
    let admitted = race(|thread| {
        let charges = if thread % 2 == 0 { &keys } else { &turned };
        (0..200).filter(|_| fixture.admits(charges)).count()
    });
    assert_eq!(admitted, 100);
    for one in keys {
        let free = Charge { cost: 0, ..one };
        assert_eq!(fixture.reserve(&[free]).rulings[0].verdict.standing.remaining, 0);
    }
}

pub(crate) fn a_race_with_refunds_admits_the_limit<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let charges = [
            charge(&rule(kind, 50), new_key()),
            charge(&rule(kind, 60), new_key()),
        ];
        let kept = race(|thread| {
            let mut kept = 0;
            for round in 0..100 {
                let reserved = fixture.reserve(&charges);
                if reserved.admitted && (round + thread) % 3 == 0 {
                    fixture.store().refund(table(), &refunds(&charges, &reserved));
                } else {
                    kept += usize::from(reserved.admitted);
                }
            }
            kept
        });
        fixture.settle();
        let rest = (0..100).filter(|_| fixture.admits(&charges)).count();
        assert_eq!(kept + rest, 50, "{kind:?}: all that was given back, and no more");
    }
}
