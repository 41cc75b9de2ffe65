//! What a call asks of Redis, and a call that comes too late.

use super::super::call::Ask;
use super::super::recount::ReserveReply;
use super::{Desk, START};
use crate::clock::Micros;
use crate::limit::{Kind, Spec};
use crate::store::contract::{new_key, rule, timed};

#[test]
fn a_call_after_its_deadline_changes_nothing() {
    let mut desk = Desk::on_a_clock();
    for kind in timed() {
        let (key, spec) = (new_key(), rule(kind, 5));
        let ask: Ask = [desk.asked(key, &spec, 1)].into_iter().collect();
        let late = desk.reserve_by(Micros(START - 1), std::slice::from_ref(&ask));
        assert!(matches!(late, ReserveReply::Late { now } if now == Micros(START)));
        assert!(!desk.about::<bool>("EXISTS", key), "{kind:?}");
        let in_time = desk.reserve_by(Micros(START), &[ask]);
        assert!(matches!(in_time, ReserveReply::Decided { .. }), "{kind:?}");
        assert!(desk.about::<bool>("EXISTS", key), "{kind:?}");
    }
}

#[test]
fn each_key_is_read_once_and_written_once_however_many_ask() {
    let mut desk = Desk::new();
    for kind in timed() {
        let spec = rule(kind, 1_000);
        let keys = [new_key(), new_key()];
        let asks: Vec<Ask> = (0..120)
            .map(|n| [desk.asked(keys[n % 2], &spec, 1)].into_iter().collect())
            .collect();
        desk.reserve(&asks);
        desk.server.ask::<()>(&["CONFIG", "RESETSTAT"]);
        desk.reserve(&asks);
        let calls = |command: &str| desk.server.stat(command, "calls");
        let reads = calls("mget") + calls("getrange");
        let writes = calls("setrange") + calls("set");
        let expected = if kind == Kind::SlidingLog {
            (2.0, 2.0)
        } else {
            (1.0, 2.0)
        };
        assert_eq!((reads, writes), expected, "{kind:?}");
        assert_eq!((calls("time"), calls("evalsha")), (1.0, 1.0), "{kind:?}");
    }
}

#[test]
fn a_rejection_walks_half_of_a_log_at_most() {
    let mut desk = Desk::on_a_clock();
    let spec = rule(Kind::SlidingLog, 2_000);
    let key = new_key();
    for n in 0..2_000 {
        desk.set(START + n);
        desk.one(key, &spec, 1);
    }
    for (cost, limit) in [(1, 2_000), (1_000, 2_000), (2_000, 2_000), (1, 1), (1, 1_000)] {
        let spec = Spec {
            limit,
            ..spec.clone()
        };
        desk.server.ask::<()>(&["CONFIG", "RESETSTAT"]);
        let counted = desk.one(key, &spec, cost);
        assert!(!counted.admitted);
        let oldest = 2_000 - limit + cost;
        assert_eq!(
            counted.verdicts[0].retry,
            Some(Micros(START + oldest - 1 + 60_000_000))
        );
        let reads = desk.server.stat("getrange", "calls");
        assert!(reads <= 25.0, "{reads} for {cost} of {limit}");
    }
}
