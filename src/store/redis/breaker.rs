//! Whether a server is asked at all.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Opens after a few failures in a row, and is closed by whoever has seen the server well.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    failures: AtomicU32,
}

/// So many calls in a row fail by chance: a connection that ended in between, a slow moment.
const FAILURES: u32 = 3;

impl Breaker {
    /// Whether nobody asks.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// A call was answered.
    pub(super) fn succeeded(&self) {
        // Read first: a line that all workers write to at each call would be slower than the call's own work.
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// A call failed. Says whether this opened it.
    pub(super) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        failures >= FAILURES && self.trip()
    }

    /// Opens it. Says whether this did.
    pub(super) fn trip(&self) -> bool {
        !self.open.swap(true, Relaxed)
    }

    /// Closes it. Says whether this did.
    pub(super) fn close(&self) -> bool {
        self.failures.store(0, Relaxed);
        self.open.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::Breaker;

    #[test]
    fn it_opens_at_the_third_failure_in_a_row_and_says_so_once() {
        let breaker = Breaker::default();
        assert!(!breaker.failed() && !breaker.failed());
        breaker.succeeded();
        assert!(!breaker.failed() && !breaker.failed() && !breaker.is_open());
        assert!(breaker.failed() && breaker.is_open());
        assert!(!breaker.failed() && !breaker.trip());
        assert!(breaker.close() && !breaker.close() && !breaker.is_open());
        assert!(!breaker.failed());
        assert!(breaker.trip() && breaker.is_open());
    }
}
