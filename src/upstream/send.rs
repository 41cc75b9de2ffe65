//! One request to an upstream, and its response.

use std::error::Error;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::header::{HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::body::{Alone, Lease};
use super::connection::Conn;
use super::exchange::{Fate, Lost, answered, is_unfit};
use super::failures::Failures;
use super::outgoing::{Outgoing, Upload};
use super::pool::Pool;
use super::repeat;
use super::streams::{self, Set, Shared};
use super::targets::Targets;
use super::timer::Timer;
use super::{SendError, Settings, TargetError, UpstreamBody};
use crate::clock;

/// How often a request may be sent over HTTP/2 that the upstream has not looked at.
const TURNS: u32 = 3;

/// An upstream, shared by all workers. `B` is the body of the requests that are sent to it.
pub struct Upstream<B: Body + 'static> {
    name: String,
    targets: Targets,
    failures: Failures,
    connections: usize,
    flights: Arc<Semaphore>,
    open: Arc<Semaphore>,
    pool: Arc<Pool<B>>,
    /// For each worker, and for each target of it. Empty where HTTP/1.1 is spoken.
    sets: Box<[Box<[Set<B>]>]>,
    connect: Duration,
    response: Duration,
}

/// How long a request may wait for a connection in all, from when it first has to wait, and whose turn it is to answer.
struct Patience {
    length: Duration,
    until: Option<Instant>,
    target: usize,
}

impl Patience {
    fn new(length: Duration, target: usize) -> Self {
        Self {
            length,
            until: None,
            target,
        }
    }

    fn until(&mut self) -> Instant {
        *self.until.get_or_insert_with(|| clock::now() + self.length)
    }
}

impl<B> Upstream<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Send,
{
    /// An upstream with no connection yet, for workers numbered from 0.
    ///
    /// # Errors
    /// A target that is neither `http://host:port` nor `h2c://host:port`, or not the same as the first.
    pub fn new(settings: &Settings, workers: usize) -> Result<Arc<Self>, TargetError> {
        let targets = Targets::new(&settings.targets)?;
        let shared = if targets.http2() { targets.len() } else { 0 };
        let sets = |_| (0..shared).map(|_| Set::new()).collect();
        let connections = settings.connections.min(Semaphore::MAX_PERMITS);
        Ok(Arc::new(Self {
            name: settings.name.clone(),
            pool: Arc::new(Pool::new(workers, targets.len())),
            sets: (0..workers).map(sets).collect(),
            targets,
            failures: Failures::default(),
            connections,
            flights: Arc::new(Semaphore::new(connections)),
            open: Arc::new(Semaphore::new(connections)),
            connect: settings.connect,
            response: settings.response,
        }))
    }

    /// Sends `request` on a connection of this `worker` and waits for the head of the response. The URI is to be in
    /// origin form and the fields are to be complete, with `Host`; nothing but the framing of the body is added.
    ///
    /// After a 101, the connection is that of hyper's upgrade in the response's extensions, and in use as long as the
    /// response's body lives. One that no `Upgrade` asked for is an error.
    ///
    /// `departed` is set as soon as the upstream may have a part of the request. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Nothing was sent, no response came, or the request body failed before one came.
    pub fn send(
        self: &Arc<Self>,
        worker: usize,
        request: Request<B>,
        departed: &AtomicBool,
    ) -> impl Future<Output = Result<Response<UpstreamBody<B>>, SendError<B::Error>>> + Send {
        let target = self.targets.turn();
        let (mut parts, body) = request.into_parts();
        let (body, upload) = Outgoing::new(body);
        let switches = self.name_host(&mut parts.headers, target);
        let mut request = Request::from_parts(parts, body);
        let repeatable = upload.is_none() && is_idempotent(request.method());
        // No `async fn`, which would hold the request twice.
        async move {
            let mut patience = Patience::new(self.connect, self.targets.len());
            // What is rarely waited for is boxed, so that every other request is smaller.
            let flight = match Arc::clone(&self.flights).try_acquire_owned() {
                Ok(flight) => flight,
                Err(_) => Box::pin(self.flight(&mut patience))
                    .await
                    .map_err(|error| self.lost(error, patience.target))?,
            };
            if self.targets.http2() {
                let shared = self.share((worker, target), request, upload, flight, departed, &mut patience);
                return Box::pin(shared)
                    .await
                    .map_err(|error| self.lost(error, patience.target));
            }
            let mut kept = self.pool.take(worker, target);
            loop {
                let mut conn = match kept.take() {
                    Some(conn) => conn,
                    None => Box::pin(self.open(target, &mut patience))
                        .await
                        .map_err(|error| self.lost(error, patience.target))?,
                };
                patience.target = conn.target;
                conn.wire.begin(conn.used && !repeatable, conn.used && repeatable);
                departed.store(true, Relaxed);
                // A second turn is on a new connection, and then the last.
                let answer = pin!(conn.sender.try_send_request(request));
                request = match answered(answer, &mut conn.timer, self.response, upload.as_deref()).await {
                    Ok(response) if is_unfit(&response, switches) => {
                        return Err(self.lost(SendError::Broken(None), patience.target));
                    }
                    Ok(response) => {
                        conn.wire.answered();
                        self.failures.answered();
                        return Ok(self.lend(response, conn, worker, upload, flight));
                    }
                    Err(Lost::Unsent(unsent, _)) if conn.used => {
                        departed.store(false, Relaxed);
                        *unsent
                    }
                    Err(Lost::Broken(error) | Lost::Unsent(_, error)) => {
                        if let Some(failed) = upload.as_ref().and_then(|upload| upload.take_error()) {
                            return Err(SendError::RequestBody(failed));
                        }
                        match conn.again().filter(|_| repeatable) {
                            Some(again) => again,
                            None => return Err(self.lost(SendError::Broken(Some(error)), patience.target)),
                        }
                    }
                    Err(Lost::TimedOut) => return Err(self.lost(SendError::Timeout, patience.target)),
                };
            }
        }
    }

