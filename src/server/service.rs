//! The service of one connection, told apart from the outside only by what it notes in the connection's phase.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::upgrade::OnUpgrade;
use pin_project_lite::pin_project;

use super::phase::{InFlight, Owing, Phase};
use crate::inbound::RequestBody;

/// A service whose requests are counted from call to end of body.
pub(super) struct Counted<S> {
    inner: S,
    phase: Arc<Phase>,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S, phase: Arc<Phase>) -> Self {
        Self { inner, phase }
    }
}

impl<S, B> Service<Request<Incoming>> for Counted<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    type Response = Response<ServiceBody<B>>;
    type Error = h2::Error;
    type Future = ServiceFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_flight = self.phase.begin();
        let phase = &self.phase;
        let request = request.map(|body| RequestBody::new(body, || phase.receive()));
        let switch = request.extensions().get::<OnUpgrade>().cloned();
        ServiceFuture {
            inner: self.inner.call(request),
            in_flight: Some(in_flight),
            switch,
        }
    }
}

/// A service whose answers in flight are small to move. hyper moves that of an HTTP/2 stream into a task of its own, and
/// the runtime moves it on, many times in all.
pub(super) struct Boxed<S>(pub(super) S);

impl<S: Service<R>, R> Service<R> for Boxed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<S::Future>>;

    fn call(&self, request: R) -> Self::Future {
        Box::pin(self.0.call(request))
    }
}

pin_project! {
    /// The answer of a service, in flight.
    #[derive(Debug)]
    pub struct ServiceFuture<F> {
        #[pin]
        inner: F,
        in_flight: Option<InFlight>,
        switch: Option<OnUpgrade>,
    }
}

impl<F, B> Future for ServiceFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
{
    type Output = Result<Response<ServiceBody<B>>, h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut response) = ready!(this.inner.poll(cx));
        let in_flight = this.in_flight.take();
        // An HTTP/2 stream may be ended instead of answered: with the reason that the response brings along.
        if let Some(reason) = response.extensions().get::<h2::Reason>() {
            return Poll::Ready(Err((*reason).into()));
        }
        if let Some(in_flight) = &in_flight {
            let phase = in_flight.phase();
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                phase.on_switch();
            } else if let Some(switch) = this.switch.take() {
                phase.on_no_switch(switch);
            }
            if !phase.has_switched() && !phase.http2 && phase.stop.is_triggered() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
        }
        Poll::Ready(Ok(response.map(|inner| ServiceBody {
            inner,
            turn: Turn {
                in_flight,
                owing: Owing::default(),
            },
        })))
    }
}

pin_project! {
    /// The body of an answer, in flight until it ends or is dropped.
    #[derive(Debug)]
    pub struct ServiceBody<B> {
        #[pin]
        inner: B,
        turn: Turn,
    }
}

#[derive(Debug)]
struct Turn {
    in_flight: Option<InFlight>,
    owing: Owing,
}

impl Turn {
    fn owe(&mut self, owing: bool) {
        if let Some(in_flight) = &self.in_flight {
            self.owing.set(owing, in_flight.phase());
        }
    }

    fn end(&mut self) {
        self.owe(false);
        self.in_flight = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

impl<B: Body> Body for ServiceBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let polled = this.inner.poll_frame(cx);
        match &polled {
            Poll::Pending => this.turn.owe(false),
            Poll::Ready(Some(Ok(_))) => this.turn.owe(true),
            Poll::Ready(_) => this.turn.end(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
