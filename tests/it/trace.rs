//! The requests of a real web site, replayed: the memory store decides as the definitions of the algorithms say, number by
//! number, and the gateway admits what it must.
//!
//! The model keeps every charge for ever, and works out from all of them how much is in use at an instant. It knows
//! nothing else; what a verdict says of other instants is checked by asking for the use at those.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use tollgate::clock::{Clock, Micros};
use tollgate::identity::LimitKey;
use tollgate::limit::{Kind, Receipt, Spec, Verdict};
use tollgate::rules::{Charge, RuleId};
use tollgate::store::memory::{self, Memory};
use tollgate::store::{By, Refund};

use crate::support::{Ask, Config, Gateway, Limits, Upstream, rule};

/// A request of the trace.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Since the first.
    seconds: u64,
    client: u64,
    status: u16,
}

fn trace() -> Vec<Row> {
    let rows: Vec<_> = include_str!("../data/trace.csv")
        .lines()
        .skip(1)
        .map(row)
        .collect();
    assert_eq!(rows.len(), 10_000);
    rows
}

fn row(line: &str) -> Row {
    let mut numbers = line.split(',').map(|number| number.parse().unwrap());
    let mut number = || numbers.next().unwrap();
    Row {
        seconds: number(),
        client: number(),
        status: number() as u16,
    }
}

/// A charge that was made.
#[derive(Clone, Copy, Debug)]
struct Charged {
    at: u128,
    given_back: bool,
}

/// How much of the charges, oldest first, is in use at an instant that none of them is later than.
type Used = fn(&Spec, &[Charged], u128) -> u128;

fn window_of(spec: &Spec) -> u128 {
    spec.window.unwrap().0.into()
}

/// Windows open with the first charge that finds none open, given back or not; what counts is the open one's.
fn fixed_window(spec: &Spec, charges: &[Charged], now: u128) -> u128 {
    let (mut end, mut units) = (0, 0);
    for charge in charges {
        if charge.at >= end {
            (end, units) = (charge.at + window_of(spec), 0);
        }
        units += u128::from(!charge.given_back);
    }
    if now < end { units } else { 0 }
}

/// Every charge counts for a window.
fn sliding_log(spec: &Spec, charges: &[Charged], now: u128) -> u128 {
    let window = window_of(spec);
    let counts = |charge: &&Charged| !charge.given_back && now < charge.at + window;
    charges.iter().filter(counts).count() as u128
}

/// The sub-window of now and those before it that a window holds count in full; of the one before these, the part that a
/// window which ends now still covers, or without blend all of it.
fn sliding_window(spec: &Spec, charges: &[Charged], now: u128) -> u128 {
    let precision = u128::from(spec.precision);
    let part = window_of(spec).div_ceil(precision);
    let kept = charges.iter().filter(|charge| !charge.given_back);
    let ages: Vec<u128> = kept.map(|charge| now / part - charge.at / part).collect();
    let full = ages.iter().filter(|age| **age < precision).count() as u128;
    let oldest = ages.iter().filter(|age| **age == precision).count() as u128;
    let covered = if spec.blend { part - now % part } else { part };
    full + (oldest * covered).div_ceil(part)
}

/// A debt that drains; in units of 1 / window.
fn bucket(spec: &Spec, charges: &[Charged], now: u128) -> u128 {
    let (limit, window) = (u128::from(spec.limit), window_of(spec));
    let (mut debt, mut since) = (0_u128, 0);
    for charge in charges.iter().filter(|charge| !charge.given_back) {
        debt = debt.saturating_sub(limit * (charge.at - since)) + window;
        since = charge.at;
    }
    debt.saturating_sub(limit * (now - since)).div_ceil(window)
}

/// A limiter under test, and the model of it.
struct Limiter {
    spec: Spec,
    used: Used,
    /// Whether refunds are not let wait: a bucket's late refund gives back what is still owed of the charge, which is less
    /// than if it had never come.
    at_once: bool,
}

