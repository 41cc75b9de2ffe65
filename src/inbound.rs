//! The body of a client's request: it holds a guard until it has ended or nobody wants it any more.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A request's body as it comes from the connection. Boxed: most requests have none, and each is moved often.
pub struct RequestBody(Option<Box<Arriving>>);

struct Arriving {
    incoming: Incoming,
    guard: Option<Box<dyn Any + Send + Sync>>,
}

impl RequestBody {
    /// Where there is a body, `guard` makes what is dropped with its end.
    pub fn new<G: Any + Send + Sync>(incoming: Incoming, guard: impl FnOnce() -> G) -> Self {
        if incoming.is_end_stream() {
            return Self(None);
        }
        let guard: Box<dyn Any + Send + Sync> = Box::new(guard());
        Self(Some(Box::new(Arriving {
            incoming,
            guard: Some(guard),
        })))
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let incoming = self.0.as_ref().map(|body| &body.incoming);
        f.debug_tuple("RequestBody").field(&incoming).finish()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut body.incoming).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || body.incoming.is_end_stream() {
            body.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or(SizeHint::with_exact(0), |body| body.incoming.size_hint())
    }
}
