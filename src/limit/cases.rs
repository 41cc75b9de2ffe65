//! What every algorithm must get right, case by case.

use crate::clock::Micros;

use super::bucket::Bucket;
use super::fixed_window::FixedWindow;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::trial::{START, Trial, Tried, spec};
use super::{Kind, Spec};

const SECOND: u64 = 1_000_000;

/// Runs a generic check for each algorithm.
macro_rules! every {
    ($check:ident) => {
        $check::<FixedWindow>(Kind::FixedWindow);
        $check::<SlidingLog>(Kind::SlidingLog);
        $check::<SlidingWindow>(Kind::SlidingWindow);
        $check::<Bucket>(Kind::TokenBucket);
        $check::<Bucket>(Kind::Gcra);
    };
}

/// A rule whose quota is `limit`, whatever the algorithm.
fn rule(kind: Kind, limit: u64, window: u64) -> Spec {
    let burst = (kind == Kind::Gcra).then_some(limit);
    Spec {
        burst,
        ..spec(kind, limit, window)
    }
}

#[test]
fn exactly_the_limit() {
    fn check<A: Tried>(kind: Kind) {
        for limit in [1, 2, 5, 1_000] {
            let mut trial = Trial::<A>::new(rule(kind, limit, 60 * SECOND));
            for left in (0..limit).rev() {
                let verdict = trial.ask(1);
                assert_eq!(
                    (verdict.admitted, verdict.standing.remaining),
                    (true, left),
                    "{kind:?}"
                );
            }
            let verdict = trial.ask(1);
            assert_eq!(
                (verdict.admitted, verdict.standing.remaining),
                (false, 0),
                "{kind:?}"
            );
        }
    }
    every!(check);
}

#[test]
fn rejections_are_not_counted() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 5, SECOND));
        let admitted: u64 = (0..200).map(|tick| trial.at(tick * 100_000).burst(1)).sum();
        // The blend of a sliding window rounds what is left of the last one up, and so lets fewer pass.
        assert!(
            (80..=105).contains(&admitted),
            "{kind:?} admitted {admitted} of 200 in 20 s"
        );
    }
    every!(check);
}

#[test]
fn costs_add_up() {
    fn check<A: Tried>(kind: Kind) {
        for (costs, admitted) in [
            (&[8, 1, 1, 1][..], &[true, true, true, false][..]),
            (&[1, 8, 1, 1], &[true, true, true, false]),
            (&[1, 1, 8, 1], &[true, true, true, false]),
            (&[5, 4, 2], &[true, true, false]),
            (&[2, 5, 4], &[true, true, false]),
            (&[9, 2, 1], &[true, false, true]),
            (&[8, 3, 2], &[true, false, true]),
            (&[10, 1], &[true, false]),
        ] {
            let mut trial = Trial::<A>::new(rule(kind, 10, 10 * SECOND));
            assert_eq!(trial.run(costs), admitted, "{kind:?} {costs:?}");
        }
    }
    every!(check);
}

#[test]
fn a_cost_above_the_limit_has_no_retry() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 10, 10 * SECOND));
        for cost in [11, 1_000, 1 << 42, i64::MAX.cast_unsigned(), u64::MAX] {
            let verdict = trial.ask(cost);
            assert_eq!((verdict.admitted, verdict.retry), (false, None), "{kind:?}");
            assert!(trial.state.is_none(), "{kind:?} charged a rejection");
        }
        assert_eq!(trial.run(&[1, 10, 9]), [true, false, true], "{kind:?}");
        assert_eq!(trial.ask(11).retry, None);
    }
    every!(check);
}

#[test]
fn idling_fills_up_and_not_beyond() {
    fn check<A: Tried>(kind: Kind) {
        for idle in [5 * 60, 13 * 3_600, 40 * 86_400, 3 * 365 * 86_400] {
            let mut trial = Trial::<A>::new(rule(kind, 10, 60 * SECOND));
            assert!(trial.ask(1).admitted);
            trial.at(idle * SECOND);
            assert_eq!(trial.ask(1).standing.remaining, 9, "{kind:?} after {idle} s");
            assert_eq!(trial.burst(20), 9, "{kind:?} after {idle} s");
        }
    }
    every!(check);
}

#[test]
fn large_limits_and_long_idling_do_not_overflow() {
    fn check<A: Tried>(kind: Kind) {
        let day = 86_400 * SECOND;
        let max = if kind == Kind::SlidingLog {
            10_000
        } else {
            (1 << 42) - 1
        };
        for (limit, window) in [
            (max.min(1_000_000), day),
            (max, day),
            (max, (1 << 42) - 24),
            (1, (1 << 42) - 24),
        ] {
            let mut trial = Trial::<A>::new(rule(kind, limit, window));
            for idle in [0, 102 * day, 3 * 365 * day] {
                let verdict = trial.at(idle).ask(limit);
                assert_eq!(
                    (verdict.admitted, verdict.standing.remaining),
                    (true, 0),
                    "{kind:?} {limit} after {idle}"
                );
                let part = trial.at(idle + window / 24 * 13).ask(0).standing.remaining;
                let drained = if kind.is_bucket() {
                    u128::from(limit) * 13 / 24
                } else {
                    0
                };
                assert!(
                    kind == Kind::SlidingWindow || u128::from(part).abs_diff(drained) <= 60,
                    "{kind:?} {limit}"
                );
            }
        }
    }
    every!(check);
}

