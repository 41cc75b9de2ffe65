//! Whether a request is one that this gateway can judge and forward at all: questions that need no rule.

use http::header::{ALLOW, CONNECTION, EXPECT, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};
use http_body::Body;

use super::Settings;
use super::expect;
use super::last_hop::METHODS;
use super::respond::{self, Answer};
use super::route::RouteTable;
use crate::identity::requested_host;
use crate::rules::normal_path;

/// Why a request goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub detail: &'static str,
    /// Whether the connection ends with it: what follows the request may not be the next one.
    last: bool,
    /// Whether the request breaks the rules of its protocol: HTTP/2 (RFC 9113, 8.1.1) ends the stream instead.
    malformed: bool,
}

/// No route is for the request.
pub(super) const NO_ROUTE: Refusal = Refusal::of(StatusCode::NOT_FOUND, "there is no route to this");

/// Where a request goes: the place of its route in `routes`.
pub(super) fn route<B: Body>(
    request: &Request<B>,
    settings: &Settings,
    routes: &RouteTable,
) -> Result<usize, Refusal> {
    match refusal(request, settings) {
        Some(refusal) => Err(refusal),
        None => routes
            .find(
                || requested_host(request.uri(), request.headers()),
                &normal_path(request.uri().path()),
            )
            .ok_or(NO_ROUTE),
    }
}

impl Refusal {
    const fn of(status: StatusCode, detail: &'static str) -> Self {
        Self {
            status,
            detail,
            last: false,
            malformed: false,
        }
    }

    const fn last(status: StatusCode, detail: &'static str) -> Self {
        Self {
            last: true,
            ..Self::of(status, detail)
        }
    }

    const fn malformed(detail: &'static str) -> Self {
        Self {
            malformed: true,
            ..Self::last(StatusCode::BAD_REQUEST, detail)
        }
    }

    /// The answer to a request of this version.
    pub(super) fn answer(&self, version: Version) -> Answer {
        let mut answer = respond::problem(self.status, self.detail);
        let headers = answer.headers_mut();
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, METHODS);
        }
        if self.last && version < Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.malformed && version == Version::HTTP_2 {
            answer.extensions_mut().insert(h2::Reason::PROTOCOL_ERROR);
        }
        answer
    }
}

/// What a request's fields say of it; of each of the first two, the first line and the second.
#[derive(Default)]
struct Said<'r> {
    hosts: (Option<&'r HeaderValue>, Option<&'r HeaderValue>),
    codings: (Option<&'r HeaderValue>, Option<&'r HeaderValue>),
    /// Something is expected that is not known here.
    expects_more: bool,
}

impl<'r> Said<'r> {
    /// One pass over the fields, which costs less than to ask for each name.
    fn by(headers: &'r HeaderMap) -> Self {
        let mut said = Self::default();
        for (name, value) in headers {
            if *name == HOST {
                add(&mut said.hosts, value);
            } else if *name == TRANSFER_ENCODING {
                add(&mut said.codings, value);
            } else if *name == EXPECT {
                said.expects_more |= !expect::is_known(value);
            }
        }
        said
    }
}

fn add<'r>((first, second): &mut (Option<&'r HeaderValue>, Option<&'r HeaderValue>), value: &'r HeaderValue) {
    if first.is_none() {
        *first = Some(value);
    } else {
        *second = Some(value);
    }
}

