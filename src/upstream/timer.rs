//! A sleep that is moved as seldom as possible.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

use crate::clock;

/// A timer for one deadline after another. A later deadline leaves the sleep where it is, and is looked at when the
/// sleep is over: the deadlines of requests that are answered in time cost no change of the runtime's timers.
#[derive(Debug)]
pub(super) struct Timer {
    sleep: Pin<Box<Sleep>>,
    armed: Instant,
}

impl Timer {
    pub(super) fn new(at: Instant) -> Self {
        Self {
            sleep: Box::pin(sleep_until(at.into())),
            armed: at,
        }
    }

    /// Ready once `deadline` has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        if deadline < self.armed {
            self.arm(deadline);
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            if deadline <= clock::now() {
                return Poll::Ready(());
            }
            self.arm(deadline);
        }
        Poll::Pending
    }

    fn arm(&mut self, at: Instant) {
        self.armed = at;
        self.sleep.as_mut().reset(at.into());
    }
}
