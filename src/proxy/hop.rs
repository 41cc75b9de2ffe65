//! What changes on a message as it passes: hop-by-hop fields go, and the trail of the request grows by one hop.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version, request};
use http_body::{Body, Frame};
use smallvec::SmallVec;

use crate::identity::{Caller, X_FORWARDED_FOR};

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// The names that are looked for in every message: one pass over its fields costs less than to ask for each name.
static KNOWN: [HeaderName; 13] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
    TE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
    X_FORWARDED_HOST,
    FORWARDED,
    VIA,
];

/// Sets of them, a bit for each place. What concerns one connection only, whatever `Connection` says:
const HOP_BY_HOP: u16 = 0b11_1111;
const ENCODED: u16 = 1 << 3;
const OFFERS: u16 = 1 << 5;
/// What no client is to see of the upstream.
const OF_UPSTREAM: u16 = 1 << 6;
/// What no upstream is to see: `Proxy-Authorization` is nobody's but ours.
const OURS: u16 = 1 << 7;
/// What no upstream is to see of a stranger: that, and the trail before us.
const OF_STRANGER: u16 = 0b1_1111 << 7;
const PASSED: u16 = 1 << 12;

/// Lengths that names in [`KNOWN`] have: most fields are told from all of them by that.
const LENGTHS: u32 = 1 << 2 | 1 << 3 | 1 << 7 | 1 << 9 | 1 << 10 | 0b1_1111 << 15;

/// Fields that one request can gain.
const MOST: usize = 7;

/// Makes a request's head ready for an HTTP/1.1 upstream: target in origin form, one `Host`, no hop-by-hop fields, and
/// the trail of where it came from. A request without a host (HTTP/1.0) gets that of the upstream, at sending.
pub(super) fn prepare(head: &mut request::Parts, caller: &Caller, hop: &Hop) {
    let asked = head.uri.authority().and_then(|authority| {
        let host = authority
            .as_str()
            .rsplit_once('@')
            .map_or(authority.as_str(), |(_, host)| host);
        HeaderValue::from_str(host).ok()
    });
    if let Some(host) = asked {
        head.headers.insert(HOST, host);
    }
    if head.uri.scheme().is_some() || head.uri.authority().is_some() {
        head.uri = head
            .uri
            .path_and_query()
            .cloned()
            .map(Into::into)
            .unwrap_or_default();
    }
    let found = Found::of(&head.headers);
    let trailers = strip(&mut head.headers, &found);
    found.remove(&mut head.headers, if caller.trusted { OURS } else { OF_STRANGER });
    head.headers.reserve(MOST);
    if trailers {
        head.headers.insert(TE, TRAILERS);
        head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }
    hop.mark(&mut head.headers, head.version, caller.trusted, &found);
    head.version = Version::HTTP_11;
}

