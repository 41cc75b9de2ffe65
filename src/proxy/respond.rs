//! The answers that the gateway makes itself: problem details of RFC 9457.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use crate::clock::Micros;
use crate::rules::Denied;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The problem type and title of draft-ietf-httpapi-ratelimit-headers-10 for a request over its quota, and its status.
const QUOTA_EXCEEDED: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
    r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429"#,
);

/// The same for a request that cannot be decided now.
const REDUCED_CAPACITY: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
    r#""title":"Request cannot be satisfied due to temporary server capacity constraints","status":503"#,
);

/// How long a client waits before it asks again a gateway whose store is in trouble: as long as the gateway does at most
/// before it tries the store again.
const TRIED_AGAIN: u64 = 2;

/// Bytes for the body of an answer, names of usual length.
const ROOM: usize = 320;
/// Fields of one, with those of the limits.
const FIELDS: usize = 11;

/// An answer of the gateway's own.
pub(super) type Answer = Response<Full<Bytes>>;

/// A problem that has no type of its own: its status says what it is.
pub(super) fn problem(status: StatusCode, detail: &str) -> Answer {
    // A reason phrase has nothing that JSON would escape.
    let title = status.canonical_reason().unwrap_or("Error");
    let start = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{}"#,
        status.as_u16()
    );
    answer(status, &start, detail, None)
}

/// What a caller that cannot be told, or is blocked, is answered: 400 or 403.
pub(super) fn denied_status(denied: &Denied) -> StatusCode {
    match denied {
        Denied::Missing(_) | Denied::Ambiguous(_) => StatusCode::BAD_REQUEST,
        Denied::Blocked { .. } => StatusCode::FORBIDDEN,
    }
}

/// The answer to it.
pub(super) fn denied(denied: &Denied) -> Answer {
    problem(denied_status(denied), &denied.to_string())
}

/// 429: the limiters of the rules that are named in `violated` refused, and admit again after `wait`.
pub(super) fn quota_exceeded(violated: &[&str], wait: Micros) -> Answer {
    let wait = retry_after(wait);
    let seconds = if wait == 1 { "second" } else { "seconds" };
    let detail = format!("Retry after {wait} {seconds}");
    let mut answer = answer(
        StatusCode::TOO_MANY_REQUESTS,
        QUOTA_EXCEEDED,
        &detail,
        Some(violated),
    );
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(RETRY_AFTER, HeaderValue::from(wait));
    answer
}

/// 503: the store cannot decide, and the rules that are named in `violated` deny requests then.
pub(super) fn reduced_capacity(violated: &[&str]) -> Answer {
    let mut answer = answer(
        StatusCode::SERVICE_UNAVAILABLE,
        REDUCED_CAPACITY,
        "The limits of this request cannot be decided now",
        Some(violated),
    );
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(RETRY_AFTER, HeaderValue::from(TRIED_AGAIN));
    answer
}

/// Whether a request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| {
        let rest = kind.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
    })
}

/// What a gRPC client understands as a 429: status 8 in a response without a body (clients take a plain 429 for an
/// upstream that is unavailable), and the wait in milliseconds, rounded up.
pub(super) fn resource_exhausted(wait: Micros) -> Answer {
    let pushback = wait.0.div_ceil(1_000).clamp(1, i32::MAX.unsigned_abs().into());
    grpc(["8", "quota exceeded"], pushback)
}

/// What a gRPC client understands as a 503: status 14.
pub(super) fn unavailable() -> Answer {
    grpc(
        ["14", "the limits cannot be decided now"],
        TRIED_AGAIN.saturating_mul(1_000),
    )
}

fn grpc([status, message]: [&'static str; 2], pushback: u64) -> Answer {
    let mut answer = Answer::new(Full::default());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert("grpc-status", HeaderValue::from_static(status));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    headers.insert("grpc-retry-pushback-ms", HeaderValue::from(pushback));
    answer
}

/// Whole seconds of a wait, rounded up; never 0, which clients take for "at once".
fn retry_after(wait: Micros) -> u64 {
    wait.secs_up().max(1)
}

/// The answer whose body begins with `start`. That it is written once and not for each refusal saves a fifteenth of one.
fn answer(status: StatusCode, start: &str, detail: &str, violated: Option<&[&str]>) -> Answer {
    let mut text = Vec::with_capacity(ROOM);
    text.extend_from_slice(start.as_bytes());
    text.extend_from_slice(b",\"detail\":");
    say(&mut text, detail);
    if let Some(violated) = violated {
        text.extend_from_slice(b",\"violated-policies\":");
        say(&mut text, violated);
    }
    text.push(b'}');
    let length = HeaderValue::from(text.len());
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().reserve(FIELDS);
    // Said here because an answer to a HEAD is sent without the body.
    answer.headers_mut().insert(CONTENT_LENGTH, length);
    answer.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    answer
}

/// Adds a value. Strings: there is nothing that JSON cannot say, and nothing that memory does not take.
fn say(text: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let _infallible = serde_json::to_writer(text, value);
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    fn body(answer: Answer) -> Value {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(answer.into_body().collect()).unwrap().to_bytes();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_429_says_what_is_exceeded_and_when_to_come_back() {
        for (micros, seconds) in [
            (0, "1"),
            (1, "1"),
            (1_000_000, "1"),
            (1_000_001, "2"),
            (59_000_001, "60"),
        ] {
            let answer = quota_exceeded(&["per-ip"], Micros(micros));
            assert_eq!(answer.headers()[RETRY_AFTER], seconds);
        }
        let answer = quota_exceeded(&["per-ip", "a\"b"], Micros::from_secs(2));
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(
            body(answer),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "detail": "Retry after 2 seconds",
                "violated-policies": ["per-ip", "a\"b"],
            })
        );
    }

    #[test]
    fn other_problems_are_named_by_their_status() {
        for status in (100..1_000).filter_map(|code| StatusCode::from_u16(code).ok()) {
            let told = body(problem(status, "a \"detail\""));
            assert_eq!(told["status"], status.as_u16());
            assert_eq!(told["title"], status.canonical_reason().unwrap_or("Error"));
            assert_eq!(told["detail"], "a \"detail\"");
        }
        let problem = body(problem(StatusCode::BAD_GATEWAY, "the upstream refused"));
        assert_eq!(problem["type"], "about:blank");
        assert_eq!(problem["title"], "Bad Gateway");
        assert_eq!(problem["status"], 502);
    }
}
