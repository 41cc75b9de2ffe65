//! The bodies that pass through: a request's on its way up, and a response's on its way down.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use super::hop::clean_trailers;
use crate::decide::Tail;

/// Any error of a body.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a request's body did not arrive: the client's fault.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It is longer than it may be.
    #[error("the request body is too large")]
    TooLarge,
    /// Nothing came for too long.
    #[error("the request body stopped arriving")]
    Silent,
    /// It is malformed.
    #[error("the request body is broken: {0}")]
    Broken(#[source] BoxError),
    /// The client left before its end.
    #[error("the client left: {0}")]
    Gone(#[source] BoxError),
}

pin_project! {
    /// A request's body on its way to the upstream: bounded in length and in silence.
    pub struct Upload<B> {
        #[pin]
        body: B,
        left: Option<u64>,
        patience: Duration,
        silence: Option<Pin<Box<Sleep>>>,
        go: Option<Go>,
    }
}

/// What a body waits for before its client is asked for it.
pub(super) type Go = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<B> Upload<B> {
    /// Lets `body` through as long as it is not longer than `limit` bytes (0 is no limit) and never silent for longer
    /// than `patience`. Nothing is read before `go` says so.
    pub(super) fn new(body: B, limit: u64, patience: Duration, go: Option<Go>) -> Self {
        Self {
            body,
            left: (limit > 0).then_some(limit),
            patience,
            silence: None,
            go,
        }
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.project();
        if let Some(go) = this.go {
            ready!(go.as_mut().poll(cx));
            *this.go = None;
        }
        let Poll::Ready(frame) = this.body.poll_frame(cx) else {
            let silence = this
                .silence
                .get_or_insert_with(|| Box::pin(sleep(*this.patience)));
            ready!(silence.as_mut().poll(cx));
            return Poll::Ready(Some(Err(UploadError::Silent)));
        };
        *this.silence = None;
        let Some(frame) = frame else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(|error| broken(error.into()))?;
        if let (Some(left), Some(data)) = (this.left.as_mut(), frame.data_ref()) {
            match left.checked_sub(data.len() as u64) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(Some(Err(UploadError::TooLarge))),
            }
        }
        Poll::Ready(Some(Ok(if frame.is_trailers() {
            clean_trailers(frame)
        } else {
            frame
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whose fault a broken body is: that of what was sent, or of a connection or stream that ended.
fn broken(error: BoxError) -> UploadError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
    while let Some(deeper) = cause {
        if let Some(error) = deeper.downcast_ref::<io::Error>()
            && matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData)
        {
            return UploadError::Broken(error.to_string().into());
        }
        cause = deeper.source();
    }
    UploadError::Gone(error)
}

pin_project! {
    /// A response's body on its way to the client: the inner service's, or one of the gateway's own answers.
    pub struct Download<B> {
        #[pin]
        body: Origin<B>,
        tail: Option<Tail>,
    }
}

pin_project! {
    #[project = Projected]
    enum Origin<B> {
        Passed { #[pin] body: B },
        Made { #[pin] body: Full<Bytes> },
    }
}

impl<B: Body<Data = Bytes>> Download<B> {
    /// A body that is passed on; `tail` is complete when the body is, or at once where there is none (`bodiless`).
    pub(super) fn passed(body: B, tail: Option<Tail>, bodiless: bool) -> Self {
        let mut download = Self {
            body: Origin::Passed { body },
            tail,
        };
        if bodiless || download.is_end_stream() {
            complete(&mut download.tail);
        }
        download
    }

    /// A body of the gateway's own.
    pub(super) fn made(body: Full<Bytes>) -> Self {
        Self {
            body: Origin::Made { body },
            tail: None,
        }
    }
}

fn complete(tail: &mut Option<Tail>) {
    if let Some(tail) = tail.take() {
        tail.complete();
    }
}

impl<B: Body<Data = Bytes>> Body for Download<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        if this.tail.is_some() && (!matches!(frame, Some(Ok(_))) || this.body.is_end_stream()) {
            complete(this.tail);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body<Data = Bytes>> Body for Origin<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project() {
            Projected::Passed { body } => body.poll_frame(cx).map_ok(|frame| {
                if frame.is_trailers() {
                    clean_trailers(frame)
                } else {
                    frame
                }
            }),
            Projected::Made { body } => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passed { body } => body.is_end_stream(),
            Self::Made { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passed { body } => body.size_hint(),
            Self::Made { body } => body.size_hint(),
        }
    }
}

pin_project! {
    /// A body that holds a guard as long as it lives, and that is not sent where only the head was asked for.
    pub struct Guarded<B, G> {
        #[pin]
        body: B,
        guard: G,
        head_only: bool,
    }
}

impl<B, G> Guarded<B, G> {
    pub(super) fn new(body: B, guard: G, head_only: bool) -> Self {
        Self {
            body,
            guard,
            head_only,
        }
    }
}

impl<B: Body, G> Body for Guarded<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if self.head_only {
            return Poll::Ready(None);
        }
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.head_only || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
