//! The metrics, by the names that `/metrics` shows.

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

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
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let seconds = |name: &str, help: &str| {
            let opts = HistogramOpts::new(name, help).buckets(LATENCIES.to_vec());
            let histogram = Histogram::with_opts(opts)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let build = IntGaugeVec::new(
            Opts::new("tollgate_build_info", "Always 1; the labels say what runs"),
            &["version"],
        )?;
        registry.register(Box::new(build.clone()))?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            decisions: counters(
                "tollgate_decisions_total",
                "Decisions that took effect: each rule that admitted a request that was let through, each rule that refused one",
                &["rule", "verdict"],
            )?,
            refunds: counters(
                "tollgate_refunds_total",
                "Charges given back, by what they were given back for",
                &["rule", "outcome"],
            )?,
            overflows: counters(
                "tollgate_store_overflow_total",
                "Decisions on the bucket that new callers of a rule share while the memory store is full",
                &["rule"],
            )?,
            reloads: counters(
                "tollgate_config_reloads_total",
                "Reloads of the config",
                &["result"],
            )?,
            request_seconds: seconds(
                "tollgate_request_seconds",
                "From a request's head to the end of its response's body",
            )?,
            upstream_seconds: seconds(
                "tollgate_upstream_seconds",
                "From a request's departure to the head of the upstream's response",
            )?,
            in_flight: gauge(
                "tollgate_requests_in_flight",
                "Requests whose response has not ended",
            )?,
            store_keys: gauge("tollgate_store_keys", "Keys in the memory store")?,
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
