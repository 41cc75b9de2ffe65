//! The clock of a server, as far as it is known here.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::clock::{Clock, Micros};

/// The clock of a server, told by this process's: from what its replies said.
#[derive(Debug)]
pub(super) struct ServerClock {
    here: Clock,
    /// How far the server's clock is ahead of the one here, in microseconds; [`UNKNOWN`] until a reply has said so.
    ahead: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;

/// A server's clock that is found further off than this was set.
const STEP: u64 = 1_000_000;

impl ServerClock {
    /// A server's clock, of which nothing is known yet.
    pub(super) fn new(here: Clock) -> Self {
        Self {
            here,
            ahead: AtomicI64::new(UNKNOWN),
        }
    }

    /// A reply that came just now says `now`, and was not long on its way. Says whether the clock was set meanwhile.
    pub(super) fn learn(&self, now: Micros) -> bool {
        let ahead = now
            .0
            .cast_signed()
            .saturating_sub(self.here.now().0.cast_signed());
        let known = self.ahead.swap(ahead, Relaxed);
        known != UNKNOWN && known.abs_diff(ahead) > STEP
    }

    /// What the server's clock says now, or a little less: a reply tells what it said when it was sent.
    pub(super) fn now(&self) -> Micros {
        let here = self.here.now();
        match self.ahead.load(Relaxed) {
            UNKNOWN => here,
            ahead => Micros(here.0.saturating_add_signed(ahead)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServerClock;
    use crate::clock::{Clock, Micros};

    #[test]
    fn it_goes_on_from_what_the_last_reply_said() {
        let here = Clock::manual(Micros(5_000_000));
        let clock = ServerClock::new(here.clone());
        assert_eq!(clock.now(), Micros(5_000_000));
        assert!(!clock.learn(Micros(7_000_000)));
        here.set(Micros(5_000_100));
        assert_eq!(clock.now(), Micros(7_000_100));
        assert!(!clock.learn(Micros(6_500_000)));
        assert_eq!(clock.now(), Micros(6_500_000));
        assert!(clock.learn(Micros(1_000_000)));
        here.set(Micros(5_000_200));
        assert_eq!(clock.now(), Micros(1_000_100));
    }
}
