//! The signal that ends the serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A signal that is given once and stays given. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Signal>);

#[derive(Debug, Default)]
struct Signal {
    given: AtomicBool,
    bell: Notify,
}

impl Stop {
    /// Gives the signal.
    pub fn trigger(&self) {
        self.0.given.store(true, Ordering::Release);
        self.0.bell.notify_waiters();
    }

    /// Whether the signal was given.
    pub fn is_triggered(&self) -> bool {
        self.0.given.load(Ordering::Acquire)
    }

    /// Waits for the signal.
    pub async fn wait(&self) {
        loop {
            let rung = self.0.bell.notified();
            tokio::pin!(rung);
            // Listen first, look second: a signal in between is heard.
            rung.as_mut().enable();
            if self.is_triggered() {
                return;
            }
            rung.await;
        }
    }
}