/// Says that a body comes in chunks where its length is not known: for a GET, nothing would be sent of it otherwise.
pub(super) fn frame<B: Body>(headers: &mut HeaderMap, body: &B) {
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Takes the fields out of a response that concern the connection to the upstream.
pub(super) fn clean(headers: &mut HeaderMap) {
    // Chunks override a length (RFC 9112, 6.3), which may be a lie.
    let found = Found::of(headers);
    if found.has(ENCODED) {
        headers.remove(CONTENT_LENGTH);
    }
    strip(headers, &found);
    found.remove(headers, OF_UPSTREAM);
}

/// Takes the fields out of a trailer section that concern one connection only, whichever way it goes.
pub(super) fn clean_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            let found = Found::of(&trailers);
            strip(&mut trailers, &found);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// Whether one of the comma-separated members of `value` is `token`.
pub(super) fn has_token(value: &HeaderValue, token: &str) -> bool {
    value.to_str().is_ok_and(|text| {
        text.split(',').any(|member| {
            let name = member.split(';').next().unwrap_or_default();
            name.trim().eq_ignore_ascii_case(token)
        })
    })
}

/// Removes the hop-by-hop fields and those that `Connection` names; `Host` is nobody's to remove. Says whether
/// `TE: trailers` was among them.
fn strip(headers: &mut HeaderMap, found: &Found) -> bool {
    if !found.has(HOP_BY_HOP) {
        return false;
    }
    let trailers = found.has(OFFERS) && headers.get_all(TE).iter().any(|te| has_token(te, "trailers"));
    if found.names {
        for name in named(headers) {
            headers.remove(name);
        }
    }
    found.remove(headers, HOP_BY_HOP);
    trailers
}

/// The fields that `Connection` names.
fn named(headers: &HeaderMap) -> SmallVec<[HeaderName; 2]> {
    let mut named = SmallVec::new();
    for line in headers.get_all(CONNECTION) {
        let tokens = line.to_str().unwrap_or_default().split(',').map(str::trim);
        let others = tokens.filter(|token| !token.eq_ignore_ascii_case("keep-alive"));
        named.extend(
            others
                .filter_map(|name| name.parse().ok())
                .filter(|name| *name != HOST),
        );
    }
    named
}

/// Which of [`KNOWN`] a message has.
struct Found {
    places: u16,
    /// Whether `Connection` says more than `keep-alive`, which is what most upstreams say.
    names: bool,
}

impl Found {
    fn of(headers: &HeaderMap) -> Self {
        let mut found = Self {
            places: 0,
            names: false,
        };
        for (there, value) in headers {
            let length = there.as_str().len();
            if length < 32
                && LENGTHS >> length & 1 == 1
                && let Some(place) = KNOWN.iter().position(|name| name == there)
            {
                found.places |= 1 << place;
                found.names |= *there == CONNECTION && !value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
            }
        }
        found
    }

    /// Whether one of `places` is among them.
    fn has(&self, places: u16) -> bool {
        self.places & places != 0
    }

    fn remove(&self, headers: &mut HeaderMap, places: u16) {
        let mut left = self.places & places;
        while left != 0 {
            if let Some(name) = KNOWN.get(left.trailing_zeros() as usize) {
                headers.remove(name);
            }
            left &= left - 1;
        }
    }
}

/// HTTP/2 clients may send one cookie a line; HTTP/1.1 has one line.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        let lines: Vec<&[u8]> = headers
            .get_all(COOKIE)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// This hop, as it is added to the trail of every request of one connection.
pub(super) struct Hop {
    /// The peer as a member of `X-Forwarded-For`.
    address: Option<HeaderValue>,
    /// The peer as it begins an element of `Forwarded` (RFC 7239).
    element: String,
    /// The host that was asked for last, and the element for it: mostly, the next request asks for the same.
    last: Mutex<Option<(Box<[u8]>, HeaderValue)>>,
}

impl Hop {
    pub(super) fn new(peer: IpAddr) -> Self {
        let peer = peer.to_canonical();
        let element = match peer {
            IpAddr::V4(address) => format!("for={address}"),
            IpAddr::V6(address) => format!("for=\"[{address}]\""),
        };
        Self {
            address: HeaderValue::try_from(peer.to_string()).ok(),
            element,
            last: Mutex::new(None),
        }
    }

    /// Says where the request came from. What a trusted peer said is kept, and this hop appended; what anybody else said
    /// is gone by now.
    fn mark(&self, headers: &mut HeaderMap, version: Version, trusted: bool, found: &Found) {
        let host = headers.get(HOST).cloned();
        let via = match version {
            Version::HTTP_10 => "1.0 tollgate",
            Version::HTTP_2 => "2.0 tollgate",
            _ => "1.1 tollgate",
        };
        let trail = [
            (FORWARDED, self.element(host.as_ref())),
            (X_FORWARDED_FOR, self.address.clone()),
            (X_FORWARDED_PROTO, Some(HeaderValue::from_static("http"))),
            (X_FORWARDED_HOST, host),
        ];
        for (name, member) in trail {
            match member {
                Some(member) if !trusted => drop(headers.insert(name, member)),
                member => append(headers, name, member),
            }
        }
        let via = HeaderValue::from_static(via);
        if found.has(PASSED) {
            append(headers, VIA, Some(via));
        } else {
            headers.insert(VIA, via);
        }
    }

    /// This hop's element of `Forwarded`, made anew only for another host than the last.
    fn element(&self, host: Option<&HeaderValue>) -> Option<HeaderValue> {
        let asked = host.map_or(&[][..], HeaderValue::as_bytes);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((host, element)) if **host == *asked => Some(element.clone()),
            _ => {
                let element = self.forwarded(host)?;
                *last = Some((asked.into(), element.clone()));
                Some(element)
            }
        }
    }

    fn forwarded(&self, host: Option<&HeaderValue>) -> Option<HeaderValue> {
        const PROTO: &str = ";proto=http";
        let host = host
            .and_then(|host| host.to_str().ok())
            .filter(|host| !host.is_empty());
        let length =
            self.element.len() + host.map_or(0, |host| ";host=\"\"".len() + host.len()) + PROTO.len();
        let mut element = String::with_capacity(length);
        element.push_str(&self.element);
        if let Some(host) = host {
            let token = host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            let quote = if token { "" } else { "\"" };
            for part in [";host=", quote, host, quote] {
                element.push_str(part);
            }
        }
        element.push_str(PROTO);
        HeaderValue::from_maybe_shared(Bytes::from(element)).ok()
    }
}

