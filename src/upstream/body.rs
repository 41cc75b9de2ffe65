//! The response body, which gives its connection back.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::Conn;
use super::outgoing::Upload;
use super::pool::Pool;
use super::streams::Turn;

/// The body of an upstream's response, to a request with a body of `B`. When it has ended the connection is kept for
/// the next request; dropped before that, it closes the connection.
pub struct UpstreamBody<B: Body + 'static> {
    incoming: Incoming,
    lease: Option<Lease<B>>,
}

/// A connection in use, and the leave to use one.
pub(super) enum Lease<B: Body + 'static> {
    /// By this request alone.
    Alone(Box<Alone<B>>),
    /// By others as well.
    Shared(
        #[expect(dead_code, reason = "a guard")] Turn,
        #[expect(dead_code, reason = "a guard")] OwnedSemaphorePermit,
    ),
}

pub(super) struct Alone<B: Body + 'static> {
    pub(super) conn: Conn<B>,
    pub(super) worker: usize,
    pub(super) upload: Option<Arc<Upload<B::Error>>>,
    pub(super) pool: Arc<Pool<B>>,
    // Last: a connection is closed, or kept, before another request may use one.
    pub(super) _flight: OwnedSemaphorePermit,
}

impl<B> UpstreamBody<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    pub(super) fn new(incoming: Incoming, lease: Lease<B>) -> Self {
        let mut body = Self {
            incoming,
            lease: Some(lease),
        };
        // It may never be polled then.
        if body.incoming.is_end_stream() {
            body.finish();
        }
        body
    }

    /// The body of a 101: there is none, and the connection, which speaks another protocol now, is in use as long as
    /// this lives.
    pub(super) fn switched(incoming: Incoming, lease: Lease<B>) -> Self {
        if let Lease::Alone(alone) = &lease {
            alone.conn.wire.switch();
        }
        Self {
            incoming,
            lease: Some(lease),
        }
    }

    /// An answer that overtook its request leaves a connection that cannot be used again.
    fn finish(&mut self) {
        let Some(Lease::Alone(lease)) = self.lease.take() else {
            return;
        };
        if lease.upload.is_none_or(|upload| upload.has_ended()) && lease.conn.sender.is_ready() {
            lease.pool.put(lease.worker, lease.conn);
        }
    }
}

impl<B> Body for UpstreamBody<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &polled {
            Some(Ok(frame)) if !frame.is_trailers() && !self.incoming.is_end_stream() => {}
            Some(Err(_)) => self.lease = None,
            // Nothing follows trailers, and few ask whether something does.
            Some(Ok(_)) | None => self.finish(),
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl<B: Body + 'static> fmt::Debug for UpstreamBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody")
            .field("incoming", &self.incoming)
            .field("in_use", &self.lease.is_some())
            .finish()
    }
}
