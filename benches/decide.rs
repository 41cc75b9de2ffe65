//! One decision in memory, beside the `governor` crate's keyed limiter with the same limits and the same keys in the same
//! order: `cargo bench --bench decide`.
//!
//! Every request is admitted and charged. Keys are ready when the clock starts, as the gateway has hashed them when it
//! asks its store. Three rules are one call of the store that charges all or none;
//! of governor they are three calls, each for itself. One thread is timed by the processor time that it
//! took, so that what else runs on the machine adds little; two by the clock on the wall, waits for one another among it.

#![expect(clippy::unwrap_used, reason = "a failed setup ends the bench")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use governor::clock::QuantaClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use rustix::time::{ClockId, clock_gettime};
use tollgate::clock::Clock;
use tollgate::identity::{KeyBuilder, LimitKey, Secret};
use tollgate::rules::Charge;
use tollgate::store::Memory;
use tollgate::store::memory::Settings;

mod charges;

use charges::{LIMIT, limit_key, mixed, numbers, prepared, spec};

/// Callers of the spread cases.
const CALLERS: usize = 1_000_000;
/// Requests until the order of callers repeats.
const REQUESTS: usize = 1 << 20;

type Governor<K> = RateLimiter<K, DashMapStateStore<K>, QuantaClock, NoOpMiddleware>;

/// Who asks, request by request.
struct Order {
    name: &'static str,
    callers: usize,
    requests: Vec<u64>,
}

impl Order {
    fn all() -> [Self; 3] {
        [
            Self {
                name: "one key",
                callers: 1,
                requests: vec![0; 1 << 10],
            },
            Self {
                name: "uniform",
                callers: CALLERS,
                requests: numbers().map(|n| n % CALLERS as u64).take(REQUESTS).collect(),
            },
            Self {
                name: "zipf",
                callers: CALLERS,
                requests: zipf(),
            },
        ]
    }

    fn map<T>(&self, of: impl Fn(u64) -> T) -> Vec<T> {
        self.requests.iter().map(|caller| of(*caller)).collect()
    }
}

/// A caller's chance is as 1 to its rank.
fn zipf() -> Vec<u64> {
    let mut sum = 0.0;
    let below: Vec<f64> = (1..=CALLERS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let rank =
        |n: u64| below.partition_point(|below| *below <= sum * (n >> 11) as f64 / (1_u64 << 53) as f64);
    numbers().map(|n| rank(n) as u64).take(REQUESTS).collect()
}

fn text_key(caller: u64) -> String {
    format!("caller-{caller:08}")
}

/// One decision on the keys of one request, a rule each.
fn decide(store: &Memory, charges: &mut [Charge], keys: &[LimitKey]) {
    for (charge, key) in charges.iter_mut().zip(keys) {
        charge.key = *key;
    }
    assert!(black_box(&store.decide(charges)).admitted);
}

/// The time that this thread has run.
fn ran() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap()
}

/// The time in which each of `threads` does `count` of these, each from another place in the order on.
fn time<F: FnMut(usize)>(threads: usize, count: u64, length: usize, new: impl Fn() -> F + Sync) -> Duration {
    let run = |from: usize| {
        let (mut at, mut one) = (from, new());
        let clock = if threads == 1 { ran } else { now };
        let start = clock();
        for _ in 0..count {
            one(at);
            at += 1;
            if at == length {
                at = 0;
            }
        }
        clock().saturating_sub(start)
    };
    if threads == 1 {
        return run(0);
    }
    let ready = Barrier::new(threads);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (ready, run) = (&ready, &run);
                scope.spawn(move || {
                    ready.wait();
                    run(length / threads * thread)
                })
            })
            .collect();
        running.into_iter().map(|run| run.join().unwrap()).max().unwrap()
    })
}

fn measure<F: FnMut(usize)>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    length: usize,
    new: impl Fn() -> F + Sync,
) {
    for threads in [1, 2] {
        let id = BenchmarkId::new(name, format!("{threads} threads"));
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|count| time(threads, count, length, &new));
        });
    }
}

fn governors<K: std::hash::Hash + Eq + Clone>(
    rules: usize,
    order: &Order,
    key: impl Fn(u64) -> K,
) -> Vec<Governor<K>> {
    let quota = Quota::per_second(NonZeroU32::new(LIMIT).unwrap());
    let new = |_| {
        let governor = RateLimiter::dashmap(quota);
        for caller in 0..order.callers {
            governor.check_key(&key(caller as u64)).unwrap();
        }
        governor
    };
    (0..rules).map(new).collect()
}

fn bench_governor<K: std::hash::Hash + Eq + Clone + Sync + Send>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    (rules, order): (usize, &Order),
    key: impl Fn(u64) -> K,
) {
    let keys = order.map(&key);
    let governors = governors(rules, order, key);
    measure(group, name, keys.len(), || {
        |at: usize| {
            for governor in &governors {
                governor.check_key(black_box(&keys[at])).unwrap();
            }
        }
    });
}

fn bench<const RULES: usize>(criterion: &mut Criterion, order: &Order) {
    let rules = if RULES == 1 { "rule" } else { "rules" };
    let mut group = criterion.benchmark_group(format!("{RULES} {rules}, {}", order.name));
    let all = |caller| std::array::from_fn::<_, RULES, _>(|rule| limit_key(caller, rule as u64));
    let max_keys = 2 * RULES * order.callers + 64;
    let store = Arc::new(Memory::new(Settings { max_keys }, Clock::monotonic()));
    let policy = spec().policy().unwrap();
    let mut charges = prepared(RULES, policy);
    for caller in 0..order.callers {
        decide(&store, &mut charges, &all(caller as u64));
    }
    let keys = order.map(all);
    measure(&mut group, "tollgate", keys.len(), || {
        let mut charges = prepared(RULES, policy);
        let (store, keys) = (&store, &keys);
        move |at: usize| decide(store, &mut charges, black_box(&keys[at]))
    });
    drop((keys, store));
    bench_governor(&mut group, "governor, text keys", (RULES, order), text_key);
    bench_governor(&mut group, "governor, u64 keys", (RULES, order), mixed);
    group.finish();
}

/// What the hash of a key adds, which governor's text keys have in them.
fn bench_hash(criterion: &mut Criterion) {
    let secret = Secret::from_text("bench");
    let name = KeyBuilder::new("rule", "token-bucket 1000000");
    let text = text_key(7);
    criterion.bench_function("hash of one key", |bencher| {
        bencher.iter(|| {
            let mut key = name.clone();
            key.part(0, black_box(text.as_bytes()));
            key.finish(&secret)
        });
    });
}

fn all(criterion: &mut Criterion) {
    bench_hash(criterion);
    for order in Order::all() {
        bench::<1>(criterion, &order);
        bench::<3>(criterion, &order);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(15)
        .without_plots();
    targets = all
}
criterion_main!(benches);