/// Appends a member to a list field, which becomes one line.
fn append(headers: &mut HeaderMap, name: HeaderName, member: Option<HeaderValue>) {
    let Some(member) = member else { return };
    let value = if headers.contains_key(&name) {
        let mut lines: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
        lines.retain(|line| !line.is_empty());
        lines.push(member.as_bytes());
        HeaderValue::from_bytes(&lines.join(&b", "[..])).unwrap_or(member)
    } else {
        member
    };
    headers.insert(name, value);
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn prepared(request: Request<()>, trusted: bool) -> request::Parts {
        let peer = "192.0.2.1".parse().unwrap();
        let (mut head, ()) = request.into_parts();
        prepare(
            &mut head,
            &Caller {
                client: peer,
                peer,
                trusted,
            },
            &Hop::new(peer),
        );
        head
    }

    fn fields(head: &request::Parts) -> Vec<String> {
        let mut fields: Vec<String> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        fields.sort();
        fields
    }

    #[test]
    fn every_known_name_is_looked_for() {
        let named = [
            (ENCODED, TRANSFER_ENCODING),
            (OFFERS, TE),
            (OF_UPSTREAM, PROXY_AUTHENTICATE),
            (OURS, PROXY_AUTHORIZATION),
            (PASSED, VIA),
        ];
        let all = KNOWN
            .iter()
            .enumerate()
            .map(|(place, name)| (1 << place, name.clone()));
        for (places, name) in all.chain(named) {
            let mut headers = HeaderMap::new();
            headers.insert(&name, HeaderValue::from_static("x"));
            assert_eq!(Found::of(&headers).places, places, "{name}");
        }
    }

    #[test]
    fn another_host_on_a_connection_is_told_as_the_first_was() {
        let hop = Hop::new("192.0.2.1".parse().unwrap());
        for (host, element) in [
            (Some("a.example"), "for=192.0.2.1;host=a.example;proto=http"),
            (Some("a.example"), "for=192.0.2.1;host=a.example;proto=http"),
            (Some("b.example"), "for=192.0.2.1;host=b.example;proto=http"),
            (None, "for=192.0.2.1;proto=http"),
        ] {
            let host = host.map(HeaderValue::from_static);
            assert_eq!(hop.element(host.as_ref()).unwrap(), element);
        }
    }

    #[test]
    fn what_strangers_say_of_the_trail_is_replaced() {
        let request = Request::get("/a?b")
            .header("host", "example.com:8080")
            .header("x-forwarded-for", "6.6.6.6")
            .header("x-forwarded-proto", "https")
            .header("forwarded", "for=6.6.6.6")
            .body(())
            .unwrap();
        let head = prepared(request, false);
        assert_eq!(
            fields(&head),
            [
                "forwarded: for=192.0.2.1;host=\"example.com:8080\";proto=http",
                "host: example.com:8080",
                "via: 1.1 tollgate",
                "x-forwarded-for: 192.0.2.1",
                "x-forwarded-host: example.com:8080",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn what_a_trusted_proxy_says_is_kept_and_this_hop_appended() {
        let request = Request::get("/")
            .header("host", "a.example")
            .header("x-forwarded-for", "1.1.1.1")
            .header("x-forwarded-for", "2.2.2.2")
            .header("x-forwarded-proto", "https")
            .header("forwarded", "for=1.1.1.1")
            .header("via", "1.0 other")
            .body(())
            .unwrap();
        let head = prepared(request, true);
        assert_eq!(
            fields(&head),
            [
                "forwarded: for=1.1.1.1, for=192.0.2.1;host=a.example;proto=http",
                "host: a.example",
                "via: 1.0 other, 1.1 tollgate",
                "x-forwarded-for: 1.1.1.1, 2.2.2.2, 192.0.2.1",
                "x-forwarded-host: a.example",
                "x-forwarded-proto: https, http",
            ]
        );
    }

    #[test]
    fn an_absolute_target_becomes_a_path_and_names_the_host() {
        let request = Request::get("http://u:p@b.example:81/x%2Fy?q=%20")
            .header("host", "a.example")
            .body(())
            .unwrap();
        let head = prepared(request, false);
        assert_eq!(head.uri, "/x%2Fy?q=%20");
        assert_eq!(head.headers[HOST], "b.example:81");
    }

    #[test]
    fn hop_by_hop_fields_go_and_connection_cannot_take_host() {
        let request = Request::get("/")
            .header("host", "a.example")
            .header("connection", "close, X-One,host, x-forwarded-for")
            .header("connection", "x-two")
            .header("x-one", "1")
            .header("x-two", "2")
            .header("x-three", "3")
            .header("keep-alive", "timeout=5")
            .header("proxy-connection", "close")
            .header("proxy-authorization", "Basic x")
            .header("transfer-encoding", "chunked")
            .header("upgrade", "foo")
            .header("te", "gzip")
            .body(())
            .unwrap();
        let head = prepared(request, false);
        let names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        for gone in [
            "connection",
            "x-one",
            "x-two",
            "keep-alive",
            "proxy-connection",
            "proxy-authorization",
            "transfer-encoding",
            "upgrade",
            "te",
        ] {
            assert!(!names.contains(&gone), "{gone}");
        }
        assert_eq!(head.headers["x-three"], "3");
        assert_eq!(head.headers["host"], "a.example");
        assert_eq!(head.headers["x-forwarded-for"], "192.0.2.1");
    }

    #[test]
    fn te_trailers_stays() {
        let request = Request::get("/")
            .header("te", "gzip, Trailers;q=0.5")
            .header("trailer", "x-sum")
            .body(())
            .unwrap();
        let head = prepared(request, false);
        assert_eq!(head.headers["te"], "trailers");
        assert_eq!(head.headers["connection"], "te");
        assert_eq!(head.headers["trailer"], "x-sum");
    }

    #[test]
    fn cookie_lines_become_one() {
        let request = Request::get("/")
            .version(Version::HTTP_2)
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(())
            .unwrap();
        let head = prepared(request, false);
        assert_eq!(
            head.headers.get_all("cookie").iter().collect::<Vec<_>>(),
            ["a=1; b=2"]
        );
    }
}
