//! One client at a time.

use tollgate::clock::Micros;
use tollgate::limit::{Kind, Spec};
use tollgate::rules::Charge;
use tollgate::store::{By, Store};

use super::{Fixture, charge, new_key, refunds, rule, ruled, table, timed};

pub(crate) fn exactly_the_limit<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let charges = [charge(&rule(kind, 5), new_key())];
        for left in (0..5).rev() {
            let reserved = fixture.reserve(&charges);
            let ruling = &reserved.rulings[0];
            assert!(
                reserved.admitted && ruling.verdict.admitted && ruling.by != By::Overflow,
                "{kind:?}"
            );
            assert_eq!(
                (ruling.key, ruling.verdict.standing.remaining),
                (charges[0].key, left),
                "{kind:?}"
            );
        }
        let reserved = fixture.reserve(&charges);
        assert!(
            !reserved.admitted && !reserved.rulings[0].verdict.admitted,
            "{kind:?}"
        );
        assert!(
            reserved.rulings[0].verdict.retry.unwrap() > ruled(&reserved),
            "{kind:?}"
        );
        assert!(reserved.rulings[0].verdict.receipt.is_none(), "{kind:?}");
    }
}

pub(crate) fn rejected_here_is_charged_nowhere<F: Fixture>(fixture: &F) {
    for (wide, narrow) in F::KINDS
        .iter()
        .flat_map(|kind| F::KINDS.iter().map(|other| (*kind, *other)))
    {
        let group = charge(&rule(wide, 10), new_key());
        let special = [group.clone(), charge(&rule(narrow, 3), new_key())];
        let admitted = (0..5).filter(|_| fixture.admits(&special)).count();
        assert_eq!(admitted, 3, "{wide:?} {narrow:?}");
        let reserved = fixture.reserve(&special);
        let [group_ruling, special_ruling] = &reserved.rulings[..] else {
            panic!("a ruling for each charge")
        };
        assert!(group_ruling.verdict.admitted && !special_ruling.verdict.admitted);
        assert_eq!(
            group_ruling.verdict.standing.remaining, 7,
            "{wide:?}: what it has without the charge"
        );
        assert_eq!(group_ruling.verdict.standing, group_ruling.verdict.refunded);
        assert!(group_ruling.verdict.receipt.is_none());
        let group = [group];
        assert_eq!(
            (0..20).filter(|_| fixture.admits(&group)).count(),
            7,
            "{wide:?} {narrow:?}"
        );
    }
    // Fifty that never fit leave room for what does.
    let spec = Spec {
        cost: 60,
        ..rule(Kind::FixedWindow, 100)
    };
    let key = new_key();
    let charges = [charge(&spec, key)];
    assert_eq!((0..50).filter(|_| fixture.admits(&charges)).count(), 1);
    assert!(fixture.admits(&[charge(&Spec { cost: 40, ..spec }, key)]));
}

pub(crate) fn one_key_asked_twice_is_asked_for_the_sum<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let one = charge(&rule(kind, 5), new_key());
        let twice = [one.clone(), one.clone()];
        let admitted = (0..5).filter(|_| fixture.admits(&twice)).count();
        assert_eq!(admitted, 2, "{kind:?}");
        assert!(
            fixture.admits(std::slice::from_ref(&one)) && !fixture.admits(&[one]),
            "{kind:?}"
        );
    }
}

pub(crate) fn a_dry_run_rejects_nothing<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let dry = Charge {
            dry_run: true,
            ..charge(&rule(kind, 2), new_key())
        };
        let charges = [dry.clone(), charge(&rule(kind, 4), new_key())];
        for round in 0..6 {
            let reserved = fixture.reserve(&charges);
            assert_eq!(reserved.admitted, round < 4, "{kind:?}");
            let verdict = &reserved.rulings[0].verdict;
            assert_eq!(verdict.admitted, round < 2, "{kind:?}");
            assert_eq!(verdict.receipt.is_some(), round < 2, "{kind:?}");
            assert_eq!(verdict.retry.is_some(), round >= 2, "{kind:?}");
        }
        // Not charged where the request is rejected, though it has room.
        let roomy = Charge {
            dry_run: true,
            ..charge(&rule(kind, 2), new_key())
        };
        assert!(!fixture.admits(&[roomy.clone(), charges[1].clone()]));
        assert_eq!(
            fixture.reserve(&[roomy]).rulings[0].verdict.standing.remaining,
            1,
            "{kind:?}"
        );
    }
}

pub(crate) fn cost_zero_reads<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let key = new_key();
        let (free, paid) = (
            [charge(
                &Spec {
                    cost: 0,
                    ..rule(kind, 2)
                },
                key,
            )],
            [charge(&rule(kind, 2), key)],
        );
        for left in [2, 1, 0] {
            for _ in 0..2 {
                let reserved = fixture.reserve(&free);
                let verdict = &reserved.rulings[0].verdict;
                assert!(
                    reserved.admitted && verdict.admitted && verdict.receipt.is_none(),
                    "{kind:?}"
                );
                assert_eq!(verdict.standing.remaining, left, "{kind:?}");
            }
            assert_eq!(fixture.admits(&paid), left > 0, "{kind:?}");
        }
    }
}