fn refusal<B: Body>(request: &Request<B>, settings: &Settings) -> Option<Refusal> {
    if request.method() == Method::CONNECT {
        if request.version() == Version::HTTP_2 && request.uri().authority().is_none() {
            return Some(Refusal::malformed("a CONNECT names no authority"));
        }
        let detail = "this gateway is not a tunnel";
        return Some(Refusal::last(StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    let said = Said::by(request.headers());
    if let Some(refusal) = framing(request, &said) {
        return Some(refusal);
    }
    if said.expects_more && request.version() != Version::HTTP_10 {
        let detail = "nothing but 100-continue can be expected here";
        return Some(Refusal::of(StatusCode::EXPECTATION_FAILED, detail));
    }
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target > settings.uri_bytes {
        let detail = "the request target is too long";
        return Some(Refusal::of(StatusCode::URI_TOO_LONG, detail));
    }
    if request.headers().len() > settings.header_count {
        let detail = "the request has too many header fields";
        return Some(Refusal::of(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    }
    if let Err(detail) = host(request, &said) {
        return Some(Refusal::malformed(detail));
    }
    let announced = request.body().size_hint().lower();
    if settings.body_bytes > 0 && announced > settings.body_bytes {
        let detail = "the request body is too large";
        return Some(Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    None
}

/// What the parser lets pass and cannot be forwarded: a transfer coding beside `chunked`, a target that is neither a path
/// nor a whole URI, and (RFC 9113, 8.2.1) a value that HTTP/1.1 would not carry as it is.
fn framing<B>(request: &Request<B>, said: &Said<'_>) -> Option<Refusal> {
    let plain = match said.codings {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if !plain {
        let detail = "the only transfer coding known here is chunked";
        return Some(Refusal::last(StatusCode::NOT_IMPLEMENTED, detail));
    }
    let uri = request.uri();
    if uri.scheme().is_none() && uri.authority().is_some() {
        let detail = "the request target is neither a path nor a URI";
        return Some(Refusal::last(StatusCode::BAD_REQUEST, detail));
    }
    if request.version() == Version::HTTP_2 && request.headers().values().any(is_padded) {
        return Some(Refusal::malformed("a field value begins or ends with a blank"));
    }
    None
}

fn is_padded(value: &HeaderValue) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    blank(value.as_bytes().first()) || blank(value.as_bytes().last())
}

/// RFC 9112 section 3.2: exactly one valid `Host` with HTTP/1.1. With HTTP/2 it may be absent, but may not contradict
/// `:authority`.
fn host<B>(request: &Request<B>, said: &Said<'_>) -> Result<(), &'static str> {
    let authority = request.uri().authority();
    match said.hosts {
        (_, Some(_)) => Err("the request has more than one Host"),
        (None, None) if request.version() == Version::HTTP_11 => Err("the request has no Host"),
        (None, None) if request.version() == Version::HTTP_2 && authority.is_none() => {
            Err("the request has no :authority")
        }
        (None, None) => Ok(()),
        (Some(host), None) => {
            let valid = host.is_empty()
                || is_plain(host.as_bytes())
                || Authority::try_from(host.as_bytes()).is_ok_and(|host| !host.as_str().contains('@'));
            let agrees = request.version() != Version::HTTP_2
                || authority.is_none_or(|authority| {
                    host.as_bytes()
                        .eq_ignore_ascii_case(authority.as_str().as_bytes())
                });
            match (valid, agrees) {
                (false, _) => Err("the request has an invalid Host"),
                (_, false) => Err("the request has a Host that is not its :authority"),
                _ => Ok(()),
            }
        }
    }
}

/// Whether a host is a name or an IPv4 address, with a port or without: most are, and the parser costs more.
fn is_plain(host: &[u8]) -> bool {
    let mut parts = host.splitn(2, |byte| *byte == b':');
    let name = parts.next().unwrap_or_default();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let is_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    !name.is_empty() && name.iter().all(is_name) && parts.next().is_none_or(is_port)
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn status(request: http::request::Builder, body: &'static str) -> Option<u16> {
        let settings = Settings {
            routes: Vec::new(),
            profiles: Vec::new(),
            body: std::time::Duration::from_secs(1),
            body_bytes: 4,
            uri_bytes: 16,
            header_count: 3,
        };
        let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
        refusal(&request, &settings).map(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn requests_need_one_valid_host() {
        let get = |version| Request::get("/").version(version);
        assert_eq!(status(get(Version::HTTP_11), ""), Some(400));
        assert_eq!(status(get(Version::HTTP_10), ""), None);
        assert_eq!(status(get(Version::HTTP_11).header("host", "a"), ""), None);
        assert_eq!(status(get(Version::HTTP_11).header("host", ""), ""), None);
        assert_eq!(
            status(get(Version::HTTP_11).header("host", "a").header("host", "a"), ""),
            Some(400)
        );
        for bad in ["a b", "a/b", "u@a", "a:b:c", "http://a"] {
            assert_eq!(
                status(get(Version::HTTP_11).header("host", bad), ""),
                Some(400),
                "{bad}"
            );
        }
        let h2 = |uri| Request::get(uri).version(Version::HTTP_2);
        assert_eq!(status(h2("http://a/"), ""), None);
        assert_eq!(status(h2("http://a/").header("host", "A"), ""), None);
        assert_eq!(status(h2("http://a/").header("host", "b"), ""), Some(400));
        assert_eq!(status(h2("/").header("host", "b"), ""), None);
        assert_eq!(status(h2("/"), ""), Some(400));
    }

    #[test]
    fn what_is_a_plain_host_is_one_for_the_parser() {
        for host in [
            "a",
            "a-b.example",
            "a.example:80",
            "127.0.0.1:8080",
            "a.",
            "-",
            "a:65536",
        ] {
            assert!(is_plain(host.as_bytes()), "{host}");
            assert!(Authority::try_from(host).is_ok(), "{host}");
        }
        for other in [
            "", ":80", "a:", "a:b", "a:1:2", "[::1]:80", "u@a", "a_b", "a/b", "a b",
        ] {
            assert!(!is_plain(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn limits_hold() {
        let to = |uri| Request::post(uri).header("host", "a");
        assert_eq!(status(to("/123456789012345"), "1234"), None);
        assert_eq!(status(to("/1234567890123456"), ""), Some(414));
        assert_eq!(status(to("/"), "12345"), Some(413));
        assert_eq!(status(to("/").header("x", "1").header("x", "2"), ""), None);
        assert_eq!(
            status(to("/").header("x", "1").header("x", "2").header("x", "3"), ""),
            Some(431)
        );
        let connect = Request::connect("a:1").header("host", "a:1");
        assert_eq!(status(connect, ""), Some(405));
    }
}
