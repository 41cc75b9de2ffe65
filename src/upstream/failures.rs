//! What operators are told of an upstream that fails.

use std::error::Error;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Failures since they were last reported, and whether the upstream has answered since the last.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicU64,
    last: Mutex<String>,
    /// A request failed, and the end of that has not been reported.
    down: AtomicBool,
    /// A request was answered after that.
    up: AtomicBool,
}

impl Failures {
    /// Notes a failure of the target, with all that caused it.
    pub(super) fn note(&self, what: &dyn Display, mut cause: Option<&(dyn Error + 'static)>, target: &str) {
        let mut text = what.to_string();
        while let Some(error) = cause {
            let _infallible = write!(text, ": {error}");
            cause = error.source();
        }
        let _infallible = write!(text, " ({target})");
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = text;
        self.count.fetch_add(1, Relaxed);
    }

    /// A request failed.
    pub(super) fn lost(&self) {
        self.down.store(true, Relaxed);
        self.up.store(false, Relaxed);
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        if self.down.load(Relaxed) {
            self.up.store(true, Relaxed);
        }
    }

    /// Logs what has happened since the last report.
    pub(super) fn report(&self, upstream: &str) {
        let failures = self.count.swap(0, Relaxed);
        if failures > 0 {
            let last = std::mem::take(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner));
            tracing::warn!(upstream, failures, last, "upstream failing");
        } else if self.up.swap(false, Relaxed) {
            self.down.store(false, Relaxed);
            tracing::info!(upstream, "upstream answers again");
        }
    }
}
