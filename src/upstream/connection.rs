//! One connection to a target: the task that attends to it, and the handle that uses it.

use std::convert::Infallible;
use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::Request;
use http_body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::sleep_until;

use super::io::{Wire, Wired};
use super::outgoing::Outgoing;
use super::repeat;
use super::timer::Timer;
use crate::clock;

/// A kept connection is closed when it was not used for this long, and at most a quarter more.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_TICKS: u32 = 4;

/// What a response head may have. Its fields may be 100, which hyper has room for on its stack: any number set moves them
/// to the heap, and 256 cost 2,500 instructions a request.
const HEADER_BYTES: usize = 128 << 10;

/// A connection, used by one request at a time. Dropping it closes it.
pub(super) struct Conn<B: Body + 'static> {
    pub(super) sender: SendRequest<Outgoing<B>>,
    pub(super) wire: Arc<Wire>,
    pub(super) timer: Timer,
    /// The number of its target.
    pub(super) target: usize,
    /// Whether it has served a request before, so that the upstream may be closing it.
    pub(super) used: bool,
    _dropped: oneshot::Sender<Infallible>,
}

impl<B> Conn<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    /// Speaks HTTP on a new socket. `open` is held until the socket is closed.
    pub(super) async fn start(
        socket: TcpStream,
        target: usize,
        first_deadline: Instant,
        open: OwnedSemaphorePermit,
    ) -> Result<Self, hyper::Error> {
        let wire = Arc::new(Wire::default());
        wire.take();
        let io = TokioIo::new(Wired::new(socket, Arc::clone(&wire), open));
        let (sender, connection) = http1::Builder::new()
            .max_header_size(HEADER_BYTES)
            .max_buf_size(HEADER_BYTES)
            .handshake(io)
            .await?;
        let (alive, dropped) = oneshot::channel();
        let watched = Arc::clone(&wire);
        tokio::spawn(async move {
            attend(connection.with_upgrades(), dropped, &watched).await;
        });
        Ok(Self {
            sender,
            wire,
            timer: Timer::new(first_deadline),
            target,
            used: false,
            _dropped: alive,
        })
    }

    /// The request that was sent last, if its head was kept and the upstream, which may have been closing a connection
    /// that was used before, said nothing.
    pub(super) fn again(&self) -> Option<Request<Outgoing<B>>> {
        let may = self.used && !self.wire.heard();
        may.then(|| repeat::request(&self.wire.head())).flatten()
    }
}

/// Drives a connection until it ends, its handle is dropped or it has been idle for too long.
async fn attend<C, E>(connection: C, dropped: oneshot::Receiver<Infallible>, wire: &Wire)
where
    C: Future<Output = Result<(), E>>,
{
    let tick = IDLE / IDLE_TICKS;
    let mut connection = pin!(connection);
    let mut dropped = pin!(dropped);
    let mut age = pin!(sleep_until((clock::now() + tick).into()));
    let (mut listening, mut ticks, mut seen) = (false, 0, None);
    future::poll_fn(|cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() || dropped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            // A task's waker stays the same, so that the sleep need be polled only once and when it is over.
            if listening && !age.is_elapsed() {
                return Poll::Pending;
            }
            listening = true;
            if age.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let idle = wire.idle_since_use();
            ticks = if idle.is_some() && idle == seen {
                ticks + 1
            } else {
                0
            };
            if ticks >= IDLE_TICKS {
                return Poll::Ready(());
            }
            seen = idle;
            age.as_mut().reset((clock::now() + tick).into());
            listening = false;
        }
    })
    .await;
}