/// Each algorithm with this window; `limit` units in it are few for the trace.
fn limiters(window: u64, limit: u64) -> Vec<Limiter> {
    let limiter = |kind, limit, precision, blend, burst, used| Limiter {
        spec: Spec {
            kind,
            limit,
            window: Some(Micros(window)),
            precision,
            blend,
            burst,
            queue: None,
            cost: 1,
        },
        used,
        at_once: kind.is_bucket(),
    };
    vec![
        limiter(Kind::FixedWindow, limit, 1, true, None, fixed_window as Used),
        limiter(Kind::SlidingLog, limit, 1, true, None, sliding_log),
        limiter(Kind::SlidingWindow, limit, 1, true, None, sliding_window),
        limiter(Kind::SlidingWindow, limit, 10, true, None, sliding_window),
        limiter(Kind::SlidingWindow, limit, 7, false, None, sliding_window),
        limiter(Kind::TokenBucket, limit, 1, true, Some(3), bucket),
        limiter(Kind::Gcra, limit, 1, true, None, bucket),
    ]
}

/// What one caller was charged, seen at one instant.
struct View<'a> {
    limiter: &'a Limiter,
    charges: &'a [Charged],
    now: u128,
}

impl<'a> View<'a> {
    fn new(limiter: &'a Limiter, charges: &'a [Charged], now: u128) -> Self {
        Self {
            limiter,
            charges,
            now,
        }
    }

    fn remaining(&self, at: u128) -> u128 {
        let quota = u128::from(self.limiter.spec.quota());
        let used = (self.limiter.used)(&self.limiter.spec, self.charges, at);
        quota.saturating_sub(used)
    }

    /// Whether `at` is the first instant, not before now, at which so much remains.
    fn is_first(&self, at: Micros, remaining: u128) -> bool {
        let at = u128::from(at.0);
        let before = at > self.now && self.remaining(at - 1) < remaining;
        at >= self.now && self.remaining(at) >= remaining && (before || at == self.now)
    }

    /// What is wrong with a verdict on a request that these charges include if it was admitted.
    fn faults(&self, verdict: &Verdict<Receipt>) -> Vec<&'static str> {
        let standing = verdict.standing;
        let remaining = self.remaining(self.now);
        let quota = u128::from(self.limiter.spec.quota());
        let retry_is_right = match verdict.retry {
            Some(retry) => !verdict.admitted && self.is_first(retry, 1),
            None => verdict.admitted,
        };
        let next_is_right = match standing.next {
            Some(next) => self.is_first(next, remaining + 1) && remaining < quota,
            None => remaining == quota,
        };
        let all = [
            (u128::from(standing.remaining) == remaining, "remaining"),
            (retry_is_right, "retry"),
            (next_is_right, "next"),
            (
                standing.full.is_some_and(|full| self.is_first(full, quota)),
                "full",
            ),
        ];
        all.iter()
            .filter(|(right, _)| !right)
            .map(|(_, name)| *name)
            .collect()
    }
}

/// The store, what it was charged, and what it is still to give back.
struct Replay {
    limiter: Limiter,
    clock: Clock,
    store: Memory,
    charged: HashMap<u64, Vec<Charged>>,
    /// By when it is due and what number it has.
    due: BTreeMap<(u64, usize), (u64, usize, Refund)>,
}

impl Replay {
    fn new(limiter: Limiter) -> Self {
        let clock = Clock::manual(Micros(0));
        let settings = memory::Settings { max_keys: 10_000 };
        Self {
            limiter,
            store: Memory::new(settings, clock.clone()),
            clock,
            charged: HashMap::new(),
            due: BTreeMap::new(),
        }
    }

    /// Gives back what is due by `now`.
    fn settle(&mut self, now: u64) {
        while let Some(next) = self.due.first_entry().filter(|next| next.key().0 <= now) {
            let ((at, _), (client, place, refund)) = next.remove_entry();
            self.clock.set(Micros(at));
            self.store.give_back(&[refund]);
            self.charged.get_mut(&client).unwrap()[place].given_back = true;
        }
    }

