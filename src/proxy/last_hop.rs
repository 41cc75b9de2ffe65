//! `Max-Forwards` (RFC 9110, 7.6.2): how many hops a `TRACE` or an `OPTIONS` may still go.

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, COOKIE, MAX_FORWARDS, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;

use super::respond::Answer;

/// What this gateway passes on.
pub(super) const METHODS: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");

/// Fields that a trace does not repeat.
const SECRETS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];

/// The answer to a request that was meant to come this far and no further.
pub(super) fn answer<B>(request: &Request<B>) -> Option<Answer> {
    if left(request.method(), request.headers())? > 0 {
        return None;
    }
    if request.method() == Method::TRACE {
        let mut answer = Response::new(Full::from(trace(request)));
        let kind = HeaderValue::from_static("message/http");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        return Some(answer);
    }
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().insert(ALLOW, METHODS);
    Some(answer)
}

/// Counts this hop.
pub(super) fn count(method: &Method, headers: &mut HeaderMap) {
    if let Some(left) = left(method, headers) {
        headers.insert(MAX_FORWARDS, left.saturating_sub(1).into());
    }
}

/// The hops that are left, where that is said in one number.
fn left(method: &Method, headers: &HeaderMap) -> Option<u64> {
    if *method != Method::TRACE && *method != Method::OPTIONS {
        return None;
    }
    let mut lines = headers.get_all(MAX_FORWARDS).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let digits = line.to_str().ok()?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// The request as it came, but for its secrets.
fn trace<B>(request: &Request<B>) -> Bytes {
    let line = format!(
        "{} {} {:?}\r\n",
        request.method(),
        request.uri(),
        request.version()
    );
    let mut text = line.into_bytes();
    let shown = |(name, _): &(&HeaderName, &HeaderValue)| !SECRETS.contains(name);
    for (name, value) in request.headers().iter().filter(shown) {
        let parts = [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"];
        text.extend(parts.concat());
    }
    text.extend(b"\r\n");
    text.into()
}
