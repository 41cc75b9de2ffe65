//! The store contract, and what only the memory store does: its bound, its overflow keys, its sweeps.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::{Memory, Settings};
use crate::clock::{Clock, Micros};
use crate::limit::{Kind, Spec};
use crate::rules::Charge;
use crate::store::contract::{Fixture, charge, new_key, refunds, rule, store_contract, timed};
use crate::store::{By, Reserved};

struct Bench {
    memory: Memory,
    clock: Clock,
}

impl Bench {
    fn new(max_keys: usize) -> Self {
        let clock = Clock::manual(Micros::from_secs(1_728_000_000));
        Self {
            memory: Memory::new(Settings { max_keys }, clock.clone()),
            clock,
        }
    }

    /// Fills the store with callers of `limit` that use one unit each.
    fn fill(&self, spec: &Spec, callers: usize) -> Vec<Charge> {
        let callers: Vec<Charge> = (0..callers).map(|_| charge(spec, new_key())).collect();
        for caller in &callers {
            let reserved = self.one(caller);
            assert!(reserved.admitted && reserved.rulings[0].by == By::Memory);
        }
        callers
    }

    fn one(&self, charge: &Charge) -> Reserved {
        self.reserve(std::slice::from_ref(charge))
    }

    fn overflows(&self, charge: &Charge) -> bool {
        self.one(charge).rulings[0].by == By::Overflow
    }

    fn allocated(&self) -> usize {
        let shards = 0..self.memory.shards.len();
        shards
            .map(|place| self.memory.shards.lock(place).unwrap().callers.allocated())
            .sum()
    }

    fn sweep(&self) -> usize {
        (0..16).map(|_| self.memory.sweep()).sum()
    }
}

impl Fixture for Bench {
    type Store = Memory;

    fn store(&self) -> &Memory {
        &self.memory
    }

    fn now(&self) -> Micros {
        self.clock.now()
    }

    fn pass(&self, time: Micros) {
        self.clock.set(self.clock.now().plus(time));
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the memory store never waits"),
        }
    }

    fn settle(&self) {}
}

store_contract! { Bench::new(1_000_000) }

#[test]
fn new_callers_of_a_full_store_share_a_key() {
    for kind in Kind::ALL {
        let bench = Bench::new(10);
        let spec = rule(kind, 3);
        let callers = bench.fill(&spec, 10);
        let overflow = new_key();
        let late: Vec<Charge> = (0..10)
            .map(|_| Charge {
                overflow,
                ..charge(&spec, new_key())
            })
            .collect();
        let admitted = late.iter().filter(|caller| bench.one(caller).admitted).count();
        assert_eq!(admitted, 3, "{kind:?}: the rule's limit, among all of them");
        let ruling = bench.one(&late[0]).rulings.remove(0);
        assert_eq!(
            (ruling.key, ruling.by == By::Overflow),
            (overflow, true),
            "{kind:?}"
        );
        assert_eq!(
            (bench.memory.len(), bench.memory.overflows()),
            (10, 11),
            "{kind:?}"
        );
        // Those who were there go on with what they had left.
        for caller in &callers {
            assert_eq!(
                bench.one(caller).rulings[0].verdict.standing.remaining,
                1,
                "{kind:?}"
            );
        }
    }
}

#[test]
fn an_overflow_charge_can_be_given_back() {
    let bench = Bench::new(0);
    let caller = [charge(&rule(Kind::FixedWindow, 2), new_key())];
    let reserved = bench.reserve(&caller);
    assert!(reserved.admitted && reserved.rulings[0].by == By::Overflow);
    assert_eq!(reserved.rulings[0].verdict.standing.remaining, 1);
    bench.memory.give_back(&refunds(&caller, &reserved));
    assert_eq!(bench.reserve(&caller).rulings[0].verdict.standing.remaining, 1);
}

#[test]
fn one_request_may_overflow_in_part() {
    let bench = Bench::new(2);
    let spec = rule(Kind::TokenBucket, 2);
    let known = bench.fill(&spec, 1).remove(0);
    let new = [charge(&spec, new_key()), known, charge(&spec, new_key())];
    let overflowed = |reserved: &Reserved| {
        reserved
            .rulings
            .iter()
            .map(|it| it.by == By::Overflow)
            .collect::<Vec<_>>()
    };
    assert_eq!(overflowed(&bench.reserve(&new)), [false, false, true]);
    assert_eq!(bench.memory.len(), 2);
    // The known caller has nothing left: the request is rejected, and no new key is added.
    bench.memory.set_max_keys(9);
    let reserved = bench.reserve(&[charge(&spec, new_key()), new[1].clone()]);
    assert!(!reserved.admitted);
    assert_eq!(bench.memory.len(), 2);
}

