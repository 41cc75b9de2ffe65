//! The outermost service: what every request passes before and after the limits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{Method, Request, Response};

use super::Settings;
use super::admission::{self, NO_ROUTE};
use super::body::{Download, Guarded};
use super::discard::discard;
use super::forward::{FromUpstream, ToUpstream, Way, forward};
use super::hop::Hop;
use super::last_hop;
use super::layer::{self, Limits};
use super::route::RouteTable;
use crate::clock::{self, Micros};
use crate::identity::Caller;
use crate::inbound::RequestBody;
use crate::telemetry::Metrics;

/// All that a reload exchanges at once.
pub struct Generation {
    /// The limits of requests.
    pub settings: Settings,
    /// Where requests go: the place of a route here is its place in `destinations`.
    pub routes: RouteTable,
    /// For each route, its pattern and its upstream.
    pub destinations: Vec<(Arc<str>, Arc<ToUpstream>)>,
    /// What the limiting stage works by.
    pub limits: Arc<Limits>,
}

/// One worker's gateway.
#[derive(Clone)]
pub struct Gateway {
    current: Arc<ArcSwap<Generation>>,
    metrics: Arc<Metrics>,
    worker: usize,
}

/// One connection's gateway.
pub struct Connection {
    gateway: Gateway,
    peer: IpAddr,
    hop: Hop,
}

/// The body of a response to a client.
pub type GatewayBody = Guarded<Download<Download<FromUpstream>>, InFlight>;

/// Counts a request until it is dropped.
pub struct InFlight {
    metrics: Arc<Metrics>,
    started: Instant,
}

impl InFlight {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.in_flight.inc();
        Self {
            metrics: Arc::clone(metrics),
            started: clock::now(),
        }
    }
}

impl InFlight {
    fn age(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.metrics.request_seconds.observe(self.age().as_secs_f64());
    }
}

impl Gateway {
    /// The gateway of one worker, by whatever is `current` when a request comes.
    pub fn new(current: Arc<ArcSwap<Generation>>, metrics: Arc<Metrics>, worker: usize) -> Self {
        Self {
            current,
            metrics,
            worker,
        }
    }

    /// The gateway of one connection from `peer`.
    pub fn connection(&self, peer: SocketAddr) -> Arc<Connection> {
        Arc::new(Connection {
            gateway: self.clone(),
            peer: peer.ip(),
            hop: Hop::new(peer.ip()),
        })
    }
}

impl Connection {
    /// Answers one request. Like all that follow it on its way, no `async fn`: that would hold the request twice.
    pub fn handle(
        self: Arc<Self>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<GatewayBody>, Infallible>> + Send {
        let in_flight = InFlight::new(&self.gateway.metrics);
        let method = request.method().clone();
        async move {
            let response = self.respond(request).await?;
            tracing::debug!(
                %method,
                status = response.status().as_u16(),
                micros = Micros::from(in_flight.age()).0,
                "request"
            );
            Ok(response.map(|body| Guarded::new(body, in_flight, method == Method::HEAD)))
        }
    }

    fn respond(
        &self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Download<Download<FromUpstream>>>, Infallible>> + Send {
        let Gateway {
            current,
            metrics,
            worker,
        } = &self.gateway;
        let current = current.load_full();
        async move {
            let route = admission::route(&request, &current.settings, &current.routes);
            let destination = route.and_then(|route| current.destinations.get(route).ok_or(NO_ROUTE));
            let (pattern, upstream) = match destination {
                Ok(destination) => destination,
                Err(refusal) => {
                    let version = request.version();
                    discard(request);
                    return Ok(refusal.answer(version).map(Download::made));
                }
            };
            if let Some(answer) = last_hop::answer(&request) {
                discard(request);
                return Ok(answer.map(Download::made));
            }
            let caller = Caller::behind(self.peer, request.headers(), &current.limits.identity);
            let departed = AtomicBool::new(false);
            let way = Way {
                upstream,
                worker: *worker,
                settings: &current.settings,
                metrics,
                caller: &caller,
                hop: &self.hop,
                departed: &departed,
            };
            let (limits, pattern) = (&current.limits, Some(pattern.as_ref()));
            let forward = |request| forward(way, request);
            layer::handle(limits, &caller, pattern, request, &departed, forward).await
        }
    }
}
