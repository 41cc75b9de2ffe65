//! The socket of an upstream connection, with what hyper does not tell or does not do.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// The most that an upstream may say before the head of its response has been read: interim responses, the head, and
/// what of the body comes along.
const BEFORE_ANSWER: usize = 512 << 10;

/// After so many bytes of that, others have their turn: hyper reads on as long as there is something to read.
const AT_A_TIME: usize = 32 << 10;

/// A connection keeps room for a head of so many bytes.
const USUAL_HEAD: usize = 2 << 10;

/// The upstream has said [`BEFORE_ANSWER`], and no answer.
#[derive(Debug, thiserror::Error)]
#[error("too much came before the answer")]
struct Babble;

/// What a connection's socket, its task and its user tell one another. All of them run on one worker's thread, so the
/// fields are relaxed.
#[derive(Debug, Default)]
pub(super) struct Wire {
    verify: AtomicBool,
    /// Bytes that came since the request was sent.
    heard: AtomicUsize,
    /// Whether the head of its response has not been read.
    unanswered: AtomicBool,
    in_use: AtomicBool,
    switched: AtomicBool,
    /// Whether what is written next is the head of a request that may have to be written again.
    keeps: AtomicBool,
    head: Mutex<Vec<u8>>,
    first: Notify,
    uses: AtomicU64,
}

impl Wire {
    /// A request is about to be sent. `verify`: only if the upstream has not closed the connection meanwhile. `keep`: its
    /// head may be asked for again.
    pub(super) fn begin(&self, verify: bool, keep: bool) {
        self.verify.store(verify, Relaxed);
        self.keeps.store(keep, Relaxed);
        self.heard.store(0, Relaxed);
        self.unanswered.store(true, Relaxed);
    }

    /// The head of the response has been read: what comes now is its body, which has no bound.
    pub(super) fn answered(&self) {
        self.unanswered.store(false, Relaxed);
    }

    /// Whether any byte came since the request was sent.
    pub(super) fn heard(&self) -> bool {
        self.heard.load(Relaxed) > 0
    }

    /// Keeps what is about to be written, if it is a head that may be asked for: it comes in one piece.
    fn keep(&self, parts: &[IoSlice<'_>]) {
        if !self.keeps.load(Relaxed) {
            return;
        }
        self.keeps.store(false, Relaxed);
        let mut head = self.head();
        head.clear();
        head.shrink_to(USUAL_HEAD);
        for part in parts {
            head.extend_from_slice(part);
        }
    }

    /// The head of the request that was sent last, as it was written, if it was to be kept.
    pub(super) fn head(&self) -> MutexGuard<'_, Vec<u8>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The upstream has switched to another protocol: a socket that takes no bytes is an error then.
    pub(super) fn switch(&self) {
        self.switched.store(true, Relaxed);
    }

    /// Waits until a byte has come.
    pub(super) async fn first_bytes(&self) {
        self.first.notified().await;
    }

    pub(super) fn take(&self) {
        self.uses.fetch_add(1, Relaxed);
        self.in_use.store(true, Relaxed);
    }

    pub(super) fn put_back(&self) {
        self.in_use.store(false, Relaxed);
    }

    /// A number that changes with each use; `None` while in use.
    pub(super) fn idle_since_use(&self) -> Option<u64> {
        (!self.in_use.load(Relaxed)).then(|| self.uses.load(Relaxed))
    }
}

/// A socket towards an upstream.
#[derive(Debug)]
pub(super) struct Wired {
    socket: TcpStream,
    wire: Arc<Wire>,
    deaf: bool,
    /// Bytes handed over since others last had their turn.
    at_once: usize,
    _open: OwnedSemaphorePermit,
}

impl Wired {
    /// `open` is held until the socket is closed.
    pub(super) fn new(socket: TcpStream, wire: Arc<Wire>, open: OwnedSemaphorePermit) -> Self {
        Self {
            socket,
            wire,
            deaf: false,
            at_once: 0,
            _open: open,
        }
    }

    /// Whether the upstream has closed a connection that is to be used again, or spoken out of turn. Asks the kernel,
    /// for the runtime may not have heard of it yet.
    fn is_stale(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.socket).peek(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// An upstream that no longer takes bytes may have answered before: its answer is read as long as it can be.
    fn write_on(&mut self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Ready(Err(_)) if !self.wire.switched.load(Relaxed) => {
                self.deaf = true;
                Poll::Pending
            }
            other => other,
        }
    }
}

impl AsyncRead for Wired {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.wire.verify.load(Relaxed) {
            self.wire.verify.store(false, Relaxed);
            if self.is_stale() {
                return Poll::Ready(Ok(()));
            }
        }
        let unanswered = self.wire.unanswered.load(Relaxed);
        let heard = self.wire.heard.load(Relaxed);
        if unanswered && heard >= BEFORE_ANSWER {
            return Poll::Ready(Err(io::Error::other(Babble)));
        }
        if unanswered && self.at_once >= AT_A_TIME {
            self.at_once = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.socket).poll_read(cx, buf);
        let came = buf.filled().len() - before;
        self.at_once = if came > 0 {
            self.at_once.saturating_add(came)
        } else {
            0
        };
        self.wire.heard.store(heard.saturating_add(came), Relaxed);
        if heard == 0 && came > 0 {
            self.wire.first.notify_one();
        }
        outcome
    }
}

impl AsyncWrite for Wired {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Pending;
        }
        self.wire.keep(&[IoSlice::new(buf)]);
        let outcome = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.write_on(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Pending;
        }
        self.wire.keep(bufs);
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.write_on(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
