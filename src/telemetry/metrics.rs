//! The metrics, by the names that `/metrics` shows.

use super::registrar::Registrar;
use super::store::{ShardGauges, ShardMeter, StoreMetrics};
use prometheus::{Encoder, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder};

/// Upper bounds of the latency histograms, in seconds.
const LATENCIES: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// All metrics of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    refunds: IntCounterVec,
    overflows: IntCounterVec,
    reloads: IntCounterVec,
    fallbacks: IntCounterVec,
    store: StoreMetrics,
    /// From a request's head to the end of its response's body, in seconds.
    pub request_seconds: Histogram,
    /// From a request's departure to its upstream response's head, in seconds.
    pub upstream_seconds: Histogram,
    /// Requests whose response has not ended.
    pub in_flight: IntGauge,
    /// Keys in the memory store.
    pub store_keys: IntGauge,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Two metrics have one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let registrar = Registrar(&registry);
        let build = registrar.gauges(
            "tollgate_build_info",
            "Always 1; the labels say what runs",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            decisions: registrar.counters(
                "tollgate_decisions_total",
                "Decisions that took effect: each rule that admitted a request that was let through, each rule that refused one",
                &["rule", "verdict"],
            )?,
            refunds: registrar.counters(
                "tollgate_refunds_total",
                "Charges given back, by what they were given back for",
                &["rule", "outcome"],
            )?,
            overflows: registrar.counters(
                "tollgate_store_overflow_total",
                "Decisions on the bucket that new callers of a rule share while the memory store is full",
                &["rule"],
            )?,
            reloads: registrar.counters(
                "tollgate_config_reloads_total",
                "Reloads of the config",
                &["result"],
            )?,
            request_seconds: registrar.histogram(
                "tollgate_request_seconds",
                "From a request's head to the end of its response's body",
                &LATENCIES,
            )?,
            upstream_seconds: registrar.histogram(
                "tollgate_upstream_seconds",
                "From a request's departure to the head of the upstream's response",
                &LATENCIES,
            )?,
            in_flight: registrar.gauge(
                "tollgate_requests_in_flight",
                "Requests whose response has not ended",
            )?,
            store_keys: registrar.gauge("tollgate_store_keys", "Keys in the memory store")?,
            fallbacks: registrar.counters(
                "tollgate_fallback_decisions_total",
                "Decisions that on_outage made while the store could not",
                &["rule", "verdict"],
            )?,
            store: StoreMetrics::new(&registrar)?,
            registry,
        })
    }

    /// The counter of a rule's decisions with one verdict.
    pub fn decisions(&self, rule: &str, verdict: &str) -> IntCounter {
        self.decisions.with_label_values(&[rule, verdict])
    }

    /// The counter of a rule's refunds for one outcome.
    pub fn refunds(&self, rule: &str, outcome: &str) -> IntCounter {
        self.refunds.with_label_values(&[rule, outcome])
    }

    /// The counter of a rule's decisions on its overflow bucket.
    pub fn overflows(&self, rule: &str) -> IntCounter {
        self.overflows.with_label_values(&[rule])
    }

    /// The counter of what a rule's `on_outage` decided with one verdict: `admit`, `reject` or `deny`.
    pub fn fallbacks(&self, rule: &str, verdict: &str) -> IntCounter {
        self.fallbacks.with_label_values(&[rule, verdict])
    }

    /// The metrics of one server of a shared store.
    pub fn shard(&self, shard: &str) -> ShardMeter {
        self.store.shard(shard)
    }

    /// Forgets what was counted of a server that has left its store.
    pub fn forget_shard(&self, shard: &str) {
        self.store.forget(shard);
    }

    /// Sets the gauges of the servers of the shared store that is in force; those of others go.
    pub fn show_shards(&self, shards: &[ShardGauges<'_>]) {
        self.store.show(shards);
    }

    /// The counter of reloads with one result: `ok` or `refused`.
    pub fn reloads(&self, result: &str) -> IntCounter {
        self.reloads.with_label_values(&[result])
    }

    /// All metrics in the text format that Prometheus scrapes, version 0.0.4.
    ///
    /// # Errors
    /// A metric cannot be written.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
