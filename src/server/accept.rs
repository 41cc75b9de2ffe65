//! A worker's accept loop, and its drain.

use std::convert::Infallible;
use std::error::Error;
use std::future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::gate::Slot;
use super::{Shared, WorkerListeners, connection};
use crate::clock;
use crate::inbound::RequestBody;

/// After a failure to accept, such as too few file descriptors.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Between two warnings about failures to accept.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// Accepts connections and serves each with a service that `make` makes from the peer's and our own address. When the
/// serving stops, what the kernel has accepted is served too, then requests in flight have the drain time to end.
/// Returns how many connections were cut.
///
/// # Errors
/// The listeners cannot be used in this runtime.
pub async fn serve<M, S, B>(listeners: WorkerListeners, shared: &Shared, make: M) -> io::Result<usize>
where
    M: Fn(SocketAddr, SocketAddr) -> S + Clone + Send + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let listeners = Listeners::new(listeners)?;
    let mut worker = Worker {
        shared,
        make,
        connections: JoinSet::new(),
    };
    let mut warned = None;
    let mut stopped = pin!(shared.stop.wait());
    loop {
        let next = tokio::select! {
            biased;
            () = &mut stopped => break,
            Some(ended) = worker.connections.join_next() => {
                note(ended);
                continue;
            }
            next = listeners.next(shared) => next,
        };
        match next {
            Ok((socket, peer)) => {
                let slot = tokio::select! {
                    biased;
                    slot = shared.gate.enter(|| shared.settings.load().connections) => slot,
                    () = &mut stopped => {
                        worker.spawn(socket, peer, shared.gate.force());
                        break;
                    }
                };
                worker.spawn(socket, peer, slot);
            }
            Err(error) => recover(&error, &mut warned).await,
        }
    }
    listeners.rest(|socket, peer| worker.spawn(socket, peer, shared.gate.force()));
    Ok(worker.drain().await)
}

/// Waits out a failure that the next accept would meet again.
async fn recover(error: &io::Error, warned: &mut Option<Instant>) {
    if is_the_clients(error) {
        return;
    }
    let now = clock::now();
    if warned.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY) {
        *warned = Some(now);
        tracing::warn!(%error, "cannot accept connections");
    }
    sleep(BACK_OFF).await;
}

/// Whether the failure is that of one connection.
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

fn note(ended: Result<(), JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("a connection's task panicked");
    }
}

struct Worker<'a, M> {
    shared: &'a Shared,
    make: M,
    connections: JoinSet<()>,
}

impl<M, S, B> Worker<'_, M>
where
    M: Fn(SocketAddr, SocketAddr) -> S + Clone + Send + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn spawn(&mut self, socket: TcpStream, peer: SocketAddr, mut slot: Slot) {
        let settings = self.shared.settings.load_full();
        if !slot.admit(peer.ip(), &settings) {
            tracing::debug!("too many connections from one address");
            return;
        }
        let (stop, make) = (self.shared.stop.clone(), self.make.clone());
        self.connections.spawn(async move {
            connection::serve(socket, peer, settings, stop, make).await;
            drop(slot);
        });
    }

    async fn drain(mut self) -> usize {
        let longest = self.shared.settings.load().drain;
        let all = async {
            while let Some(ended) = self.connections.join_next().await {
                note(ended);
            }
        };
        if timeout(longest, all).await.is_ok() {
            return 0;
        }
        let cut = self.connections.len();
        self.connections.shutdown().await;
        cut
    }
}

/// A worker's listeners, and which is the first to be asked.
struct Listeners(Vec<TcpListener>, AtomicUsize);

impl Listeners {
    fn new(listeners: WorkerListeners) -> io::Result<Self> {
        let listeners = listeners.0.into_iter().map(TcpListener::from_std);
        Ok(Self(listeners.collect::<io::Result<_>>()?, AtomicUsize::new(0)))
    }

    /// The next connection, once there is room for one.
    async fn next(&self, shared: &Shared) -> io::Result<(TcpStream, SocketAddr)> {
        shared.gate.room(|| shared.settings.load().connections).await;
        future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let first = self.1.fetch_add(1, Relaxed) % self.0.len().max(1);
        let (before, after) = self.0.split_at(first);
        for listener in after.iter().chain(before) {
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }

    /// Hands over every connection that the kernel has accepted already, and closes the listeners.
    fn rest(self, mut each: impl FnMut(TcpStream, SocketAddr)) {
        for listener in self.0 {
            let Ok(listener) = listener.into_std() else {
                continue;
            };
            loop {
                match listener.accept() {
                    Ok((socket, peer)) => {
                        if socket.set_nonblocking(true).is_ok()
                            && let Ok(socket) = TcpStream::from_std(socket)
                        {
                            each(socket, peer);
                        }
                    }
                    Err(error) if is_the_clients(&error) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
