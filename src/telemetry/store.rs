//! The metrics of a store that is not in this process.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::registrar::Registrar;

/// Upper bounds of the latency of calls, in seconds.
const LATENCIES: [f64; 12] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0,
];

/// Upper bounds of the charges of a call.
const CHARGES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The metrics of all servers.
#[derive(Debug)]
pub(super) struct StoreMetrics {
    seconds: HistogramVec,
    calls: IntCounterVec,
    charges: Histogram,
    degraded: IntGaugeVec,
    guards: IntGaugeVec,
    clock_steps: IntCounter,
    refunds_lost: IntCounter,
}

/// The metrics of one server. Of `calls`, `late` ones were counted as unknown before.
#[derive(Debug)]
pub struct ShardMeter {
    /// From sending a call to its answer, in seconds.
    pub seconds: Histogram,
    /// Calls that were decided in time.
    pub decided: IntCounter,
    /// Calls that changed nothing.
    pub not_executed: IntCounter,
    /// Calls that nothing is known of.
    pub unknown: IntCounter,
    /// Answers that came when nobody waited for them any more.
    pub late: IntCounter,
    /// Charges of a call.
    pub charges: Histogram,
    /// How often the server's clock was set.
    pub clock_steps: IntCounter,
    /// Refunds that nobody will make.
    pub refunds_lost: IntCounter,
}

/// How a call may end.
const ENDS: [&str; 4] = ["decided", "not_executed", "unknown", "late"];

/// What gauges tell of one server.
#[derive(Clone, Debug)]
pub struct ShardGauges<'a> {
    /// Where it listens.
    pub shard: &'a str,
    /// Whether it decides nothing.
    pub degraded: bool,
    /// Each check, and whether the server fails it.
    pub guards: [(&'static str, bool); 3],
}

impl StoreMetrics {
    pub(super) fn new(registrar: &Registrar<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            seconds: registrar.histograms(
                "tollgate_store_seconds",
                "From sending a call to a shard to its answer",
                &LATENCIES,
                &["shard"],
            )?,
            calls: registrar.counters(
                "tollgate_store_calls_total",
                "Calls to a shard, by how they ended: decided, not_executed (nothing was charged), unknown (what was charged stays so), late (an answer after that)",
                &["shard", "end"],
            )?,
            charges: registrar.histogram(
                "tollgate_store_charges_per_call",
                "Charges that one call decides",
                &CHARGES,
            )?,
            degraded: registrar.gauges(
                "tollgate_store_degraded",
                "1 while a shard decides nothing and rules go by on_outage",
                &["shard"],
            )?,
            guards: registrar.gauges(
                "tollgate_store_guard",
                "1 while a shard fails a check: role, version, eviction",
                &["shard", "check"],
            )?,
            clock_steps: registrar.counter(
                "tollgate_store_clock_step_total",
                "Times that a shard's clock was found more than a second off",
            )?,
            refunds_lost: registrar.counter(
                "tollgate_refunds_lost_total",
                "Refunds that a shard did not confirm: their charges may stay until their windows end",
            )?,
        })
    }

    pub(super) fn shard(&self, shard: &str) -> ShardMeter {
        let calls = |end: &str| self.calls.with_label_values(&[shard, end]);
        ShardMeter {
            seconds: self.seconds.with_label_values(&[shard]),
            decided: calls("decided"),
            not_executed: calls("not_executed"),
            unknown: calls("unknown"),
            late: calls("late"),
            charges: self.charges.clone(),
            clock_steps: self.clock_steps.clone(),
            refunds_lost: self.refunds_lost.clone(),
        }
    }

    /// Forgets what was counted of a server that has left.
    pub(super) fn forget(&self, shard: &str) {
        let _ = self.seconds.remove_label_values(&[shard]);
        for end in ENDS {
            let _ = self.calls.remove_label_values(&[shard, end]);
        }
    }

    /// Shows these servers and no others.
    pub(super) fn show(&self, shards: &[ShardGauges<'_>]) {
        self.degraded.reset();
        self.guards.reset();
        for shown in shards {
            let degraded = self.degraded.with_label_values(&[shown.shard]);
            degraded.set(shown.degraded.into());
            for (check, fails) in shown.guards {
                let guard = self.guards.with_label_values(&[shown.shard, check]);
                guard.set(fails.into());
            }
        }
    }
}