#[test]
fn every_window_has_a_full_quota() {
    fn check<A: Tried>(kind: Kind) {
        let rounds = if kind == Kind::SlidingWindow { 2 } else { 1 };
        for window in [
            700_000,
            SECOND,
            1_500_000,
            10 * SECOND,
            61 * SECOND,
            3_600 * SECOND,
            86_400 * SECOND,
        ] {
            let mut trial = Trial::<A>::new(rule(kind, 7, window));
            for round in 0..3 {
                assert_eq!(
                    trial.at(round * rounds * window).burst(20),
                    7,
                    "{kind:?} {window} µs, {round}"
                );
            }
        }
    }
    every!(check);
}

#[test]
fn cost_zero_only_reads() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 3, 60 * SECOND));
        for used in 0..=3 {
            let state = format!("{:?}", trial.state);
            trial.clock += 1;
            let verdict = trial.ask(0);
            assert!(
                verdict.admitted && verdict.retry.is_none() && verdict.receipt.is_none(),
                "{kind:?}"
            );
            assert_eq!(verdict.standing.remaining, 3 - used, "{kind:?}");
            assert_eq!(verdict.standing, verdict.refunded, "{kind:?}");
            assert_eq!(format!("{:?}", trial.state), state, "{kind:?} wrote");
            assert_eq!(trial.ask(1).admitted, used < 3, "{kind:?}");
        }
    }
    every!(check);
}

#[test]
fn a_lowered_limit_still_says_when() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 100, 60 * SECOND));
        for tick in 0..80 {
            assert!(trial.at(tick * SECOND / 2).ask(1).admitted, "{kind:?}");
        }
        trial.at(40 * SECOND).spec = rule(kind, 10, 60 * SECOND);
        if trial.admits_at(trial.clock, 1) {
            assert!(trial.spec.kind.is_bucket(), "{kind:?} forgot what was used");
            return;
        }
        let verdict = trial.ask(1);
        assert_eq!((verdict.limit, verdict.standing.remaining), (10, 0), "{kind:?}");
        let Micros(retry) = verdict.retry.unwrap();
        assert!(
            (trial.clock + 1..=trial.clock + 120 * SECOND).contains(&retry),
            "{kind:?}"
        );
        assert!(
            trial.admits_at(retry, 1) && !trial.admits_at(retry - 1, 1),
            "{kind:?}"
        );
        if kind == Kind::SlidingLog {
            assert_eq!(
                retry,
                START + 70 * SECOND / 2 + 60 * SECOND,
                "when the 71st entry leaves"
            );
        }
    }
    every!(check);
}

#[test]
fn a_raised_limit_acts_at_once() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 5, 60 * SECOND));
        assert_eq!(trial.burst(6), 5);
        trial.spec = rule(kind, 50, 60 * SECOND);
        assert_eq!(trial.ask(0).standing.remaining, 45, "{kind:?}");
        assert_eq!(trial.burst(200), 45, "{kind:?}");
    }
    every!(check);
}

#[test]
fn a_clock_set_back_costs_at_most_a_window() {
    fn check<A: Tried>(kind: Kind) {
        for back in [61, 120, 2 * 86_400] {
            let mut trial = Trial::<A>::new(rule(kind, 5, 60 * SECOND));
            trial.at(30 * SECOND).burst(5);
            trial.clock -= back * SECOND;
            let verdict = trial.ask(1);
            assert!(!verdict.admitted, "{kind:?} gave quota for a step of the clock");
            let Micros(retry) = verdict.retry.unwrap();
            let most = if kind == Kind::SlidingWindow { 2 } else { 1 };
            assert!(
                retry <= trial.clock + most * 60 * SECOND,
                "{kind:?} waits {}",
                retry - trial.clock
            );
            trial.clock = retry;
            assert!(trial.ask(1).admitted, "{kind:?}");
        }
    }
    every!(check);
}

#[test]
fn a_late_refund_gives_nothing() {
    fn check<A: Tried>(kind: Kind) {
        let mut trial = Trial::<A>::new(rule(kind, 10, 2 * SECOND));
        let receipt = trial.ask(4).receipt.unwrap();
        trial.at(6 * SECOND);
        assert_eq!(trial.burst(5), 5);
        trial.refund(&receipt);
        assert_eq!(trial.used(), 5, "{kind:?} took another's charge back");
        assert_eq!(trial.burst(20), 5, "{kind:?}");
    }
    every!(check);
}

#[test]
fn a_step_of_a_window_is_no_fault_of_the_clock() {
    fn check<A: Tried>(kind: Kind) {
        let window = 60 * SECOND;
        let mut trial = Trial::<A>::new(rule(kind, 5, window));
        let full = trial.ask(5).standing.full.unwrap();
        assert_eq!(trial.standing_at(START - window).full, Some(full), "{kind:?}");
        assert_eq!(
            trial.standing_at(START - window - 1).full,
            Some(Micros(full.0 - window - 1)),
            "{kind:?}"
        );
    }
    check::<FixedWindow>(Kind::FixedWindow);
    check::<SlidingLog>(Kind::SlidingLog);
    check::<Bucket>(Kind::TokenBucket);
    check::<Bucket>(Kind::Gcra);

    // Sub-windows move by whole ones.
    let mut trial = Trial::<SlidingWindow>::new(rule(Kind::SlidingWindow, 5, 60 * SECOND));
    let full = trial.ask(5).standing.full.unwrap();
    assert_eq!(trial.standing_at(START - 60 * SECOND).full, Some(full));
    assert_eq!(
        trial.standing_at(START - 60 * SECOND - 1).full,
        Some(Micros(full.0 - 120 * SECOND))
    );
}