    /// Without a host of its own, a request is for that of the target. Says whether it asks for another protocol.
    fn name_host(&self, headers: &mut HeaderMap, target: usize) -> bool {
        let (mut named, mut switches) = (self.targets.http2(), false);
        for name in headers.keys() {
            named |= *name == HOST;
            switches |= *name == UPGRADE;
        }
        if !named && let Ok(host) = HeaderValue::from_str(self.targets.authority(target).as_str()) {
            headers.insert(HOST, host);
        }
        switches
    }

    /// Notes a request that was not answered, unless that was its own body's fault.
    fn lost(&self, error: SendError<B::Error>, target: usize) -> SendError<B::Error> {
        let cause: Option<&(dyn Error + 'static)> = match &error {
            SendError::RequestBody(_) => return error,
            SendError::Broken(Some(error)) => Some(error),
            _ => None,
        };
        // What could not be connected to has been noted, target by target.
        if !matches!(error, SendError::Connect(_)) {
            self.failures.note(&error, cause, self.targets.name(target));
        }
        self.failures.lost();
        error
    }

    /// The same over HTTP/2, on a connection that carries other requests as well.
    async fn share(
        &self,
        (worker, target): (usize, usize),
        mut request: Request<Outgoing<B>>,
        upload: Option<Arc<Upload<B::Error>>>,
        flight: OwnedSemaphorePermit,
        departed: &AtomicBool,
        patience: &mut Patience,
    ) -> Result<Response<UpstreamBody<B>>, SendError<B::Error>> {
        let repeatable = upload.is_none() && is_idempotent(request.method());
        streams::translate(&mut request, self.targets.authority(target));
        let mut timer = Timer::new(clock::now() + self.response);
        let mut turns = 0;
        loop {
            turns += 1;
            let (mut sender, turn) = self.join(worker, target, patience).await?;
            let spare = upload.is_none().then(|| repeat::copy(&request));
            departed.store(true, Relaxed);
            let answer = pin!(sender.try_send_request(request));
            let (unsent, error) = match answered(answer, &mut timer, self.response, upload.as_deref()).await {
                Ok(response) => {
                    self.failures.answered();
                    let lease = Lease::Shared(turn, flight);
                    return Ok(response.map(|incoming| UpstreamBody::new(incoming, lease)));
                }
                Err(Lost::TimedOut) => return Err(SendError::Timeout),
                Err(Lost::Unsent(unsent, error)) => {
                    departed.store(false, Relaxed);
                    (Some(*unsent), error)
                }
                Err(Lost::Broken(error)) => (None, error),
            };
            if let Some(failed) = upload.as_ref().and_then(|upload| upload.take_error()) {
                return Err(SendError::RequestBody(failed));
            }
            let fate = Fate::of(&error);
            if unsent.is_some() || fate != Fate::Processed {
                turn.spend();
            }
            let again = fate == Fate::Unprocessed || (fate == Fate::Unknown && repeatable && turn.used);
            request = match unsent.or(spare.filter(|_| again)) {
                Some(again) if turns < TURNS => again,
                _ => return Err(SendError::Broken(Some(error))),
            };
        }
    }

