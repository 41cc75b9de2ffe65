//! What is held, and when it is given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::StatusCode;
use smallvec::SmallVec;

use super::lobby::Lobby;
use super::{Decision, EdgeSettings, Lasting, Limiter, Refusal, Reservation};
use crate::clock::{Clock, Micros};
use crate::identity::{LimitKey, Secret, Settings};
use crate::limit::{Kind, Spec};
use crate::rules::{
    Charge, Match, Missing, OnOutage, Outcome, Plan, RefundOn, Rule, RuleId, RuleTable, Scope,
};
use crate::store::{Backend, Memory, Store, memory};
use crate::telemetry::Metrics;

/// Some rules, all of which apply to every request, on a clock that stands still.
struct Bench {
    table: Arc<RuleTable>,
    limiter: Limiter,
    clock: Clock,
    store: Arc<Memory>,
}

fn rule(kind: Kind, limit: u64) -> Rule {
    let spec = Spec {
        kind,
        limit,
        window: kind.has_window().then_some(Micros::SECOND),
        precision: 1,
        blend: true,
        burst: None,
        queue: None,
        cost: 1,
    };
    Rule {
        name: format!("{} {limit}", kind.name()),
        matches: Match::default(),
        key: Vec::new(),
        missing: Missing::Share,
        policy: spec.policy().unwrap(),
        spec,
        refund: Vec::new(),
        overrides: Vec::new(),
        scope: Scope::Store,
        on_outage: OnOutage::default(),
        dry_run: false,
        visible: true,
    }
}

/// So many a second, one at once, and others wait for so long.
fn queued(limit: u64, millis: u64) -> Rule {
    let mut rule = rule(Kind::Gcra, limit);
    rule.spec.queue = Some(Micros::from_millis(millis));
    rule.policy = rule.spec.policy().unwrap();
    rule
}

impl Bench {
    fn new(rules: Vec<Rule>) -> Self {
        Self::with(rules, Lobby::default())
    }

    fn with(rules: Vec<Rule>, lobby: Lobby) -> Self {
        let table = Arc::new(RuleTable::new(rules, Settings::default(), Secret::from_text("s")));
        let clock = Clock::manual(Micros::from_secs(1_728_000_000));
        let store = Arc::new(Memory::new(memory::Settings { max_keys: 100 }, clock.clone()));
        let backend = Backend::Memory(Arc::clone(&store));
        let limiter = Limiter::new(
            backend,
            &table,
            &Arc::new(Metrics::new().unwrap()),
            Lasting {
                lobby,
                ..Lasting::default()
            },
            EdgeSettings::default(),
        );
        Self {
            table,
            limiter,
            clock,
            store,
        }
    }

    fn plan(&self) -> Plan {
        let rules = self.table.rules().enumerate();
        let charges = rules.map(|(index, rule)| Charge {
            rule: RuleId(index),
            allowance: None,
            key: LimitKey(index as u128),
            overflow: LimitKey(1_000 + index as u128),
            policy: rule.policy,
            own: rule.policy,
            cost: rule.spec.cost,
            dry_run: rule.dry_run,
        });
        Plan {
            table: Arc::clone(&self.table),
            charges: charges.collect(),
            spared: SmallVec::new(),
        }
    }

    fn decide(&self) -> Result<Reservation, Box<Refusal>> {
        match poll(self.limiter.decide(self.plan())) {
            Poll::Ready(Decision::Admit(reservation)) => Ok(reservation),
            Poll::Ready(Decision::Refuse(refusal)) => Err(refusal),
            _ => panic!("the memory store never waits"),
        }
    }

    fn admit(&self) -> Reservation {
        let Ok(reservation) = self.decide() else {
            panic!("there is no room")
        };
        reservation
    }

