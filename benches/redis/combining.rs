//! The first table: one call for all that waits, beside a call for each decision.

use std::time::Duration;

use crate::charges::{limit_key, numbers, spec};
use crate::server::Redis;
use crate::single::Single;
use crate::usage::{Usage, median, usage};
use crate::worker::{Order, Worker};
use crate::{Effort, progress};

const IN_FLIGHT: [usize; 5] = [1, 16, 64, 128, 256];

/// Requests whose keys are spread, and from how many callers.
const REQUESTS: usize = 20_000;
const CALLERS: u64 = 10_000;

/// Who asks, and by how many rules.
struct Load {
    keys: &'static str,
    rules: usize,
    order: Order,
    worker: Worker,
    single: Single,
}

/// One line of the table: a round each of both.
struct Case {
    load: usize,
    in_flight: usize,
    rounds: Vec<[Usage; 2]>,
}

impl Load {
    fn all(server: &Redis) -> Vec<Self> {
        let spread: Vec<u64> = numbers().map(|n| n % CALLERS).take(REQUESTS).collect();
        let mut loads = Vec::new();
        for (keys, callers) in [("spread", &spread[..]), ("one hot", &[0])] {
            for rules in [1, 3] {
                progress(&format!("calls to record: {keys} keys, rules: {rules}"));
                loads.push(Self::new(server, (keys, rules), callers));
            }
        }
        loads
    }

    fn new(server: &Redis, (keys, rules): (&'static str, usize), callers: &[u64]) -> Self {
        let all = |caller: &u64| (0..rules as u64).map(|rule| limit_key(*caller, rule)).collect();
        let order: Order = Order::new(callers.iter().map(all).collect());
        Self {
            keys,
            rules,
            worker: Worker::new(server.port(), rules, &spec()),
            single: Single::new(server.port(), &spec(), &order),
            order,
        }
    }

    /// A round of both, the first one by turns.
    fn round(&mut self, server: &Redis, in_flight: usize, long: Duration, turned: bool) -> [Usage; 2] {
        let combined = || usage(server, || self.worker.run(&self.order, in_flight, long));
        let mut single = || usage(server, || self.single.run(in_flight, long));
        if turned {
            let single = single();
            [combined(), single]
        } else {
            [combined(), single()]
        }
    }
}

impl Case {
    fn print(&self, load: &Load) {
        let of = |which: usize, what: fn(&Usage) -> f64| {
            median(self.rounds.iter().map(move |round| what(&round[which])))
        };
        let ratio = median(
            self.rounds
                .iter()
                .map(|[combined, single]| combined.cpu / single.cpu),
        );
        println!(
            "| {} | {} | {} | {:.1} | {:.1} | {ratio:.2} | {:.0} | {:.0} | {:.0} | {:.0} |",
            load.keys,
            load.rules,
            self.in_flight,
            of(0, |usage| usage.cpu),
            of(1, |usage| usage.cpu),
            of(0, |usage| usage.calls * 1e3),
            of(1, |usage| usage.calls * 1e3),
            of(0, |usage| 1.0 / usage.time),
            of(1, |usage| 1.0 / usage.time),
        );
    }
}

/// Measures, and prints the table.
pub(crate) fn table(server: &Redis, effort: &Effort) {
    let mut loads = Load::all(server);
    let cases = (0..loads.len()).flat_map(|load| IN_FLIGHT.map(|in_flight| (load, in_flight)));
    let mut cases: Vec<Case> = cases
        .map(|(load, in_flight)| Case {
            load,
            in_flight,
            rounds: Vec::new(),
        })
        .collect();
    for round in 0..effort.rounds {
        progress(&format!("calls: round {} of {}", round + 1, effort.rounds));
        for case in &mut cases {
            let load = &mut loads[case.load];
            case.rounds
                .push(load.round(server, case.in_flight, effort.long, round % 2 == 1));
        }
    }
    println!(
        "Redis CPU is in µs for each decision; calls are for 1,000 decisions. \"Each\" is a call for each decision.\n"
    );
    println!(
        "| keys | rules | in flight | CPU | CPU, each | ratio | calls | calls, each | decisions/s | decisions/s, each |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for case in &cases {
        case.print(&loads[case.load]);
    }
}
