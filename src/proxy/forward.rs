//! The innermost step: sends a request to its upstream, and answers itself where the upstream does not.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{Request, Response, StatusCode, Version};
use http_body_util::Full;

use super::Settings;
use super::body::{Download, Upload, UploadError};
use super::expect;
use super::hop::{self, Hop};
use super::last_hop;
use super::respond;
use super::tunnel;
use super::upgrade::{self, Switch};
use crate::clock;
use crate::identity::Caller;
use crate::inbound::RequestBody;
use crate::rules::Outcome;
use crate::telemetry::Metrics;
use crate::upstream::{SendError, Upstream, UpstreamBody};

/// An upstream that takes the bodies of clients.
pub type ToUpstream = Upstream<Upload<RequestBody>>;

/// The body of its responses.
pub type FromUpstream = UpstreamBody<Upload<RequestBody>>;

/// What a request needs on its way up.
pub(super) struct Way<'a> {
    pub upstream: &'a Arc<ToUpstream>,
    /// The worker whose connections are used.
    pub worker: usize,
    pub settings: &'a Settings,
    pub metrics: &'a Metrics,
    pub caller: &'a Caller,
    /// What the gateway adds to the trail.
    pub hop: &'a Hop,
    /// Set before the upstream may have any of the request.
    pub departed: &'a AtomicBool,
}

/// Sends a request to its upstream.
pub(super) fn forward(
    way: Way<'_>,
    mut request: Request<RequestBody>,
) -> impl Future<Output = Result<Response<Download<FromUpstream>>, Infallible>> {
    let go = expect::go(&mut request);
    let (mut head, body) = request.into_parts();
    let switch = Switch::asked(&mut head, &body);
    hop::prepare(&mut head, way.caller, way.hop);
    last_hop::count(&head.method, &mut head.headers);
    hop::frame(&mut head.headers, &body);
    if let Some(switch) = &switch {
        switch.ask(&mut head.headers);
    }
    let body = Upload::new(body, way.settings.body_bytes, way.settings.body, go);
    let request = Request::from_parts(head, body);
    let started = clock::now();
    // Boxed: every move of a request's future, also of one that is refused, would move this one along.
    let sending = Box::pin(way.upstream.send(way.worker, request, way.departed));
    async move {
        let sent = sending.await;
        way.metrics
            .upstream_seconds
            .observe(clock::now().duration_since(started).as_secs_f64());
        Ok(match sent {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                switched(switch, response)
            }
            Ok(mut response) => {
                hop::clean(response.headers_mut());
                *response.version_mut() = Version::HTTP_11;
                response.map(|body| Download::passed(body, None, false))
            }
            Err(error) => failed(&error),
        })
    }
}

/// A 101 passes where it grants what was asked for.
fn switched(
    switch: Option<Switch>,
    mut response: Response<FromUpstream>,
) -> Response<Download<FromUpstream>> {
    let upstream = hyper::upgrade::on(&mut response);
    let Some((client, granted)) = switch.and_then(|switch| switch.grant(response.headers())) else {
        return failed(&SendError::Broken(None));
    };
    hop::clean(response.headers_mut());
    upgrade::put(response.headers_mut(), granted);
    let (head, held) = response.into_parts();
    tunnel::start(client, upstream, held);
    Response::from_parts(head, Download::made(Full::default()))
}

/// The rescue table: what the client sees of an upstream that did not answer, or of its own broken body.
fn failed(error: &SendError<UploadError>) -> Response<Download<FromUpstream>> {
    let (status, detail) = match error {
        SendError::Connect(_) => (StatusCode::BAD_GATEWAY, "the upstream cannot be reached"),
        SendError::Broken(_) => (StatusCode::BAD_GATEWAY, "the upstream broke off"),
        SendError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the upstream has no connection free",
        ),
        SendError::Timeout => (StatusCode::GATEWAY_TIMEOUT, "the upstream takes too long"),
        SendError::RequestBody(error) => return faulted(error),
    };
    tracing::debug!(%status, %error, "upstream failed");
    answered(status, detail, Outcome::Failed(status))
}

fn faulted(error: &UploadError) -> Response<Download<FromUpstream>> {
    let (status, detail) = match error {
        UploadError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"),
        UploadError::Silent => (StatusCode::REQUEST_TIMEOUT, "the request body stopped arriving"),
        UploadError::Broken(_) => (StatusCode::BAD_REQUEST, "the request body is broken"),
        UploadError::Gone(_) => {
            return answered(
                StatusCode::BAD_REQUEST,
                "the request body ended early",
                Outcome::Abandoned,
            );
        }
    };
    answered(status, detail, Outcome::Faulted(status))
}

fn answered(status: StatusCode, detail: &str, outcome: Outcome) -> Response<Download<FromUpstream>> {
    let mut response = respond::problem(status, detail).map(Download::made);
    response.extensions_mut().insert(outcome);
    response
}
