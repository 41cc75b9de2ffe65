//! The request body on its way out, which tells how far it has come.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame, SizeHint};

/// How far a request body has come.
#[derive(Debug)]
pub(super) struct Upload<E> {
    frames: AtomicU64,
    state: Mutex<State<E>>,
}

#[derive(Debug)]
struct State<E> {
    stage: Stage,
    error: Option<E>,
    waker: Option<Waker>,
}

/// Who is to act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client: it has not sent more.
    Client,
    /// The upstream: it has not taken what there is.
    Upstream,
    /// Nobody: it was handed over in full.
    Ended,
    /// Nobody: it failed.
    Failed,
}

/// The body broke; what broke it is in the [`Upload`].
#[derive(Debug, thiserror::Error)]
#[error("the request body failed")]
pub(super) struct Failed;

/// A request body, or none. Boxed: most requests have none, and each is moved often.
pub(super) enum Outgoing<B: Body> {
    Empty,
    Body(Pin<Box<B>>, Arc<Upload<B::Error>>),
}

impl<B: Body> Outgoing<B> {
    /// The body, and how far it has come unless there is nothing to send.
    pub(super) fn new(inner: B) -> (Self, Option<Arc<Upload<B::Error>>>) {
        if inner.is_end_stream() {
            return (Self::Empty, None);
        }
        let upload = Arc::new(Upload {
            frames: AtomicU64::new(0),
            state: Mutex::new(State {
                stage: Stage::Upstream,
                error: None,
                waker: None,
            }),
        });
        let watched = Arc::clone(&upload);
        (Self::Body(Box::pin(inner), upload), Some(watched))
    }
}

impl<E> Upload<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage, error: Option<E>) {
        let mut state = self.state();
        if matches!(state.stage, Stage::Ended | Stage::Failed) {
            return;
        }
        state.stage = stage;
        state.error = error;
        if matches!(stage, Stage::Ended | Stage::Failed)
            && let Some(waker) = state.waker.take()
        {
            waker.wake();
        }
    }

    /// The stage; the task is woken when it becomes the last.
    pub(super) fn watch(&self, cx: &Context<'_>) -> Stage {
        let mut state = self.state();
        if !state
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            state.waker = Some(cx.waker().clone());
        }
        state.stage
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().stage == Stage::Ended
    }

    /// Frames that the connection has taken.
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Relaxed)
    }

    /// What broke the body.
    pub(super) fn take_error(&self) -> Option<E> {
        self.state().error.take()
    }
}

impl<B: Body> Body for Outgoing<B> {
    type Data = B::Data;
    type Error = Failed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Failed>>> {
        let Self::Body(inner, upload) = &mut *self else {
            return Poll::Ready(None);
        };
        match inner.as_mut().poll_frame(cx) {
            Poll::Pending => {
                upload.enter(Stage::Client, None);
                Poll::Pending
            }
            Poll::Ready(Some(Ok(frame))) => {
                upload.frames.fetch_add(1, Relaxed);
                let last = frame.is_trailers() || inner.is_end_stream();
                upload.enter(if last { Stage::Ended } else { Stage::Upstream }, None);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                upload.enter(Stage::Failed, Some(error));
                Poll::Ready(Some(Err(Failed)))
            }
            Poll::Ready(None) => {
                upload.enter(Stage::Ended, None);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Body(inner, _) => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Body(inner, _) => inner.size_hint(),
        }
    }
}