    /// A place on a shared connection, a new one if need be.
    async fn join(
        &self,
        worker: usize,
        target: usize,
        patience: &mut Patience,
    ) -> Result<(SendRequest<Outgoing<B>>, streams::Turn), SendError<B::Error>> {
        let sets = self.sets.get(worker).map_or(&[][..], |sets| sets);
        let Some(set) = sets.get(target) else {
            return Err(SendError::Broken(None));
        };
        patience.target = target;
        if let Some(place) = set.turn() {
            return Ok(place);
        }
        let opening = set.opening.lock();
        let _opening = timeout_at(patience.until().into(), opening)
            .await
            .map_err(|_late| SendError::Busy)?;
        // The request that this one waited for may have found another target.
        let failing = !self.targets.is_well(target);
        let others = || sets.iter().filter(|_| failing).find_map(Set::turn);
        if let Some(place) = set.turn().or_else(others) {
            return Ok(place);
        }
        let (socket, reached, leave) = self.dial(target, patience).await?;
        let shared = Shared::start(socket, leave)
            .await
            .map_err(|error| SendError::Broken(Some(error)))?;
        let set = &sets[reached];
        set.add(shared);
        set.turn().ok_or(SendError::Broken(None))
    }

    /// Logs the failures since the last report, and that they have ended. To be called once a second.
    pub fn report(&self) {
        self.failures.report(&self.name);
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> usize {
        self.connections - self.open.available_permits()
    }

    /// Waits for the leave to have one more request in flight.
    async fn flight(&self, patience: &mut Patience) -> Result<OwnedSemaphorePermit, SendError<B::Error>> {
        let waiting = Arc::clone(&self.flights).acquire_owned();
        match timeout_at(patience.until().into(), waiting).await {
            Ok(Ok(flight)) => Ok(flight),
            _ => Err(SendError::Busy),
        }
    }

    /// A new connection to `target`, or to another if that one cannot be reached.
    async fn open(&self, target: usize, patience: &mut Patience) -> Result<Conn<B>, SendError<B::Error>> {
        let (socket, target, leave) = self.dial(target, patience).await?;
        Conn::start(socket, target, clock::now() + self.response, leave)
            .await
            .map_err(|error| SendError::Broken(Some(error)))
    }

    async fn dial(
        &self,
        target: usize,
        patience: &mut Patience,
    ) -> Result<(TcpStream, usize, OwnedSemaphorePermit), SendError<B::Error>> {
        let until = patience.until();
        let leave = self.leave_to_open(until).await?;
        let connected = self.targets.connect(target, until, &self.failures).await;
        let (socket, target) = connected.map_err(SendError::Connect)?;
        patience.target = target;
        Ok((socket, target, leave))
    }

    /// Waits until one more connection may be open. There are never fewer connections than requests in flight, so when
    /// all are open and this request has none, one of them is idle: it is closed.
    async fn leave_to_open(&self, until: Instant) -> Result<OwnedSemaphorePermit, SendError<B::Error>> {
        if let Ok(leave) = Arc::clone(&self.open).try_acquire_owned() {
            return Ok(leave);
        }
        let _waiting = self.pool.make_room();
        let _closed = self.sets.iter().flatten().any(Set::evict);
        match timeout_at(until.into(), Arc::clone(&self.open).acquire_owned()).await {
            Ok(Ok(leave)) => Ok(leave),
            _ => Err(SendError::Busy),
        }
    }

    fn lend(
        self: &Arc<Self>,
        response: Response<Incoming>,
        conn: Conn<B>,
        worker: usize,
        upload: Option<Arc<Upload<B::Error>>>,
        flight: OwnedSemaphorePermit,
    ) -> Response<UpstreamBody<B>> {
        let lease = Lease::Alone(Box::new(Alone {
            conn,
            worker,
            upload,
            pool: Arc::clone(&self.pool),
            _flight: flight,
        }));
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        response.map(|incoming| {
            if switched {
                UpstreamBody::switched(incoming, lease)
            } else {
                UpstreamBody::new(incoming, lease)
            }
        })
    }
}

impl<B: Body + 'static> fmt::Debug for Upstream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

/// Methods that may reach the upstream twice (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}
