//! The wait for a response head, whatever the protocol.

use std::error::Error;
use std::future;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::outgoing::{Outgoing, Stage, Upload};
use super::timer::Timer;
use crate::clock;

/// No response on this connection.
pub(super) enum Lost<B: Body + 'static> {
    /// Not a byte of the request was written.
    Unsent(Box<Request<Outgoing<B>>>, hyper::Error),
    /// The connection broke after that.
    Broken(hyper::Error),
    /// The time is over.
    TimedOut,
}

/// Waits until `answer` is there, for as long as `response` from when the request has been sent.
pub(super) async fn answered<B, F>(
    mut answer: Pin<&mut F>,
    timer: &mut Timer,
    response: Duration,
    upload: Option<&Upload<B::Error>>,
) -> Result<Response<Incoming>, Lost<B>>
where
    B: Body + 'static,
    F: Future<Output = Result<Response<Incoming>, TrySendError<Request<Outgoing<B>>>>>,
{
    let mut deadline = clock::now() + response;
    let (mut uploading, mut taken) = (upload, 0);
    future::poll_fn(|cx| {
        if let Poll::Ready(answered) = answer.as_mut().poll(cx) {
            return Poll::Ready(answered.map_err(|mut error| match error.take_message() {
                Some(request) => Lost::Unsent(Box::new(request), error.into_error()),
                None => Lost::Broken(error.into_error()),
            }));
        }
        loop {
            let stage = uploading.map(|upload| upload.watch(cx));
            if matches!(stage, Some(Stage::Ended | Stage::Failed)) {
                uploading = None;
                deadline = clock::now() + response;
            }
            ready!(timer.poll(cx, deadline));
            // While a body is sent, only an upstream that takes none of it for so long is out of time.
            match uploading {
                Some(upload) if stage == Some(Stage::Client) || upload.frames() != taken => {
                    taken = upload.frames();
                    deadline = clock::now() + response;
                }
                _ => return Poll::Ready(Err(Lost::TimedOut)),
            }
        }
    })
    .await
}

/// Whether a response cannot be the answer to its request: it switches where nobody asked, or its end is in doubt.
pub(super) fn is_unfit<B>(response: &Response<B>, switches: bool) -> bool {
    (response.status() == StatusCode::SWITCHING_PROTOCOLS && !switches) || !is_framed(response.headers())
}

/// Whether a response says in one way only where its body ends, and in one that is known here.
fn is_framed(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => {
            coding.as_bytes().eq_ignore_ascii_case(b"chunked") && !headers.contains_key(CONTENT_LENGTH)
        }
        (Some(_), Some(_)) => false,
    }
}

/// What HTTP/2 says about a request that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The upstream has not looked at it: it may be sent again.
    Unprocessed,
    /// The connection is gone, and nothing was said about the request.
    Unknown,
    /// The upstream took it and gave it up.
    Processed,
}

impl Fate {
    pub(super) fn of(error: &hyper::Error) -> Self {
        let mut source = error.source();
        while let Some(error) = source {
            if let Some(error) = error.downcast_ref::<h2::Error>() {
                let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
                // A GOAWAY is an error only for the streams that are above the last that it names.
                return if error.is_remote() && (refused || error.is_go_away()) {
                    Self::Unprocessed
                } else if error.is_reset() {
                    Self::Processed
                } else {
                    Self::Unknown
                };
            }
            source = error.source();
        }
        Self::Unknown
    }
}
