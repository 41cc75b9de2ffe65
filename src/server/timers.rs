//! The timers of one connection.
//!
//! A request whose head comes in one read costs no look at the clock and no change of a timer: one sleep ticks eight
//! times in the idle time and asks whether anything happened since, so that an idle connection is closed after its time
//! and at most an eighth more. The other timers start when a poll leaves the connection in their state.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use super::Settings;
use super::phase::{Fate, Phase};
use crate::clock;

/// Ticks in the idle time.
const TICKS: u32 = 8;

/// At the end, how long a kept connection is given to send the request that may be on its way.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// How long an answer may make no progress for a client that has closed its half: it is likely to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a client whose answer is complete may still send.
const LINGER: Duration = Duration::from_secs(30);

/// A timer that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// The request head took too long.
    Head,
    /// There was no request for too long, or for long enough at the end.
    Idle,
    /// The client does not read its answer, or does not close.
    Stall,
    /// The client has stopped sending, and its answer makes no progress.
    Gone,
    /// Nobody has read for a while, so that the client may be gone unnoticed.
    Unread,
}

/// A deadline that holds as long as a count stands still.
#[derive(Debug, Default)]
struct Standstill(Option<(u64, Instant)>);

impl Standstill {
    /// Starts over when `count` has moved, stops when it is `None`.
    fn watch(&mut self, count: Option<u64>, length: Duration) -> Option<Instant> {
        self.0 = match (count, self.0) {
            (None, _) => None,
            (Some(count), Some((seen, until))) if seen == count => Some((count, until)),
            (Some(count), _) => Some((count, clock::now() + length)),
        };
        self.0.map(|(_, until)| until)
    }
}

/// All timers of one connection, on one sleep.
#[derive(Debug)]
pub(super) struct Timers {
    sleep: Pin<Box<Sleep>>,
    armed: Instant,
    registered: bool,
    header: Duration,
    idle: Duration,
    next_tick: Instant,
    ticks: u32,
    seen: Option<u64>,
    head: Standstill,
    stall: Standstill,
    quiet: Standstill,
    silence: Standstill,
    linger: Standstill,
    close: Standstill,
    gone: Standstill,
    unread: Standstill,
    closing: bool,
}

impl Timers {
    pub(super) fn new(settings: &Settings) -> Self {
        let next_tick = clock::now() + tick(settings.idle);
        Self {
            sleep: Box::pin(sleep_until(next_tick.into())),
            armed: next_tick,
            registered: false,
            header: settings.header,
            idle: settings.idle,
            next_tick,
            ticks: 0,
            seen: None,
            head: Standstill::default(),
            stall: Standstill::default(),
            quiet: Standstill::default(),
            silence: Standstill::default(),
            linger: Standstill::default(),
            close: Standstill::default(),
            gone: Standstill::default(),
            unread: Standstill::default(),
            closing: false,
        }
    }

    /// The connection is told to end: without a request in flight, it has so long to do it.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// To be called after every poll of the connection that left it pending. `leaving` once the serving ends.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, phase: &Phase, leaving: bool) -> Poll<Expired> {
        loop {
            let due = self.due(phase, leaving);
            let soonest = due.iter().flatten().map(|(at, _)| *at).min();
            let wanted = soonest.map_or(self.next_tick, |at| at.min(self.next_tick));
            if wanted < self.armed {
                self.arm(wanted);
            }
            // The waker of a task stays the same, so that a sleep need be polled only when armed and when over.
            if self.registered && !self.sleep.is_elapsed() {
                return Poll::Pending;
            }
            self.registered = true;
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = clock::now();
            if let Some((_, expired)) = due.into_iter().flatten().find(|(at, _)| *at <= now) {
                self.arm(now + tick(self.idle));
                return Poll::Ready(expired);
            }
            if self.next_tick <= now {
                self.next_tick = now + tick(self.idle);
                if self.count(phase) {
                    self.arm(self.next_tick);
                    return Poll::Ready(Expired::Idle);
                }
            }
            self.arm(soonest.map_or(self.next_tick, |at| at.min(self.next_tick)));
        }
    }

    /// The deadlines of the state that the connection is in.
    fn due(&mut self, phase: &Phase, leaving: bool) -> [Option<(Instant, Expired)>; 8] {
        let head = phase.in_head().then(|| phase.requests());
        let head = self.head.watch(head, self.header);
        let stall = (phase.is_stalled() && !phase.is_lingering()).then(|| phase.writes());
        let stall = self.stall.watch(stall, self.idle);
        let quiet = (leaving && phase.is_idle()).then(|| phase.requests());
        let quiet = self.quiet.watch(quiet, GRACE);
        let silence = phase.is_lingering().then(|| phase.reads());
        let silence = self.silence.watch(silence, GRACE);
        let linger = self.linger.watch(phase.is_lingering().then_some(0), LINGER);
        let close = (self.closing && phase.is_idle()).then(|| phase.requests());
        let close = self.close.watch(close, GRACE);
        // Told that it is over, what is in flight has as long again to end.
        let told = u64::from(phase.fate() == Fate::Gone);
        let gone = phase
            .awaits_answer()
            .then(|| (phase.writes() + phase.reads()) << 1 | told);
        let gone = self.gone.watch(gone, PATIENCE);
        let unread = self.unread.watch(phase.unread(), PATIENCE);
        let due = |at: Option<Instant>, expired| at.map(|at| (at, expired));
        [
            due(close, Expired::Stall),
            due(head, Expired::Head),
            due(stall, Expired::Stall),
            due(quiet, Expired::Idle),
            due(silence, Expired::Stall),
            due(linger, Expired::Stall),
            due(gone, Expired::Gone),
            due(unread, Expired::Unread),
        ]
    }

    /// One tick: whether all ticks of the idle time have passed without a request.
    fn count(&mut self, phase: &Phase) -> bool {
        let now_seen = phase.is_idle().then(|| phase.requests());
        if now_seen.is_none() || now_seen != self.seen {
            self.seen = now_seen;
            self.ticks = 0;
            return false;
        }
        self.ticks += 1;
        self.ticks >= TICKS
    }

    fn arm(&mut self, at: Instant) {
        self.armed = at;
        self.registered = false;
        self.sleep.as_mut().reset(at.into());
    }
}

fn tick(idle: Duration) -> Duration {
    (idle / TICKS).max(Duration::from_millis(1))
}
