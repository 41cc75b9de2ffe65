//! What becomes of a request body that nobody wants: it is read to its end, within bounds, so that the client sees the
//! answer instead of a reset, and the connection can be used again.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Version};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

/// How long a client may go on sending after it was answered. Nothing that it sends is kept.
const LINGER: Duration = Duration::from_secs(10);

/// What of a body is read on over HTTP/2, where more only costs the stream: it is reset then, and there are clients that
/// show the reset instead of the answer.
const MOST_OF_A_STREAM: u64 = 1 << 20;

/// Reads on what is left of a request's body, in the background. A body that the client holds back until it is asked for
/// (`Expect: 100-continue`) is not asked for.
pub(super) fn discard<B>(request: Request<B>)
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let most = if request.version() < Version::HTTP_2 {
        u64::MAX
    } else {
        MOST_OF_A_STREAM
    };
    let body = request.body();
    let wanted =
        !body.is_end_stream() && body.size_hint().lower() <= most && !request.headers().contains_key(EXPECT);
    if !wanted {
        return;
    }
    tokio::spawn(async move {
        let read = async {
            let (mut body, mut left) = (pin!(request.into_body()), most);
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                let Some(rest) = left.checked_sub(length) else {
                    return;
                };
                left = rest;
            }
        };
        let _ = timeout(LINGER, read).await;
    });
}
