//! Connections that carry many requests at once: HTTP/2 with prior knowledge.

use std::convert::Infallible;
use std::future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderName, Request, Uri, Version};
use http_body::Body;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{sleep_until, timeout};

use super::io::{Wire, Wired};
use super::outgoing::Outgoing;
use crate::clock;

/// Requests at once on one connection; an upstream may allow fewer.
const STREAMS: usize = 100;

/// A connection without a request is closed after this long, and at most a quarter more.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_TICKS: u32 = 4;

/// A connection whose upstream is silent while a request waits is asked for a sign of life, and given up without one.
const PING: Duration = Duration::from_secs(20);
const PONG: Duration = Duration::from_secs(10);

/// How long the upstream may take to say how many requests it allows.
const GREETING: Duration = Duration::from_secs(1);

const HEADER_BYTES: u32 = 128 << 10;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Fields of HTTP/1.1 connections, and what stands in the target instead.
const NOT_OF_HTTP2: [HeaderName; 4] = [CONNECTION, TRANSFER_ENCODING, UPGRADE, HOST];

/// A connection that takes one more request after another.
pub(super) struct Shared<B: Body + 'static> {
    sender: SendRequest<Outgoing<B>>,
    load: Arc<Load>,
    _dropped: oneshot::Sender<Infallible>,
}

/// How much a connection carries.
#[derive(Debug)]
struct Load {
    active: AtomicUsize,
    most: AtomicUsize,
    turns: AtomicU64,
    spent: AtomicBool,
}

/// A request on a shared connection.
#[derive(Debug)]
pub(super) struct Turn {
    load: Arc<Load>,
    /// Whether others had gone before, so that the upstream may be closing the connection.
    pub(super) used: bool,
}

/// The connections of one worker to one target.
pub(super) struct Set<B: Body + 'static> {
    shared: Mutex<Vec<Shared<B>>>,
    /// Held while a connection is opened: the requests that come meanwhile wait for it.
    pub(super) opening: tokio::sync::Mutex<()>,
}

impl Turn {
    /// The connection is to carry no further request.
    pub(super) fn spend(&self) {
        self.load.spent.store(true, Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.load.active.fetch_sub(1, Relaxed);
    }
}

impl Load {
    fn has_room(&self) -> bool {
        !self.spent.load(Relaxed) && self.active.load(Relaxed) < self.most.load(Relaxed)
    }

    fn turn(self: &Arc<Self>) -> Turn {
        self.active.fetch_add(1, Relaxed);
        Turn {
            load: Arc::clone(self),
            used: self.turns.fetch_add(1, Relaxed) > 0,
        }
    }

    /// A number that changes with each use; `None` while in use.
    fn idle_since(&self) -> Option<u64> {
        (self.active.load(Relaxed) == 0).then(|| self.turns.load(Relaxed))
    }
}

impl<B: Body + 'static> Set<B> {
    pub(super) fn new() -> Self {
        Self {
            shared: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shared<B>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place on a connection that has room.
    pub(super) fn turn(&self) -> Option<(SendRequest<Outgoing<B>>, Turn)> {
        let mut shared = self.lock();
        shared.retain(|one| !one.sender.is_closed() && !one.is_done());
        let one = shared.iter().find(|one| one.load.has_room())?;
        Some((one.sender.clone(), one.load.turn()))
    }

    pub(super) fn add(&self, shared: Shared<B>) {
        self.lock().push(shared);
    }

    /// Closes an idle connection, if there is any.
    pub(super) fn evict(&self) -> bool {
        let mut shared = self.lock();
        let idle = shared.iter().position(|one| one.load.idle_since().is_some());
        idle.map(|idle| shared.swap_remove(idle)).is_some()
    }
}

impl<B: Body + 'static> Shared<B> {
    fn is_done(&self) -> bool {
        self.load.spent.load(Relaxed) && self.load.idle_since().is_some()
    }
}

impl<B> Shared<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Send,
{
    /// Speaks HTTP/2 on a new socket. `open` is held until the socket is closed.
    pub(super) async fn start(socket: TcpStream, open: OwnedSemaphorePermit) -> Result<Self, hyper::Error> {
        let wire = Arc::new(Wire::default());
        let io = TokioIo::new(Wired::new(socket, Arc::clone(&wire), open));
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .max_header_list_size(HEADER_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(io)
            .await?;
        let load = Arc::new(Load {
            active: AtomicUsize::new(0),
            most: AtomicUsize::new(STREAMS),
            turns: AtomicU64::new(0),
            spent: AtomicBool::new(false),
        });
        let (alive, dropped) = oneshot::channel();
        let (greeted, greeting) = oneshot::channel();
        let task = attend(connection, dropped, Arc::clone(&load), wire, greeted);
        tokio::spawn(task);
        let _late = timeout(GREETING, greeting).await;
        Ok(Self {
            sender,
            load,
            _dropped: alive,
        })
    }
}

/// Drives a connection until it ends, its handle is dropped or it has been idle for too long.
async fn attend<B>(
    connection: Connection<TokioIo<Wired>, Outgoing<B>, TokioExecutor>,
    dropped: oneshot::Receiver<Infallible>,
    load: Arc<Load>,
    wire: Arc<Wire>,
    greeted: oneshot::Sender<()>,
) where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Send,
{
    let tick = IDLE / IDLE_TICKS;
    let mut connection = pin!(connection);
    let mut dropped = pin!(dropped);
    let mut age = pin!(sleep_until((clock::now() + tick).into()));
    let mut first = pin!(wire.first_bytes());
    let mut greeted = Some(greeted);
    let (mut ticks, mut seen) = (0, None);
    future::poll_fn(|cx| {
        loop {
            let ended = connection.as_mut().poll(cx).is_ready();
            if ended || (dropped.as_mut().poll(cx).is_ready() && load.idle_since().is_some()) {
                load.spent.store(true, Relaxed);
                return Poll::Ready(());
            }
            load.most
                .store(connection.current_max_send_streams().clamp(1, STREAMS), Relaxed);
            // The first thing that comes is how many requests are allowed.
            if greeted.is_some() && first.as_mut().poll(cx).is_ready() {
                let _told = greeted.take().map(|greeted| greeted.send(()));
            }
            if age.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let idle = load.idle_since();
            ticks = if idle.is_some() && idle == seen {
                ticks + 1
            } else {
                0
            };
            if ticks >= IDLE_TICKS {
                load.spent.store(true, Relaxed);
                return Poll::Ready(());
            }
            seen = idle;
            age.as_mut().reset((clock::now() + tick).into());
        }
    })
    .await;
}

/// Makes the head of a request one of HTTP/2: what `Host` says, else the target's own authority, stands in the URI.
pub(super) fn translate<B: Body>(request: &mut Request<B>, target: &Authority) {
    let host = request.headers().get(HOST);
    let authority = host
        .and_then(|host| Authority::try_from(host.as_bytes()).ok())
        .unwrap_or_else(|| target.clone());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    for name in NOT_OF_HTTP2 {
        request.headers_mut().remove(name);
    }
}