#[test]
fn expired_keys_go_first() {
    for kind in timed() {
        let bench = Bench::new(100);
        bench.fill(&rule(kind, 3), 100);
        assert!(bench.overflows(&charge(&rule(kind, 3), new_key())), "{kind:?}");
        bench.pass(Micros::from_secs(180));
        bench.fill(&rule(kind, 3), 100);
        assert_eq!(bench.memory.len(), 100, "{kind:?}");
        assert!(bench.overflows(&charge(&rule(kind, 3), new_key())), "{kind:?}");
    }
}

#[test]
fn one_expired_key_among_many_is_found() {
    let bench = Bench::new(2_000);
    let short = Spec {
        window: Some(Micros::from_secs(1)),
        ..rule(Kind::FixedWindow, 3)
    };
    bench.fill(&rule(Kind::FixedWindow, 3), 1_999);
    let caller = bench.fill(&short, 1).remove(0);
    assert!(bench.overflows(&charge(&short, new_key())));
    bench.pass(Micros(999_999));
    assert!(
        bench.overflows(&charge(&short, new_key())),
        "it has a microsecond left"
    );
    bench.pass(Micros(1));
    // A new window of a key that has its place needs no other.
    assert!(!bench.overflows(&caller));
    assert!(bench.overflows(&charge(&short, new_key())));
    bench.pass(Micros::from_secs(1));
    assert!(!bench.overflows(&charge(&short, new_key())));
    assert_eq!(bench.memory.len(), 2_000);
}

#[test]
fn what_adds_nothing_takes_no_place() {
    for kind in Kind::ALL {
        let bench = Bench::new(3);
        for cost in [0, 4] {
            let caller = Charge {
                cost,
                ..charge(&rule(kind, 3), new_key())
            };
            assert_eq!(bench.one(&caller).admitted, cost == 0, "{kind:?}");
        }
        assert!(bench.memory.is_empty(), "{kind:?}");
        // A place that one charge has claimed for nothing is not the other's overflow key's.
        bench.memory.set_max_keys(1);
        let (free, paid) = (
            charge(&rule(kind, 3), new_key()),
            charge(&rule(kind, 3), new_key()),
        );
        let reserved = bench.reserve(&[Charge { cost: 0, ..free }, paid]);
        assert!(
            reserved.admitted && reserved.rulings[1].by == By::Overflow,
            "{kind:?}"
        );
        assert!(bench.memory.is_empty(), "{kind:?}");
        bench.memory.set_max_keys(3);
        let full = bench.fill(&rule(kind, 1), 1).remove(0);
        assert!(!bench.reserve(&[charge(&rule(kind, 3), new_key()), full]).admitted);
        assert_eq!(bench.memory.len(), 1, "{kind:?}");
    }
}

#[test]
fn the_bound_can_change() {
    let bench = Bench::new(5);
    let spec = rule(Kind::Gcra, 3);
    let callers = bench.fill(&spec, 5);
    bench.memory.set_max_keys(7);
    bench.fill(&spec, 2);
    assert!(bench.overflows(&charge(&spec, new_key())));
    bench.memory.set_max_keys(1);
    assert!(bench.overflows(&charge(&spec, new_key())));
    assert!(!bench.overflows(&callers[0]), "those who are there stay");
    assert_eq!(bench.memory.len(), 7);
}

#[test]
fn the_bound_holds_in_a_race() {
    let bench = Bench::new(100);
    let spec = rule(Kind::FixedWindow, 1_000_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let charges = [charge(&spec, new_key()), charge(&spec, new_key())];
                    assert!(bench.reserve(&charges).admitted);
                    assert!(bench.memory.len() <= 100);
                }
            });
        }
    });
    let held: usize = (0..bench.memory.shards.len())
        .map(|place| bench.memory.shards.lock(place).unwrap().purge(Micros(0)).visited)
        .sum();
    assert_eq!(bench.memory.len(), 100);
    assert_eq!(
        held as u64,
        100 + bench.memory.overflows(),
        "each overflow key was another one's"
    );
}

#[test]
fn memory_falls_when_it_is_idle() {
    let bench = Bench::new(200_000);
    for kind in timed() {
        bench.fill(&rule(kind, 3), 10_000);
    }
    let full = bench.allocated();
    assert!(full > 50_000 * 32);
    assert_eq!(bench.sweep(), 0, "nothing has expired");
    bench.pass(Micros::from_secs(180));
    assert_eq!(bench.sweep(), 50_000);
    assert!(bench.memory.is_empty());
    assert!(
        bench.allocated() < full / 20,
        "{} of {full} bytes are left",
        bench.allocated()
    );
}

