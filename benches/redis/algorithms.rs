//! The second table: what a key of each algorithm takes, and how much one primary decides.

use tollgate::clock::Micros;
use tollgate::limit::{Kind, Spec};

use crate::charges::{limit_key, spec};
use crate::server::Redis;
use crate::usage::{median, usage};
use crate::worker::{Order, Worker};
use crate::{Effort, progress};

/// Decisions in flight.
const IN_FLIGHT: usize = 128;

/// An algorithm, its precision, and how often each key was charged before it is measured; some tens more come in
/// the run.
const ALGORITHMS: [(&str, Kind, u64, usize); 8] = [
    ("fixed-window", Kind::FixedWindow, 1, 1),
    ("sliding-window, precision 1", Kind::SlidingWindow, 1, 1),
    ("sliding-window, precision 10", Kind::SlidingWindow, 10, 1),
    ("sliding-window, precision 60", Kind::SlidingWindow, 60, 1),
    ("token-bucket", Kind::TokenBucket, 1, 1),
    ("gcra", Kind::Gcra, 1, 1),
    ("sliding-log, 1 entry", Kind::SlidingLog, 1, 1),
    ("sliding-log, 100 entries", Kind::SlidingLog, 1, 100),
];

/// Measures, and prints the table.
pub(crate) fn table(server: &Redis, effort: &Effort) {
    println!(
        "\nOne rule, {IN_FLIGHT} in flight, spread keys. A key's bytes are by `MEMORY USAGE`, its name among them.\n"
    );
    println!(
        "| algorithm | bytes a key | Redis CPU, µs | decisions/s of one worker | decisions/s of one primary |"
    );
    println!("|---|--:|--:|--:|--:|");
    for (name, kind, precision, charged) in ALGORITHMS {
        progress(name);
        let spec = Spec {
            kind,
            precision,
            limit: 1_000,
            window: Some(Micros::from_secs(3_600)),
            burst: (kind == Kind::Gcra).then_some(1_000),
            ..spec()
        };
        print(name, server, &spec, charged, effort);
    }
}

fn print(name: &str, server: &Redis, spec: &Spec, charged: usize, effort: &Effort) {
    let order = Order::new(
        (0..effort.keys)
            .map(|caller| vec![limit_key(caller, 0)])
            .collect(),
    );
    let worker = Worker::new(server.port(), 1, spec);
    let mut rounds = Vec::new();
    let mut bytes = 0.0;
    for _ in 0..effort.rounds {
        server.ask::<()>(&["FLUSHALL"]);
        worker.count(&order, IN_FLIGHT, charged * order.len());
        bytes = bytes_a_key(server);
        rounds.push(usage(server, || worker.run(&order, IN_FLIGHT, effort.long)));
    }
    let cpu = median(rounds.iter().map(|usage| usage.cpu));
    let rate = median(rounds.iter().map(|usage| 1.0 / usage.time));
    println!(
        "| {name} | {bytes:.0} | {cpu:.1} | {rate:.0} | {:.0} |",
        1e6 / cpu
    );
}

/// What the keys take that are there, on average.
fn bytes_a_key(server: &Redis) -> f64 {
    let mut link = server.connect();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut link).unwrap();
    let bytes: u64 = keys
        .iter()
        .map(|key| {
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(key);
            usage.query::<Option<u64>>(&mut link).unwrap().unwrap_or_default()
        })
        .sum();
    bytes as f64 / keys.len() as f64
}