    /// Puts a request to the store and to the model; returns whether it was admitted.
    fn ask(&mut self, number: usize, now: u64, row: Row) -> bool {
        self.settle(now);
        self.clock.set(Micros(now));
        let spec = &self.limiter.spec;
        let client = u128::from(row.client);
        let charge = Charge {
            rule: RuleId(0),
            allowance: None,
            key: LimitKey(client << 64 | client),
            overflow: LimitKey(0),
            policy: spec.policy().unwrap(),
            own: spec.policy().unwrap(),
            cost: spec.cost,
            dry_run: false,
        };
        let reserved = self.store.decide(std::slice::from_ref(&charge));
        let verdict = &reserved.rulings[0].verdict;

        let charges = self.charged.entry(row.client).or_default();
        let at = u128::from(now);
        let before = View::new(&self.limiter, charges, at).remaining(at);
        assert_eq!(
            verdict.admitted,
            before >= 1,
            "{number}: {row:?} {spec:?} {verdict:?}"
        );
        assert_eq!(
            u128::from(verdict.refunded.remaining),
            before,
            "{number}: {row:?} {spec:?} {verdict:?}"
        );
        if verdict.admitted {
            charges.push(Charged {
                at,
                given_back: false,
            });
        }
        let faults = View::new(&self.limiter, charges, at).faults(verdict);
        assert!(
            faults.is_empty(),
            "{faults:?} in {number}: {row:?} {spec:?} {verdict:?}"
        );

        if let (304, Some(receipt)) = (row.status, verdict.receipt.clone()) {
            // An answer takes up to three seconds of the trace.
            let takes = if self.limiter.at_once {
                0
            } else {
                number as u64 * 7_919 % 50_000
            };
            let refund = Refund {
                rule: charge.rule,
                key: charge.key,
                policy: charge.policy,
                receipt,
                by: By::Memory,
            };
            self.due
                .insert((now + takes, number), (row.client, charges.len() - 1, refund));
        }
        verdict.admitted
    }
}

#[test]
fn every_algorithm_decides_a_real_trace_by_its_definition() {
    let rows = trace();
    // Twenty seconds of the trace, within its bursts, and three hours of it, across them.
    let limiters = limiters(333_333, 2).into_iter().chain(limiters(180_000_011, 7));
    for limiter in limiters {
        let mut replay = Replay::new(limiter);
        let mut admitted = 0;
        for (number, row) in rows.iter().enumerate() {
            // A minute of the trace is a second.
            let now = 1_431_857_103_000_000 + row.seconds * 1_000_000 / 60;
            admitted += usize::from(replay.ask(number, now, *row));
            if number % 100 == 0 {
                replay.store.sweep();
            }
        }
        assert!(
            (2_000..8_000).contains(&admitted),
            "{admitted} admitted by {:?}",
            replay.limiter.spec
        );
        assert_eq!(replay.store.overflows(), 0);
    }
}

#[test]
fn a_busy_part_of_the_trace_is_admitted_as_far_as_it_must_and_may_be() {
    let upstream = Upstream::start();
    let lines = "key = [\"header:x-client\"]\nrefund = [\"304\"]";
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 20, "1s", lines)));
    let rows = &trace()[2_521..2_821];
    let mut client = gateway.client();
    // Of each client: requests that are not given back, and how many of them were admitted.
    let mut counts: HashMap<u64, (u64, u64)> = HashMap::new();
    let (mut admitted, mut given_back) = (0, 0);
    let start = Instant::now();
    for row in rows {
        // An hour of the trace is a second.
        let due = Duration::from_secs(row.seconds - rows[0].seconds) / 3_600;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let ask = Ask::get(&format!("/status/{}", row.status));
        let answer = client.ask(&ask.field("x-client", row.client.to_string()));
        let (asked, kept) = counts.entry(row.client).or_default();
        *asked += u64::from(row.status != 304);
        if answer.status == 429 {
            assert_eq!(Limits::of(&answer).remaining, 0);
            continue;
        }
        assert_eq!(answer.status, row.status);
        admitted += 1;
        given_back += usize::from(row.status == 304);
        *kept += u64::from(row.status != 304);
    }
    let windows = start.elapsed().as_secs() + 1;
    for (client, (asked, kept)) in counts {
        let possible = asked.min(20)..=asked.min(20 * windows);
        assert!(
            possible.contains(&kept),
            "client {client}: {kept} of {asked}, not {possible:?}"
        );
    }
    assert_eq!(upstream.count(), admitted);
    let verdict = |verdict: &str| format!("tollgate_decisions_total{{rule=\"r\",verdict=\"{verdict}\"}}");
    gateway.await_metric(&verdict("admit"), admitted as f64);
    // Redis refused them, or the gateway from its memory.
    let rejected = ["reject", "shed"].map(|word| gateway.metric(&verdict(word)));
    assert_eq!(rejected.iter().sum::<f64>(), (rows.len() - admitted) as f64);
    gateway.await_metric(
        "tollgate_refunds_total{outcome=\"answered\",rule=\"r\"}",
        given_back as f64,
    );
}
