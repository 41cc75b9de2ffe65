//! The body of a client's request: it holds a guard until it has ended or nobody wants it any more.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A request's body as it comes from the connection.
pub struct RequestBody {
    incoming: Incoming,
    guard: Option<Box<dyn Any + Send + Sync>>,
}

impl RequestBody {
    /// Where there is a body, `guard` makes what is dropped with its end.
    pub fn new<G: Any + Send + Sync>(incoming: Incoming, guard: impl FnOnce() -> G) -> Self {
        let guard = (!incoming.is_end_stream()).then(|| Box::new(guard()) as Box<dyn Any + Send + Sync>);
        Self { incoming, guard }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("incoming", &self.incoming)
            .finish_non_exhaustive()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || self.incoming.is_end_stream() {
            self.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