    /// What each rule has left.
    fn left(&self) -> Vec<u64> {
        let mut plan = self.plan();
        plan.charges.iter_mut().for_each(|charge| charge.cost = 0);
        let Poll::Ready(Ok(reserved)) = poll(self.store.reserve(&plan.table, &plan.charges)) else {
            panic!("the memory store never waits")
        };
        let rulings = reserved.rulings.iter();
        rulings.map(|ruling| ruling.verdict.standing.remaining).collect()
    }
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

#[test]
fn a_slot_is_released_where_its_request_ends_and_once() {
    let mut abort = rule(Kind::FixedWindow, 10);
    abort.refund = vec![RefundOn::ClientAbort];
    let bench = Bench::new(vec![rule(Kind::Concurrency, 3), abort]);
    let _other = bench.admit();
    drop(bench.admit());
    assert_eq!(bench.left(), [2, 9], "left before the head");
    let outcomes = [
        Outcome::Answered(status(200)),
        Outcome::Failed(status(502)),
        Outcome::Faulted(status(413)),
        Outcome::Unsent,
    ];
    for (spent, outcome) in (0..).zip(outcomes) {
        let settled = bench.admit().settle(outcome);
        assert_eq!(settled.rulings().unwrap().1[0].verdict.standing.remaining, 1);
        let tail = settled.tail().expect("a slot is held to the end of the body");
        assert_eq!(bench.left()[0], 1, "{outcome:?} releases nothing at the head");
        tail.complete();
        let paid = spent + u64::from(outcome != Outcome::Unsent);
        assert_eq!(bench.left(), [2, 9 - paid], "{outcome:?}");
    }
    drop(bench.admit().settle(Outcome::Answered(status(200))).tail());
    assert_eq!(bench.left(), [2, 6], "left in the body");
    drop(bench.admit().settle(Outcome::Answered(status(200))));
    assert_eq!(bench.left(), [2, 5], "nobody took the tail");
}

#[test]
fn a_panic_releases_a_slot() {
    let bench = Bench::new(vec![rule(Kind::Concurrency, 2)]);
    for settles in [false, true] {
        let reservation = bench.admit();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let settled = settles.then(|| reservation.settle(Outcome::Answered(status(200))));
            let tail = settled.and_then(super::Settled::tail);
            assert!(tail.is_none() && settles, "on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(bench.left(), [2]);
    }
}

#[test]
fn a_dry_run_counts_what_is_in_flight_and_refuses_nothing() {
    let mut dry = rule(Kind::Concurrency, 1);
    dry.dry_run = true;
    let bench = Bench::new(vec![dry]);
    let first = bench.admit();
    let second = bench.admit();
    assert_eq!(bench.left(), [0]);
    drop(second);
    assert_eq!(bench.left(), [0], "it had no slot");
    drop(first);
    assert_eq!(bench.left(), [1]);
}

#[test]
fn what_another_rule_refuses_is_not_in_flight() {
    let bench = Bench::new(vec![rule(Kind::Concurrency, 5), rule(Kind::FixedWindow, 1)]);
    drop(bench.admit());
    assert!(bench.decide().is_err());
    assert_eq!(bench.left(), [5, 0]);
}

#[test]
fn the_longest_hold_counts_and_dry_runs_hold_nobody() {
    let mut dry = queued(1, 5_000);
    dry.dry_run = true;
    let bench = Bench::new(vec![queued(10, 500), queued(20, 500), dry]);
    let admitted = [0; 3].map(|_| bench.admit());
    let holds = admitted.each_ref().map(Reservation::hold);
    assert_eq!(holds, [Micros(0), Micros(100_000), Micros(200_000)]);
}

#[test]
fn who_leaves_the_queue_gives_back_and_who_had_its_turn_pays() {
    let bench = Bench::new(vec![queued(10, 500), rule(Kind::FixedWindow, 10)]);
    let _first = bench.admit();
    let second = bench.admit();
    assert_eq!(bench.left(), [0, 8]);
    drop(second);
    assert_eq!(bench.left(), [0, 9], "it never reached the upstream");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let inside = runtime.enter();
    let mut third = bench.admit();
    assert!(poll(third.turn()).is_pending());
    drop((third, inside));
    assert_eq!(bench.left(), [0, 9], "it left while it waited");
    let mut fourth = bench.admit();
    let begun = crate::clock::now();
    runtime.block_on(fourth.turn());
    assert!(begun.elapsed().as_millis() >= 100, "the slot of the third");
    drop(fourth);
    assert_eq!(bench.left(), [0, 8], "it was about to be sent");
}

#[test]
fn a_slot_is_not_given_to_two() {
    let bench = Bench::new(vec![queued(10, 500)]);
    let length = |reservation: &Reservation| reservation.hold().0 / 1_000;
    let _first = bench.admit();
    let (second, third) = (bench.admit(), bench.admit());
    drop(second);
    let fourth = bench.admit();
    assert_eq!((length(&third), length(&fourth)), (200, 300));
    drop(fourth);
    assert_eq!(length(&bench.admit()), 300);
}

#[test]
fn a_full_lobby_holds_nobody() {
    let bench = Bench::with(vec![queued(10, 500)], Lobby::with(1));
    drop(bench.admit());
    let waiting = bench.admit();
    let Err(refusal) = bench.decide() else {
        panic!("there is a seat")
    };
    let verdict = &refusal.reserved.rulings[0].verdict;
    let wait = verdict.retry.map(|retry| retry.since(refusal.reserved.now));
    assert_eq!(wait, Some(Micros(200_000)), "when there is room without a wait");
    // A request that has room at once needs no seat.
    bench.clock.set(bench.clock.now().plus(Micros::from_millis(200)));
    let prompt = bench.admit();
    assert_eq!(prompt.hold(), Micros(0));
    drop(waiting);
    assert!(bench.admit().hold() > Micros(0), "the seat is free again");
}

#[test]
fn a_refund_counts_the_time_since_at_the_limit_in_force() {
    let bucket = |limit| {
        let mut rule = rule(Kind::TokenBucket, limit);
        rule.name = "bucket".to_owned();
        rule.spec.burst = Some(600);
        rule.policy = rule.spec.policy().unwrap();
        rule.refund = vec![RefundOn::UpstreamError];
        rule
    };
    let mut bench = Bench::new(vec![bucket(600)]);
    let mut kept: Vec<Reservation> = (0..500).map(|_| bench.admit()).collect();
    let lowered = Bench::new(vec![bucket(1)]).table;
    bench.limiter.lasting.put_in_force(&lowered);
    bench.table = lowered;
    bench.clock.set(bench.clock.now().plus(Micros::from_millis(500)));
    assert_eq!(bench.left(), [100]);
    kept.pop()
        .unwrap()
        .settle(Outcome::Failed(StatusCode::BAD_GATEWAY));
    assert_eq!(bench.left(), [101]);
}