pub(crate) fn a_refund_gives_back_what_was_charged<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let spec = Spec {
            cost: 3,
            ..rule(kind, 10)
        };
        let charges = [charge(&spec, new_key()), charge(&spec, new_key())];
        let reserved = fixture.reserve(&charges);
        fixture.give_back(&charges, &reserved);
        let again = fixture.reserve(&charges);
        for ruling in &again.rulings {
            assert_eq!(ruling.verdict.standing.remaining, 7, "{kind:?}");
            assert_eq!(ruling.verdict.refunded.remaining, 10, "{kind:?}");
        }
        if !kind.has_window() {
            continue;
        }
        // A receipt that comes late takes nothing that it did not charge.
        fixture.pass(Micros::from_secs(180));
        assert!(fixture.admits(&charges), "{kind:?}");
        fixture.give_back(&charges, &again);
        assert_eq!(
            fixture.reserve(&charges).rulings[0].verdict.standing.remaining,
            4,
            "{kind:?}"
        );
    }
}

pub(crate) fn a_refund_of_an_unknown_key_does_nothing<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let charges = [charge(&rule(kind, 5), new_key())];
        let mut refunds = refunds(&charges, &fixture.reserve(&charges));
        let other = charge(&rule(kind, 5), new_key());
        refunds[0].key = other.key;
        fixture.store().refund(table(), &refunds);
        fixture.settle();
        assert_eq!(
            fixture.reserve(&[other]).rulings[0].verdict.standing.remaining,
            4,
            "{kind:?}"
        );
        assert_eq!(
            fixture.reserve(&charges).rulings[0].verdict.standing.remaining,
            3,
            "{kind:?}"
        );
    }
}

pub(crate) fn a_window_ends<F: Fixture>(fixture: &F) {
    for kind in timed() {
        let charges = [charge(&rule(kind, 3), new_key())];
        for _ in 0..3 {
            assert_eq!((0..5).filter(|_| fixture.admits(&charges)).count(), 3, "{kind:?}");
            let windows = if kind == Kind::SlidingWindow { 2 } else { 1 };
            fixture.pass(Micros::from_secs(60 * windows));
        }
    }
}

pub(crate) fn a_changed_limit_acts_at_once<F: Fixture>(fixture: &F) {
    for kind in F::KINDS.iter().copied() {
        let key = new_key();
        let with = |limit| [charge(&rule(kind, limit), key)];
        assert_eq!((0..9).filter(|_| fixture.admits(&with(5))).count(), 5, "{kind:?}");
        let raised = fixture.reserve(&with(50));
        assert_eq!(
            (
                raised.rulings[0].verdict.limit,
                raised.rulings[0].verdict.standing.remaining
            ),
            (50, 44)
        );
        let lowered = fixture.reserve(&with(4));
        let verdict = &lowered.rulings[0].verdict;
        assert_eq!(
            (lowered.admitted, verdict.limit, verdict.standing.remaining),
            (false, 4, 0),
            "{kind:?}"
        );
        let retry = verdict.retry.unwrap();
        assert!(
            retry > ruled(&lowered) && retry <= ruled(&lowered).plus(Micros::from_secs(120)),
            "{kind:?}"
        );
        if !kind.has_window() {
            continue;
        }
        fixture.pass(retry.since(ruled(&lowered)));
        assert!(fixture.admits(&with(4)), "{kind:?}");
    }
}

pub(crate) fn what_is_in_flight_stays_until_it_is_released<F: Fixture>(fixture: &F) {
    let key = new_key();
    let with = |limit| [charge(&rule(Kind::Concurrency, limit), key)];
    let other = [charge(&rule(Kind::FixedWindow, 1), new_key()), with(3)[0].clone()];
    let flights = [0; 3].map(|_| fixture.reserve(&with(3)));
    fixture.pass(Micros::from_secs(86_400));
    let refused = fixture.reserve(&with(3));
    let verdict = &refused.rulings[0].verdict;
    assert!(!refused.admitted);
    assert_eq!((verdict.standing.next, verdict.standing.full), (None, None));
    assert_eq!(verdict.retry, Some(ruled(&refused).plus(Micros::SECOND)));
    // All or nothing: what another limiter refuses is not in flight.
    fixture.give_back(&with(3), &flights[0]);
    assert!(fixture.admits(&other[..1]) && !fixture.admits(&other));
    let again = fixture.reserve(&with(3));
    assert!(again.admitted && !fixture.admits(&with(3)));
    // A lowered limit acts at once, and releases of what was admitted before go to the same count.
    fixture.give_back(&with(3), &flights[1]);
    assert!(!fixture.admits(&with(2)));
    fixture.give_back(&with(1), &flights[2]);
    assert!(!fixture.admits(&with(1)) && fixture.admits(&with(2)));
}

pub(crate) fn a_queue_tells_each_request_its_slot<F: Fixture>(fixture: &F) {
    // One in 100 ms, and two may wait.
    let spec = Spec {
        limit: 600,
        burst: Some(1),
        queue: Some(Micros::from_millis(250)),
        ..rule(Kind::Gcra, 1)
    };
    let charges = [charge(&spec, new_key())];
    let millis = |length: Micros| length.0 / 1_000;
    let mut holds = Vec::new();
    let admitted = [0; 3].map(|_| {
        let reserved = fixture.reserve(&charges);
        holds.push(millis(reserved.rulings[0].verdict.hold));
        assert!(reserved.admitted);
        reserved
    });
    assert_eq!(holds, [0, 100, 200]);
    let refused = fixture.reserve(&charges);
    let verdict = &refused.rulings[0].verdict;
    assert!(!refused.admitted);
    assert_eq!(
        verdict.retry.map(|retry| millis(retry.since(ruled(&refused)))),
        Some(50)
    );
    // The one in the middle cannot give its slot to another, the last one can.
    fixture.give_back(&charges, &admitted[1]);
    assert!(!fixture.admits(&charges));
    fixture.give_back(&charges, &admitted[2]);
    assert_eq!(millis(fixture.reserve(&charges).rulings[0].verdict.hold), 200);
    assert!(!fixture.admits(&charges));
}
