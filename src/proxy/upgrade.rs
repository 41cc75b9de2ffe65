//! `Upgrade`: which other protocols may be asked for, and whether a 101 grants one of them.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Version, request};
use http_body::Body;
use hyper::upgrade::OnUpgrade;

use super::hop::has_token;

/// Protocols that would carry more requests past the limits.
const OF_REQUESTS: [&str; 3] = ["h2c", "http", "tls"];

/// A client's wish to switch to another protocol.
pub(super) struct Switch {
    protocols: String,
    client: OnUpgrade,
}

impl Switch {
    /// The wish, if the request is one that may have it: HTTP/1.1, without a body, and `Connection` names the field.
    pub(super) fn asked<B: Body>(head: &mut request::Parts, body: &B) -> Option<Self> {
        let client = head.extensions.remove::<OnUpgrade>()?;
        let named = head
            .headers
            .get_all(CONNECTION)
            .iter()
            .any(|connection| has_token(connection, "upgrade"));
        if !named || head.version != Version::HTTP_11 || !body.is_end_stream() {
            return None;
        }
        let protocols: Vec<&str> = protocols(&head.headers)
            .filter(|protocol| !OF_REQUESTS.iter().any(|other| is_kind(protocol, other)))
            .collect();
        (!protocols.is_empty()).then(|| Self {
            protocols: protocols.join(", "),
            client,
        })
    }

    /// Writes the wish into the request to the upstream, whose fields of the client's hop are gone.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        if let Ok(protocols) = HeaderValue::try_from(self.protocols.as_str()) {
            put(headers, protocols);
        }
    }

    /// The client's side of the connection, and the protocol that a 101 with these fields grants: one that was asked for.
    pub(super) fn grant(self, response: &HeaderMap) -> Option<(OnUpgrade, HeaderValue)> {
        let mut granted = protocols(response).peekable();
        granted.peek()?;
        let asked = |protocol: &str| {
            self.protocols
                .split(", ")
                .any(|asked| asked.eq_ignore_ascii_case(protocol))
        };
        if !granted.all(asked) {
            return None;
        }
        let field = response.get(UPGRADE)?.clone();
        Some((self.client, field))
    }
}

/// Says to the next hop that it is to switch, or has switched.
pub(super) fn put(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(UPGRADE, protocols);
    headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(UPGRADE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty())
}

/// Whether `protocol` is `name`, in whatever version.
fn is_kind(protocol: &str, name: &str) -> bool {
    let (kind, _version) = protocol.split_once('/').unwrap_or((protocol, ""));
    kind.trim().eq_ignore_ascii_case(name)
}
