//! `Expect: 100-continue`: the client is asked for its body when the upstream wants it.

use std::sync::Arc;
use std::time::Duration;

use http::header::EXPECT;
use http::{HeaderValue, Request, StatusCode, Version};
use http_body::Body;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::body::Go;

/// How long the upstream may take to say that it wants the body: it may know nothing of `Expect`.
const PATIENCE: Duration = Duration::from_millis(500);

const CONTINUE: &[u8] = b"100-continue";

/// Whether what a request expects is what this gateway can do.
pub(super) fn is_known(expected: &HeaderValue) -> bool {
    expected.as_bytes().eq_ignore_ascii_case(CONTINUE)
}

/// What the body of a request waits for on its way up: a 100 of the upstream, or [`PATIENCE`]. The upstream is told what
/// the client expects where both can act on it: HTTP/1.1, with a body.
pub(super) fn go<B: Body>(request: &mut Request<B>) -> Option<Go> {
    if !request.headers().contains_key(EXPECT) {
        return None;
    }
    if request.version() != Version::HTTP_11 || request.body().is_end_stream() {
        request.headers_mut().remove(EXPECT);
        return None;
    }
    let wanted = Arc::new(Notify::new());
    let heard = Arc::clone(&wanted);
    hyper::ext::on_informational(request, move |interim| {
        if interim.status() == StatusCode::CONTINUE {
            heard.notify_one();
        }
    });
    Some(Box::pin(async move {
        let _asked = timeout(PATIENCE, wanted.notified()).await;
    }))
}