#[test]
fn a_barren_round_is_remembered() {
    let bench = Bench::new(1_000);
    bench.fill(&rule(Kind::SlidingLog, 3), 1_000);
    bench.sweep();
    let until = bench.memory.sweeper.barren_until();
    assert_eq!(
        until,
        bench.clock.now().plus(Micros::from_secs(60)),
        "when the first key expires"
    );
    bench.memory.set_max_keys(2_000);
    bench.fill(
        &Spec {
            window: Some(Micros::from_secs(1)),
            ..rule(Kind::Gcra, 3)
        },
        1,
    );
    assert!(
        bench.memory.sweeper.barren_until() < until,
        "a key that was added expires earlier"
    );
}

#[test]
fn a_flood_of_new_callers_looks_for_room_now_and_then() {
    let bench = Bench::new(20_000);
    bench.fill(&rule(Kind::FixedWindow, 3), 10_000);
    let spec = Spec {
        window: Some(Micros::from_millis(20)),
        ..rule(Kind::FixedWindow, 3)
    };
    for _ in 0..10_000 {
        bench.fill(&spec, 1);
        bench.pass(Micros(2));
    }
    // Half of the keys live for long, the others expire one by one.
    let (mut own, rounds) = (0_u64, 2_000);
    for _ in 0..rounds {
        own += u64::from(!bench.overflows(&charge(&spec, new_key())));
        bench.pass(Micros(2));
    }
    assert!(own > rounds / 2, "{own} of {rounds} found an expired key");
    assert!(bench.memory.len() <= 20_000);
}

#[test]
fn looking_in_vain_has_a_budget() {
    let bench = Bench::new(20_000);
    bench.fill(&rule(Kind::FixedWindow, 3), 19_999);
    bench.fill(
        &Spec {
            window: Some(Micros::from_secs(1)),
            ..rule(Kind::FixedWindow, 3)
        },
        1,
    );
    bench.pass(Micros::from_secs(1));
    // The one that has expired goes to the first who looks for it.
    let found = |bench: &Bench| !bench.overflows(&charge(&rule(Kind::FixedWindow, 3), new_key()));
    assert_eq!((0..10).filter(|_| found(&bench)).count(), 1);
    // When nothing is known to be barren, and the budget is spent, nobody looks until time has passed.
    bench.memory.sweeper.added(bench.clock.now());
    let spent = (0..20).filter(|_| found(&bench)).count();
    let next = bench.memory.sweeper.next();
    assert!(!found(&bench) && spent == 0);
    assert_eq!(bench.memory.sweeper.next(), next);
    bench.pass(Micros::from_millis(1));
    assert!(!found(&bench));
    assert_ne!(bench.memory.sweeper.next(), next);
}

#[test]
fn each_round_sees_what_the_last_one_left() {
    let bench = Bench::new(1_000);
    let long = Spec {
        window: Some(Micros::from_secs(120)),
        ..rule(Kind::FixedWindow, 3)
    };
    bench.fill(&rule(Kind::FixedWindow, 3), 300);
    bench.fill(&long, 200);
    for removed in [0, 300, 200] {
        assert_eq!(bench.sweep(), removed);
        bench.pass(Micros::from_secs(60));
    }
    assert!(bench.memory.is_empty());
}

#[test]
fn a_clock_that_is_set_back_gives_no_quota() {
    for kind in timed() {
        let bench = Bench::new(100);
        let caller = charge(&rule(kind, 3), new_key());
        assert_eq!((0..5).filter(|_| bench.one(&caller).admitted).count(), 3);
        bench
            .clock
            .set(bench.clock.now().since(Micros::from_secs(2 * 86_400)));
        let reserved = bench.one(&caller);
        assert!(!reserved.admitted, "{kind:?}");
        let retry = reserved.rulings[0].verdict.retry.unwrap();
        assert!(retry <= reserved.now.plus(Micros::from_secs(120)), "{kind:?}");
        bench.clock.set(retry);
        assert!(bench.one(&caller).admitted, "{kind:?}");
    }
}

#[test]
fn a_key_with_nothing_in_flight_is_gone() {
    let bench = Bench::new(2);
    let spec = rule(Kind::Concurrency, 3);
    let callers = [charge(&spec, new_key()), charge(&spec, new_key())];
    let (first, second) = (bench.reserve(&callers), bench.reserve(&callers[..1]));
    assert_eq!(bench.memory.len(), 2);
    // Whoever comes to a full store is counted with all others that do.
    let late = [charge(&spec, new_key())];
    let overflowed = bench.reserve(&late);
    assert!(overflowed.rulings[0].by == By::Overflow);
    bench.pass(Micros::from_secs(86_400));
    assert_eq!(bench.sweep(), 0, "what is in flight does not expire");
    bench.give_back(&callers, &first);
    assert_eq!(bench.memory.len(), 1, "one is in flight for the first");
    bench.give_back(&late, &overflowed);
    bench.give_back(&callers[..1], &second);
    assert!(bench.memory.is_empty());
    assert_eq!(bench.one(&callers[0]).rulings[0].verdict.standing.remaining, 2);
    assert_eq!(bench.memory.len(), 1);
}
