//! Keys that no script has left so, expiries, and a server that cannot be written to.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{ConnectionLike, cmd};

use super::super::call::{Ask, reserve_command};
use super::{Desk, Redis, START};
use crate::clock::{Clock, Micros};
use crate::identity::LimitKey;
use crate::limit::{Kind, Spec, Standing};
use crate::rules::Charge;
use crate::store::contract::{charge, new_key, rule, timed};
use crate::store::memory::{Memory, Settings};

/// The window of [`rule`].
const WINDOW: u64 = 60_000_000;

/// A state that the scripts wrote, as a key of each algorithm has it.
fn written(desk: &mut Desk) -> Vec<Vec<u8>> {
    let mut state = |spec: &Spec| {
        let key = new_key();
        assert!(desk.one(key, spec, 2).admitted);
        desk.about::<Vec<u8>>("GET", key)
    };
    let mut states: Vec<_> = timed().map(|kind| state(&rule(kind, 5))).collect();
    // As long as a log of one entry.
    states.push(state(&Spec {
        precision: 5,
        ..rule(Kind::SlidingWindow, 5)
    }));
    states
}

/// The key is without a state: a caller has the whole quota, and leaves a state that counts and expires.
#[track_caller]
fn starts_afresh(desk: &mut Desk, key: LimitKey, spec: &Spec) {
    let first = desk.one(key, spec, 3);
    assert!(first.admitted, "{spec:?}");
    assert_eq!(first.verdicts[0].standing.remaining, 2, "{spec:?}");
    assert!(!desk.one(key, spec, 3).admitted, "{spec:?}");
    assert_eq!(
        desk.one(key, spec, 2).verdicts[0].standing.remaining,
        0,
        "{spec:?}"
    );
    assert!(desk.about::<i64>("PTTL", key) > 0, "{spec:?}");
}

#[test]
fn what_is_no_state_of_the_algorithm_is_written_over() {
    let mut desk = Desk::on_a_clock();
    let mut planted = written(&mut desk);
    planted.extend([0, 1, 15, 16, 17, 20, 31, 32, 43, 44, 48, 56, 300].map(|length| vec![0xff; length]));
    planted.push(b"12".to_vec());
    for kind in timed() {
        let spec = rule(kind, 5);
        let own = {
            let key = new_key();
            desk.one(key, &spec, 2);
            desk.about::<Vec<u8>>("GET", key)
        };
        for state in planted.iter().filter(|state| **state != own) {
            // The two buckets have one layout.
            if kind.is_bucket() && state.len() == own.len() && state[0] != 0xff {
                continue;
            }
            let key = new_key();
            let name = desk.name(key);
            cmd("SET")
                .arg(name.bytes())
                .arg(state)
                .exec(&mut desk.link)
                .unwrap();
            starts_afresh(&mut desk, key, &spec);
        }
    }
}

#[test]
fn a_key_of_another_type_is_written_over() {
    let mut desk = Desk::on_a_clock();
    for kind in timed() {
        for plant in [
            &["RPUSH", "1"][..],
            &["HSET", "1", "1"],
            &["SADD", "1"],
            &["ZADD", "1", "1"],
            &["XADD", "*", "1", "1"],
        ] {
            let key = new_key();
            let name = desk.name(key);
            cmd(plant[0])
                .arg(name.bytes())
                .arg(&plant[1..])
                .exec(&mut desk.link)
                .unwrap();
            starts_afresh(&mut desk, key, &rule(kind, 5));
        }
    }
}

#[test]
fn a_log_whose_head_is_not_that_of_its_entries_is_written_over() {
    let mut desk = Desk::on_a_clock();
    let spec = rule(Kind::SlidingLog, 5);
    let key = new_key();
    for _ in 0..3 {
        desk.one(key, &spec, 1);
        desk.set(START + 1);
    }
    let log: Vec<u8> = desk.about("GET", key);
    assert_eq!(log.len(), 32 + 2 * 12);
    let head = |first: u32, count: u32| {
        let mut log = log.clone();
        log[..8].copy_from_slice(&[first.to_be_bytes(), count.to_be_bytes()].concat());
        log
    };
    let planted = [
        head(2, 2),
        head(u32::MAX, 2),
        head(0, 0),
        head(0, 3),
        head(0, u32::MAX),
        log[..44].to_vec(),
        log[..55].to_vec(),
    ];
    for log in planted {
        let key = new_key();
        let name = desk.name(key);
        cmd("SET")
            .arg(name.bytes())
            .arg(log)
            .exec(&mut desk.link)
            .unwrap();
        starts_afresh(&mut desk, key, &spec);
    }
}

