//! What a run took from the server.

use tollgate::clock;

use crate::server::Redis;

/// What one decision took, of a run.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Processor time of the server, µs.
    pub(crate) cpu: f64,
    /// Calls of a script.
    pub(crate) calls: f64,
    /// Time on the clock, s.
    pub(crate) time: f64,
}

/// Runs something that says how many decisions it made.
pub(crate) fn usage(server: &Redis, run: impl FnOnce() -> u64) -> Usage {
    let calls = || server.stat("evalsha", "calls");
    let (calls_before, cpu_before, began) = (calls(), cpu(server), clock::now());
    let decisions = run() as f64;
    let time = clock::now().duration_since(began).as_secs_f64();
    let cpu = cpu(server) - cpu_before;
    Usage {
        cpu: cpu * 1e6 / decisions,
        calls: (calls() - calls_before) / decisions,
        time: time / decisions,
    }
}

/// The processor time that the server has taken, in seconds.
fn cpu(server: &Redis) -> f64 {
    let info: String = server.ask(&["INFO", "cpu"]);
    let number = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    };
    number("used_cpu_user:") + number("used_cpu_sys:")
}

/// The middle one of some numbers.
pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
