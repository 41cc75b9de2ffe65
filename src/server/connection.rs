//! One connection, from its first bytes to its end.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::{future, io};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::io::Watched;
use super::phase::{Fate, Phase};
use super::service::{Boxed, Counted};
use super::timers::{Expired, GRACE, Timers};
use super::{Settings, Stop};
use crate::inbound::RequestBody;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a first read; most request heads fit.
const FIRST_READ: usize = 2048;

/// The least that the HTTP/1 parser can be told to buffer.
const LEAST_BUFFER: usize = 8192;

/// HTTP/2: streams in flight, what a client may send ahead on one and on all, what is held for it to read, and streams
/// that it or we have reset before the connection is closed for it.
const STREAMS: u32 = 128;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 64 << 10;
const PENDING_RESETS: usize = 32;
const LOCAL_RESETS: usize = 256;

/// A connection that can be told to end after the requests that it has.
trait Graceful: Future<Output = Result<(), hyper::Error>> {
    fn graceful(self: Pin<&mut Self>);
}

impl<S, B> Graceful for http1::UpgradeableConnection<TokioIo<Watched>, S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = h2::Error>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Nothing to do: the service closes the connection with its next answer, the timers close one without a request.
    fn graceful(self: Pin<&mut Self>) {}
}

impl<S, B> Graceful for http2::Connection<TokioIo<Watched>, S, TokioExecutor>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = h2::Error>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn graceful(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves one client until it or we have had enough.
pub(super) async fn serve<M, S, B>(
    socket: TcpStream,
    peer: SocketAddr,
    settings: Arc<Settings>,
    stop: Stop,
    make: M,
) where
    M: FnOnce(SocketAddr, SocketAddr) -> S,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Ok(local) = socket.local_addr() else { return };
    let Some(first) = first_bytes(&socket, &settings, &stop).await else {
        return;
    };
    let phase = Phase::new(first.starts_with(PREFACE), stop);
    let service = Counted::new(make(peer, local), Arc::clone(&phase));
    let (watched, closed) = Watched::new(socket, first, Arc::clone(&phase));
    let io = TokioIo::new(watched);
    let ended = if phase.http2 {
        let connection = http2(&settings).serve_connection(io, Boxed(service));
        drive(connection, &phase, &settings).await
    } else {
        let connection = http1(&settings).serve_connection(io, service).with_upgrades();
        drive(connection, &phase, &settings).await
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn Error, "connection broken");
    }
    if phase.has_switched() {
        // Whoever speaks the other protocol has the socket now. It is a connection until it is closed.
        let _closed = closed.await;
    } else if let Some(switch) = phase.refused_switch()
        && let Ok(socket) = switch.await
    {
        let _closed = timeout(GRACE * 5, TokioIo::new(socket).shutdown()).await;
    }
}

/// A client that closes its half has left, as far as hyper is concerned: its request is dropped, and what was done for it
/// is cancelled. [`Watched`] does not tell it at once.
fn http1(settings: &Settings) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_header_size(settings.header_bytes)
        .max_buf_size(settings.header_bytes.max(LEAST_BUFFER));
    // hyper has room for 100 fields on its stack; any number set moves that to the heap.
    if settings.header_count != 100 {
        builder.max_headers(settings.header_count);
    }
    builder
}

fn http2(settings: &Settings) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER);
    builder
}

/// Waits for enough bytes to tell HTTP/2 from HTTP/1. `None`: they did not come in time, or never will.
async fn first_bytes(socket: &TcpStream, settings: &Settings, stop: &Stop) -> Option<Bytes> {
    let first = tokio::select! {
        biased;
        first = timeout(settings.idle, read(socket, Vec::new())) => first.ok()??,
        () = async { stop.wait().await; tokio::time::sleep(GRACE).await } => return None,
    };
    if first.len() >= PREFACE.len() || !PREFACE.starts_with(&first) {
        return Some(first.into());
    }
    let rest = async {
        let mut first = first;
        while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
            first = read(socket, first).await?;
        }
        Some(first.into())
    };
    timeout(settings.header, rest).await.ok()?
}

/// Appends what one read brings. A connection that has not sent anything holds no memory for it.
async fn read(socket: &TcpStream, mut to: Vec<u8>) -> Option<Vec<u8>> {
    loop {
        socket.readable().await.ok()?;
        let mut bytes = [0; FIRST_READ];
        match socket.try_read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => {
                to.extend_from_slice(&bytes[..count]);
                return Some(to);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Polls the connection, and lets its timers and the end of the serving act on it.
async fn drive<C: Graceful>(connection: C, phase: &Phase, settings: &Settings) -> Result<(), hyper::Error> {
    let mut connection = pin!(connection);
    let mut timers = Timers::new(settings);
    let mut stopped = pin!(phase.stop.wait());
    let (mut listening, mut leaving, mut told) = (false, false, None);
    future::poll_fn(|cx| {
        loop {
            phase.on_poll();
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            // One poll leaves our waker with the signal, which is the same in every poll.
            if !leaving && (!listening || phase.stop.is_triggered()) {
                listening = true;
                phase.wakes(cx.waker());
                if stopped.as_mut().poll(cx).is_ready() {
                    leaving = true;
                    connection.as_mut().graceful();
                    continue;
                }
            }
            // An end that was withheld while a request was in flight is due after it.
            if phase.has_ended() && !phase.is_answering() && told != Some(phase.requests()) {
                told = Some(phase.requests());
                continue;
            }
            let fate = match timers.poll(cx, phase, leaving) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Expired::Head) => Fate::TimeOut,
                Poll::Ready(Expired::Idle) => Fate::Close,
                Poll::Ready(Expired::Unread) => {
                    phase.look();
                    continue;
                }
                // Nobody reads, so that nobody can be told.
                Poll::Ready(Expired::Gone) if phase.has_hung_up() => return Poll::Ready(Ok(())),
                Poll::Ready(Expired::Gone) => Fate::Gone,
                Poll::Ready(Expired::Stall) => return Poll::Ready(Ok(())),
            };
            if phase.http2 {
                connection.as_mut().graceful();
                timers.close();
                continue;
            }
            if phase.fate() == fate {
                return Poll::Ready(Ok(()));
            }
            phase.doom(fate);
        }
    })
    .await
}
