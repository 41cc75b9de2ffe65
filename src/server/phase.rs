//! Where a connection stands: what its socket, its service and its timers tell one another.
//!
//! All of them run on one worker's thread. The fields are atomics because tasks must be `Send`, and relaxed because
//! none publishes anything but itself.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use hyper::upgrade::OnUpgrade;

use super::Stop;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Phase {
    /// Whether it speaks HTTP/2.
    pub(super) http2: bool,
    /// What ends the serving.
    pub(super) stop: Stop,
    in_flight: AtomicUsize,
    arriving: AtomicUsize,
    requests: AtomicU64,
    head: AtomicBool,
    owing: AtomicUsize,
    reads: AtomicU64,
    writes: AtomicU64,
    blocked: AtomicBool,
    lingering: AtomicBool,
    reading: AtomicBool,
    looks: AtomicU64,
    looking: AtomicBool,
    hung_up: AtomicBool,
    ended: AtomicBool,
    switched: AtomicBool,
    refused: Mutex<Option<OnUpgrade>>,
    waker: Mutex<Option<Waker>>,
    fate: AtomicU8,
}

/// What becomes of a connection when its next read finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is kept.
    Keep,
    /// It is closed.
    Close,
    /// It is answered 408, then closed.
    TimeOut,
    /// Its client has stopped sending and counts as gone, whatever is in flight.
    Gone,
}

/// One request in flight, from the call of the service to the end of the response body.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Phase>);

/// One request body that has not ended and that somebody reads, be it after the answer.
#[derive(Debug)]
pub(super) struct Arriving(Arc<Phase>);

/// One response that has a frame out which the connection has not come back for: the client does not read it.
#[derive(Debug, Default)]
pub(super) struct Owing(bool);

impl Phase {
    pub(super) fn new(http2: bool, stop: Stop) -> Arc<Self> {
        Arc::new(Self {
            http2,
            stop,
            in_flight: AtomicUsize::new(0),
            arriving: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            head: AtomicBool::new(false),
            owing: AtomicUsize::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            lingering: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            refused: Mutex::new(None),
            waker: Mutex::new(None),
            fate: AtomicU8::new(Fate::Keep as u8),
        })
    }

    /// The service is called: the head is complete.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        self.head.store(false, Relaxed);
        self.doom(Fate::Keep);
        InFlight(Arc::clone(self))
    }

    /// A request comes with a body.
    pub(super) fn receive(self: &Arc<Self>) -> Arriving {
        self.arriving.fetch_add(1, Relaxed);
        Arriving(Arc::clone(self))
    }

    /// The connection's task is to look again when a request's body ends, which happens in other tasks.
    pub(super) fn wakes(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    /// Bytes came. Between requests they are the first of a head.
    pub(super) fn on_read(&self) {
        self.reads.fetch_add(1, Relaxed);
        if !self.is_busy() {
            self.head.store(true, Relaxed);
        }
    }

    /// Bytes left.
    pub(super) fn on_write(&self) {
        self.writes.fetch_add(1, Relaxed);
        self.blocked.store(false, Relaxed);
    }

    /// The socket takes no bytes.
    pub(super) fn on_blocked(&self) {
        self.blocked.store(true, Relaxed);
    }

    /// Our side is closed, what the client still sends is read and thrown away.
    pub(super) fn on_linger(&self) {
        self.lingering.store(true, Relaxed);
    }

    /// The connection is polled; whether it reads will be seen.
    pub(super) fn on_poll(&self) {
        self.reading.store(false, Relaxed);
    }

    /// The connection waits for bytes, and would hear of an end.
    pub(super) fn on_waiting(&self) {
        self.reading.store(true, Relaxed);
    }

    /// The socket is to be looked at in the next poll, without reading.
    pub(super) fn look(&self) {
        self.looks.fetch_add(1, Relaxed);
        self.looking.store(true, Relaxed);
    }

    /// Whether the socket is to be looked at, which is said once.
    pub(super) fn take_look(&self) -> bool {
        self.looking.load(Relaxed) && self.looking.swap(false, Relaxed)
    }

    /// The client has closed its half, behind bytes that nobody has read yet.
    pub(super) fn on_hangup(&self) {
        self.hung_up.store(true, Relaxed);
    }

    /// The client has closed its half.
    pub(super) fn on_end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// The next bytes are those of another protocol.
    pub(super) fn on_switch(&self) {
        self.switched.store(true, Relaxed);
    }

    /// The client asked for another protocol, and was answered in this one.
    pub(super) fn on_no_switch(&self, switch: OnUpgrade) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(switch);
    }

    /// A switch that was not made. hyper hands over a connection that ends after such a request, instead of closing it.
    pub(super) fn refused_switch(&self) -> Option<OnUpgrade> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the client has closed its half.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether another protocol is spoken, by somebody else.
    pub(super) fn has_switched(&self) -> bool {
        self.switched.load(Relaxed)
    }

    /// Whether the client is known to have closed its half behind bytes that nobody reads.
    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up.load(Relaxed) && !self.has_ended()
    }

    /// How often the socket was looked at, where an end of the client's would go unnoticed: a request is in flight, and
    /// nothing reads, because there is more than is wanted. HTTP/2 reads always.
    pub(super) fn unread(&self) -> Option<u64> {
        let unread = !self.http2
            && self.is_answering()
            && !self.reading.load(Relaxed)
            && !self.has_switched()
            && !self.has_ended()
            && !self.has_hung_up();
        unread.then(|| self.looks.load(Relaxed))
    }

    /// Whether the client has closed its half and still waits for an answer. HTTP/2 has no such state.
    pub(super) fn awaits_answer(&self) -> bool {
        !self.http2 && (self.has_ended() || self.has_hung_up()) && self.is_answering() && !self.has_switched()
    }

    /// Whether a request has no answer yet, or not all of it.
    pub(super) fn is_answering(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Whether the bytes that come may belong to a request whose head is complete, or one waits for its answer.
    pub(super) fn is_busy(&self) -> bool {
        self.is_answering() || self.arriving.load(Relaxed) > 0
    }

    /// Whether a request head has begun and not ended. HTTP/2 has no such state.
    pub(super) fn in_head(&self) -> bool {
        !self.http2 && self.head.load(Relaxed) && !self.is_busy() && !self.is_lingering()
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_busy() && !self.in_head()
    }

    /// Whether bytes for the client wait because it reads nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.blocked.load(Relaxed) || self.owing.load(Relaxed) > 0
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.lingering.load(Relaxed)
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Reads so far that brought bytes.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// Writes so far that took bytes.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Relaxed)
    }

    pub(super) fn fate(&self) -> Fate {
        match self.fate.load(Relaxed) {
            1 => Fate::Close,
            2 => Fate::TimeOut,
            3 => Fate::Gone,
            _ => Fate::Keep,
        }
    }

    pub(super) fn doom(&self, fate: Fate) {
        self.fate.store(fate as u8, Relaxed);
    }
}

impl InFlight {
    pub(super) fn phase(&self) -> &Phase {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if self.0.arriving.fetch_sub(1, Relaxed) == 1
            && !self.0.is_answering()
            && let Some(waker) = &*self.0.waker.lock().unwrap_or_else(PoisonError::into_inner)
        {
            waker.wake_by_ref();
        }
    }
}

impl Owing {
    pub(super) fn set(&mut self, owing: bool, phase: &Phase) {
        if self.0 != owing {
            self.0 = owing;
            if owing {
                phase.owing.fetch_add(1, Relaxed);
            } else {
                phase.owing.fetch_sub(1, Relaxed);
            }
        }
    }
}
