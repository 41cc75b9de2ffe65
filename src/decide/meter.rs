//! What one rule did: its counters, and its log lines, at most one of a kind a second.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntCounter;

use crate::identity::LimitKey;
use crate::rules::Outcome;
use crate::store::{By, Ruling};
use crate::telemetry::Metrics;

/// The counters of one rule.
pub(super) struct Meter {
    rule: String,
    metrics: Arc<Metrics>,
    admitted: IntCounter,
    rejected: IntCounter,
    shed: IntCounter,
    dry_rejected: IntCounter,
    blocked: IntCounter,
    overflows: IntCounter,
    answered: IntCounter,
    failed: IntCounter,
    abandoned: IntCounter,
    unsent: IntCounter,
    unreported: Mutex<Unreported>,
}

#[derive(Default)]
struct Unreported {
    rejected: Tally,
    blocked: Tally,
    overflows: u64,
}

/// How many requests, and whose was the last.
#[derive(Default)]
struct Tally {
    count: u64,
    last: Option<LimitKey>,
}

impl Tally {
    fn add(&mut self, key: LimitKey) {
        self.count = self.count.saturating_add(1);
        self.last = Some(key);
    }
}

impl Meter {
    pub(super) fn new(rule: &str, metrics: &Arc<Metrics>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            rule: rule.to_owned(),
            admitted: metrics.decisions(rule, "admit"),
            rejected: metrics.decisions(rule, "reject"),
            shed: metrics.decisions(rule, "shed"),
            blocked: metrics.decisions(rule, "blocked"),
            dry_rejected: metrics.decisions(rule, "dry_reject"),
            overflows: metrics.overflows(rule),
            answered: metrics.refunds(rule, "answered"),
            failed: metrics.refunds(rule, "upstream-error"),
            abandoned: metrics.refunds(rule, "client-abort"),
            unsent: metrics.refunds(rule, "unsent"),
            unreported: Mutex::default(),
        }
    }

    /// Counts a ruling on a request that was `let_through` or not.
    pub(super) fn count(&self, let_through: bool, dry_run: bool, ruling: &Ruling) {
        let admitted = ruling.verdict.admitted;
        match (dry_run, admitted) {
            (_, true) if let_through => self.admitted.inc(),
            (true, false) => self.dry_rejected.inc(),
            (false, false) if ruling.by == By::Edge => self.shed.inc(),
            (false, false) => self.rejected.inc(),
            (_, true) => {}
        }
        if ruling.by == By::Fallback {
            self.fallback(if admitted { "admit" } else { "reject" });
        }
        let overflowed = ruling.by == By::Overflow;
        if overflowed {
            self.overflows.inc();
        }
        if overflowed || (!admitted && !dry_run) {
            let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
            unreported.overflows += u64::from(overflowed);
            if !admitted && !dry_run {
                unreported.rejected.add(ruling.key);
            }
        }
    }

    /// Counts what the rule's `on_outage` decided: `admit`, `reject` or `deny`.
    pub(super) fn fallback(&self, verdict: &str) {
        self.metrics.fallbacks(&self.rule, verdict).inc();
    }

    /// Counts a caller that is blocked.
    pub(super) fn blocked(&self, key: LimitKey) {
        self.blocked.inc();
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        unreported.blocked.add(key);
    }

    /// Counts a caller that a dry run would have blocked.
    pub(super) fn spared(&self) {
        self.dry_rejected.inc();
    }

    /// Counts a refund for an outcome.
    pub(super) fn refunded(&self, outcome: Outcome) {
        match outcome {
            Outcome::Answered(_) | Outcome::Faulted(_) => self.answered.inc(),
            Outcome::Failed(_) => self.failed.inc(),
            Outcome::Abandoned => self.abandoned.inc(),
            Outcome::Unsent => self.unsent.inc(),
        }
    }

    pub(super) fn report(&self) {
        let unreported = std::mem::take(&mut *self.unreported.lock().unwrap_or_else(PoisonError::into_inner));
        if let Tally {
            count,
            last: Some(key),
        } = unreported.rejected
        {
            tracing::info!(rule = self.rule, rejected = count, last_key = %key, "rejected");
        }
        if let Tally {
            count,
            last: Some(key),
        } = unreported.blocked
        {
            tracing::info!(rule = self.rule, blocked = count, last_key = %key, "blocked");
        }
        if unreported.overflows > 0 {
            tracing::error!(
                rule = self.rule,
                decisions = unreported.overflows,
                "memory store full: new callers share one bucket"
            );
        }
    }
}
