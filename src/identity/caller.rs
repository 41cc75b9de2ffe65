//! The caller of a request, and what its key parts are.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::{COOKIE, HOST};
use http::{HeaderMap, Method, Request, Uri};
use percent_encoding::percent_decode;

use super::client::{Found, behind, is_trusted};
use super::{KeyPart, Settings, Source};

/// The other end of a connection; the server puts it into each request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Who is calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The client's address; an IPv4-mapped one is IPv4.
    pub client: IpAddr,
    /// The address of the other end of the connection.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub trusted: bool,
}

impl Caller {
    /// Finds out who sent a request. A request that carries no [`Peer`] comes from nowhere: the unspecified address.
    pub fn identify<B>(request: &Request<B>, settings: &Settings) -> Self {
        let peer = match request.extensions().get::<Peer>() {
            Some(Peer(address)) => address.ip(),
            None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self::behind(peer, request.headers(), settings)
    }

    /// Finds out who sent a request with these fields through `peer`.
    pub fn behind(peer: IpAddr, headers: &HeaderMap, settings: &Settings) -> Self {
        Self::trace(peer, headers, settings).0
    }

    /// The same, and how the client's address was found.
    pub fn trace(peer: IpAddr, headers: &HeaderMap, settings: &Settings) -> (Self, Found) {
        let peer = peer.to_canonical();
        let trusted = is_trusted(peer, &settings.trusted_proxies);
        let (client, found) = if trusted {
            behind(peer, headers, &settings.trusted_proxies)
        } else {
            (peer, Found::Peer)
        };
        let caller = Self {
            client,
            peer,
            trusted,
        };
        (caller, found)
    }
}

/// The host that a request asks for: of an absolute target (or `:authority`), else of the `Host` field; without port and
/// trailing dot.
pub fn requested_host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(HOST)?.to_str().ok()?,
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    Some(host.strip_suffix('.').unwrap_or(host)).filter(|host| !host.is_empty())
}

/// What a key can be read from.
#[derive(Clone, Copy)]
pub struct Subject<'r> {
    /// The request's method.
    pub method: &'r Method,
    /// The request's target.
    pub uri: &'r Uri,
    /// The request's fields.
    pub headers: &'r HeaderMap,
    /// Who sent it.
    pub caller: &'r Caller,
    /// The path pattern that names the endpoint.
    pub endpoint: &'r str,
    /// What the rule's path pattern captures by a name.
    pub capture: &'r dyn Fn(&str) -> Option<&'r str>,
}

/// The value of a key part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'r> {
    /// The client's whole address.
    Address(IpAddr),
    /// Bytes as they came.
    Bytes(Cow<'r, [u8]>),
}

/// A field, cookie or parameter that a key is made of stands in a request more than once, with different values: the
/// upstream might read another one than the limiter counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ambiguous(pub Source);

impl<'r> Subject<'r> {
    /// Reads a source; `None` if the request does not have it. [`Source::User`] stands for others and has no value of
    /// its own: see [`Settings::sources`].
    ///
    /// # Errors
    /// The request has it more than once, with different values.
    pub fn read(&self, source: &Source) -> Result<Option<Value<'r>>, Ambiguous> {
        let bytes = match source {
            Source::Ip => return Ok(Some(Value::Address(self.caller.client))),
            Source::User => None,
            Source::Endpoint => Some(Cow::Owned(
                [self.method.as_str(), self.endpoint].join(" ").into_bytes(),
            )),
            Source::Host => requested_host(self.uri, self.headers)
                .map(|host| Cow::Owned(host.to_ascii_lowercase().into_bytes())),
            Source::Method => Some(Cow::Borrowed(self.method.as_str().as_bytes())),
            Source::Header(name) => {
                let values = self
                    .headers
                    .get_all(name)
                    .iter()
                    .map(|value| Cow::Borrowed(value.as_bytes()));
                only(source, values)?
            }
            Source::Cookie(name) => only(source, cookies(self.headers, name).map(Cow::Borrowed))?,
            Source::Query(name) => only(source, parameters(self.uri.query().unwrap_or_default(), name))?,
            Source::Path(name) => (self.capture)(name).map(segment_decoded),
        };
        Ok(bytes.map(Value::Bytes))
    }
}

impl Settings {
    /// What a key part reads, in order, with what `user` stands for in its place.
    pub fn sources(&self, part: &KeyPart) -> Vec<Source> {
        let expand = |source: &Source| match source {
            Source::User => self.user.clone(),
            source => vec![source.clone()],
        };
        part.alternatives.iter().flat_map(expand).collect()
    }
}

fn only<'r>(
    source: &Source,
    mut values: impl Iterator<Item = Cow<'r, [u8]>>,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.all(|value| value == first) {
        Ok(Some(first))
    } else {
        Err(Ambiguous(source.clone()))
    }
}

