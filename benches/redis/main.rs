//! Decisions in Redis: one call for all that waits, beside a call for each decision; and what a key takes there:
//! `cargo bench --bench redis`, or `cargo bench --bench redis -- --quick` for less exact figures in less than 20 seconds.
//!
//! It starts a `redis-server` of its own. What is measured is the server's processor time, which is what runs out first
//! where many gateways share a server; what else runs on the machine adds little to it. Each figure is the median of
//! several rounds, which take turns; a ratio is the median of the ratios of each round.
//!
//! One worker asks over one link, as in the gateway. The last column of the second table is what would be, did the
//! server have a processor for itself and were it asked by as many workers as it takes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed setup ends the bench")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what it is for")]

mod algorithms;
#[path = "../charges/mod.rs"]
mod charges;
mod combining;
#[allow(dead_code, reason = "tests need more of it")]
#[path = "../../tests/it/support/redis.rs"]
mod server;
mod single;
mod usage;
mod worker;

use std::time::Duration;

use server::Redis;

/// How much is measured.
struct Effort {
    rounds: usize,
    /// The length of a run.
    long: Duration,
    /// Keys of each algorithm.
    keys: u64,
}

impl Effort {
    fn full() -> Self {
        Self {
            rounds: 7,
            long: Duration::from_millis(300),
            keys: 1_000,
        }
    }

    fn quick() -> Self {
        Self {
            rounds: 3,
            long: Duration::from_millis(60),
            keys: 200,
        }
    }
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let effort = if quick { Effort::quick() } else { Effort::full() };
    let server = Redis::with(&["--appendonly", "no", "--maxmemory-policy", "noeviction"]);
    combining::table(&server, &effort);
    algorithms::table(&server, &effort);
}

fn progress(what: &str) {
    eprintln!("redis: {what}");
}