/// Bytes as somebody else may have left them, of the lengths that states have.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        0_u64..70,
        Just(START / WINDOW),
        START - 2 * WINDOW..START + 3 * WINDOW,
        0..1_u64 << 53,
        any::<u64>(),
    ];
    let length = prop::sample::select(&[16_usize, 20, 48, 44][..]);
    (prop::collection::vec(number, 6), length).prop_map(|(numbers, length)| {
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.truncate(length);
        bytes
    })
}

#[test]
fn whatever_a_key_holds_script_and_gateway_count_the_same_from_it() {
    let desk = RefCell::new(Desk::on_a_clock());
    let kinds: Vec<Kind> = timed().collect();
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let run = TestRunner::new(config).run(&(prop::sample::select(kinds), bytes()), |(kind, bytes)| {
        let mut desk = desk.borrow_mut();
        let (key, spec) = (new_key(), rule(kind, 5));
        let name = desk.name(key);
        cmd("SET")
            .arg(name.bytes())
            .arg(bytes)
            .exec(&mut desk.link)
            .unwrap();
        for windows in 0..4 {
            desk.set(START + windows * WINDOW);
            let counted = desk.one(key, &spec, 1);
            if let Some(receipt) = counted.verdicts[0].receipt.clone() {
                let owed = desk.owed(key, &spec, receipt);
                desk.settle(&[owed]);
            }
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn a_key_whose_expiry_was_taken_away_has_one_in_its_next_window() {
    let mut desk = Desk::on_a_clock();
    for kind in timed() {
        let (key, spec) = (new_key(), rule(kind, 5));
        desk.set(START);
        desk.one(key, &spec, 5);
        assert!(desk.about::<bool>("PERSIST", key), "{kind:?}");
        assert!(!desk.one(key, &spec, 1).admitted, "{kind:?}");
        // Stored times alone end the window.
        desk.set(START + 2 * WINDOW);
        assert!(desk.one(key, &spec, 5).admitted, "{kind:?}");
        assert!(desk.about::<i64>("PTTL", key) > 0, "{kind:?}");
    }
}

#[test]
fn a_key_expires_when_it_says_nothing_any_more() {
    let mut desk = Desk::on_a_clock();
    let mut expiry = |at: u64, key: LimitKey, spec: &Spec| {
        desk.set(START + at);
        assert!(desk.one(key, spec, 1).admitted);
        desk.about::<u64>("PEXPIRETIME", key) - START / 1_000
    };
    // The end of the window, rounded up to what Redis counts in; charges in it move nothing.
    let (key, spec) = (new_key(), rule(Kind::FixedWindow, 5));
    assert_eq!(expiry(1, key, &spec), 60_001);
    assert_eq!(expiry(59_999_999, key, &spec), 60_001);
    assert_eq!(expiry(60_000_001, key, &spec), 120_001);
    // When the newest sub-window has left the window: three of 20 s, and the one that fades.
    let spec = Spec {
        precision: 3,
        ..rule(Kind::SlidingWindow, 5)
    };
    let key = new_key();
    assert_eq!(expiry(1, key, &spec), 80_000);
    assert_eq!(expiry(19_999_999, key, &spec), 80_000);
    assert_eq!(expiry(20_000_000, key, &spec), 100_000);
    // When the debt is paid, rounded up to a second: 12 s for each unit.
    for kind in [Kind::TokenBucket, Kind::Gcra] {
        let (key, spec) = (new_key(), rule(kind, 5));
        assert_eq!(expiry(1, key, &spec), 13_000);
        assert_eq!(expiry(500_000, key, &spec), 25_000);
    }
    // Two windows after an entry, told anew when that is less than one.
    let (key, spec) = (new_key(), rule(Kind::SlidingLog, 5));
    assert_eq!(expiry(1, key, &spec), 120_001);
    assert_eq!(expiry(60_000_000, key, &spec), 120_001);
    assert_eq!(expiry(60_000_002, key, &spec), 180_001);
}

#[test]
fn a_log_holds_what_counts_and_half_of_it_again() {
    let mut desk = Desk::on_a_clock();
    let clock = Clock::manual(Micros(START));
    let memory = Memory::new(Settings { max_keys: 10 }, clock.clone());
    let (key, spec) = (new_key(), rule(Kind::SlidingLog, 40));
    let mut longest = 0;
    // One a second and a half, of which a window holds 40.
    for step in 0..400 {
        let now = START + step * 1_500_000 - (step % 3) * 7;
        desk.set(now);
        clock.set(Micros(now));
        for cost in [0, 1, 40] {
            let counted = desk.one(key, &spec, cost);
            let charge = Charge {
                cost,
                ..charge(&spec, key)
            };
            assert_eq!(memory.decide(&[charge]).rulings[0].verdict, counted.verdicts[0]);
        }
        longest = longest.max(desk.about::<usize>("STRLEN", key));
    }
    assert!(longest > 32 + 12 * 40, "{longest}");
    assert!(longest <= 32 + 12 * 82, "{longest}");
}

#[test]
fn a_replica_has_what_the_scripts_wrote_and_decides_nothing() {
    let mut desk = Desk::new();
    let replica = replica_of(&desk);
    let mut specs: Vec<_> = timed().map(|kind| rule(kind, 40)).collect();
    for spec in &mut specs {
        spec.window = Some(Micros::from_secs(3_600));
    }
    let keys: Vec<_> = specs.iter().map(|_| new_key()).collect();
    for _ in 0..5 {
        for (key, spec) in keys.iter().zip(&specs) {
            let counted = desk.one(*key, spec, 3);
            let receipt = counted.verdicts[0].receipt.clone().unwrap();
            desk.one(*key, spec, 2);
            let owed = desk.owed(*key, spec, receipt);
            desk.settle(&[owed]);
        }
    }
    assert_eq!(desk.server.ask::<u64>(&["WAIT", "1", "10000"]), 1);
    let primary = std::mem::replace(&mut desk.link, replica.connect());
    let here: Vec<Stored> = keys.iter().map(|key| stored(&mut desk, *key)).collect();
    // A look may ask a replica, and finds there what it finds here.
    for script in desk.scripts.all() {
        let load = cmd("SCRIPT")
            .arg("LOAD")
            .arg(script.source())
            .exec(&mut desk.link);
        load.unwrap();
    }
    let limiters: Vec<_> = keys.iter().copied().zip(&specs).collect();
    let remaining = |standings: Vec<Standing>| -> Vec<u64> {
        standings.iter().map(|standing| standing.remaining).collect()
    };
    let looked = remaining(desk.look(&limiters));
    let ask: Ask = [desk.asked(keys[0], &specs[0], 1)].into_iter().collect();
    let mut command = Vec::new();
    reserve_command(&mut command, &desk.scripts.reserve, Micros(1 << 53), &[&ask]);
    let refused = desk.link.req_packed_command(&command);
    assert!(format!("{refused:?}").contains("READONLY"), "{refused:?}");
    desk.link = primary;
    assert_eq!(looked, remaining(desk.look(&limiters)));
    let there: Vec<Stored> = keys.iter().map(|key| stored(&mut desk, *key)).collect();
    assert_eq!(here, there);
}

/// The bytes and the expiry of a key.
type Stored = (Vec<u8>, i64);

fn stored(desk: &mut Desk, key: LimitKey) -> Stored {
    let stored: Stored = (desk.about("GET", key), desk.about("PEXPIRETIME", key));
    assert!(stored.1 > 0);
    stored
}

/// A replica of the desk's server that has caught up.
fn replica_of(desk: &Desk) -> Redis {
    let port = desk.server.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    for _ in 0..2_000 {
        let info: String = replica.ask(&["INFO", "replication"]);
        if info.contains("master_link_status:up") {
            return replica;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the replica does not catch up")
}

#[test]
fn without_memory_nothing_is_charged() {
    let mut desk = Desk::on_a_clock();
    let specs: Vec<_> = timed().map(|kind| rule(kind, 5)).collect();
    let keys: Vec<_> = specs.iter().map(|_| new_key()).collect();
    let ask: Ask = keys
        .iter()
        .zip(&specs)
        .map(|(key, spec)| desk.asked(*key, spec, 1))
        .collect();
    let mut command = Vec::new();
    reserve_command(&mut command, &desk.scripts.reserve, Micros(1 << 53), &[&ask]);
    desk.server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = desk.link.req_packed_command(&command);
    assert!(format!("{refused:?}").contains("OOM"), "{refused:?}");
    desk.server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    for key in keys {
        assert!(!desk.about::<bool>("EXISTS", key));
    }
}