/// What a path segment says: percent-decoded, as the upstream will read it, but for slashes.
fn segment_decoded(segment: &str) -> Cow<'_, [u8]> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment.as_bytes());
    }
    let kept = segment.replace("%2F", "%252F").replace("%2f", "%252F");
    Cow::Owned(percent_decode(kept.as_bytes()).collect())
}

fn cookies<'r>(headers: &'r HeaderMap, name: &str) -> impl Iterator<Item = &'r [u8]> {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
        .filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at(at);
            Some((key.trim_ascii(), value.get(1..)?.trim_ascii()))
        })
        .filter(move |(key, _)| *key == name.as_bytes())
        .map(|(_, value)| value)
}

fn parameters<'r>(query: &'r str, name: &str) -> impl Iterator<Item = Cow<'r, [u8]>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(move |(key, _)| form_decoded(key) == name.as_bytes())
        .map(|(_, value)| form_decoded(value))
}

/// Decodes a query parameter to bytes: two different byte strings never become one.
fn form_decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['+', '%']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode(spaced.as_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &Request<()>, source: &str) -> Result<Option<String>, Ambiguous> {
        let settings = Settings {
            user: vec!["header:x-key".parse().unwrap(), "cookie:sid".parse().unwrap()],
            ..Settings::default()
        };
        let caller = Caller::identify(request, &settings);
        let subject = Subject {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            caller: &caller,
            endpoint: "/a/{id}",
            capture: &|name| (name == "id").then_some("a%40%2f%c3%A9"),
        };
        let mut value = None;
        for source in settings.sources(&source.parse().unwrap()) {
            value = value.or(subject.read(&source)?);
        }
        Ok(value.map(|value| match value {
            Value::Address(address) => address.to_string(),
            Value::Bytes(bytes) => bytes.escape_ascii().to_string(),
        }))
    }

    fn request(uri: &str, fields: &[(&str, &[u8])]) -> Request<()> {
        let mut request = Request::get(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request
            .extension(Peer("[::ffff:192.0.2.9]:4711".parse().unwrap()))
            .body(())
            .unwrap()
    }

    #[test]
    fn reads_every_source() {
        let request = request(
            "/a/7?q=x%20y+z&e=&%71b=1",
            &[
                ("host", b"API.Example.com.:80"),
                ("cookie", b"a=1; sid=abc ;b=2"),
                ("x-raw", b"\xff\xfe"),
            ],
        );
        for (source, expected) in [
            ("ip", Some("192.0.2.9")),
            ("user", Some("abc")),
            ("endpoint", Some("GET /a/{id}")),
            ("host", Some("api.example.com")),
            ("method", Some("GET")),
            ("header:x-raw", Some("\\xff\\xfe")),
            ("header:x-none", None),
            ("cookie:a", Some("1")),
            ("cookie:c", None),
            ("query:q", Some("x y z")),
            ("query:e", Some("")),
            ("query:qb", Some("1")),
            ("query:n", None),
            ("path:id", Some("a@%2F\\xc3\\xa9")),
        ] {
            assert_eq!(read(&request, source).unwrap().as_deref(), expected, "{source}");
        }
    }

    #[test]
    fn different_bytes_never_merge() {
        let one = read(&request("/?k=%FF", &[]), "query:k").unwrap();
        let two = read(&request("/?k=%FE", &[]), "query:k").unwrap();
        assert_ne!(one, two);
    }

    #[test]
    fn one_value_twice_is_fine_and_two_values_are_not() {
        let twice = [
            ("x-key", b"a".as_slice()),
            ("x-key", b"a"),
            ("cookie", b"sid=1; sid=2"),
        ];
        let request = request("/?k=1&k=1&j=1&j=2", &twice);
        assert_eq!(read(&request, "header:x-key").unwrap().as_deref(), Some("a"));
        assert_eq!(read(&request, "query:k").unwrap().as_deref(), Some("1"));
        assert_eq!(
            read(&request, "query:j"),
            Err(Ambiguous("query:j".parse().unwrap()))
        );
        assert_eq!(
            read(&request, "cookie:sid"),
            Err(Ambiguous("cookie:sid".parse().unwrap()))
        );
    }

    #[test]
    fn hosts_come_without_port_dot_and_user() {
        for (uri, host, expected) in [
            ("/", "a.example:8080", Some("a.example")),
            ("/", "[::1]:80", Some("[::1]")),
            ("/", "[::1]", Some("[::1]")),
            ("http://u@b.example./x", "a.example", Some("b.example")),
            ("/", "", None),
        ] {
            let request = request(uri, &[("host", host.as_bytes())]);
            assert_eq!(
                requested_host(request.uri(), request.headers()),
                expected,
                "{uri} {host}"
            );
        }
    }
}
