//! The client's address: the peer's, or what trusted proxies say of it.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::FORWARDED;
use ipnet::IpNet;

/// The field in which proxies list the addresses that a request came through.
pub const X_FORWARDED_FOR: http::HeaderName = http::HeaderName::from_static("x-forwarded-for");

/// Whether `address` is one of the trusted proxies.
pub(super) fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|network| network.contains(&address))
}

/// How a client's address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is the peer's, which is no trusted proxy.
    Peer,
    /// It is the peer's: a trusted proxy, that names nobody.
    Unnamed,
    /// It is the peer's: a trusted proxy, in whose field an entry cannot be read.
    Unreadable(Named),
    /// The first hop from the right that is not trusted.
    Untrusted(Named),
    /// The leftmost hop: all of them are trusted.
    Leftmost(Named),
}

/// The field that names a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// `X-Forwarded-For`
    XForwardedFor,
    /// `Forwarded`
    Forwarded,
}

/// The address of the client behind a trusted `peer`: from the right, the first hop that is not trusted; the leftmost if
/// all are. An entry that cannot be read makes it the peer. `Forwarded` is read only where `X-Forwarded-For` is absent.
pub(super) fn behind(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> (IpAddr, Found) {
    let (hop, named) = if headers.contains_key(X_FORWARDED_FOR) {
        let hop = first_untrusted(lines(headers, &X_FORWARDED_FOR).flat_map(forwarded_for), trusted);
        (hop, Named::XForwardedFor)
    } else {
        let hop = first_untrusted(lines(headers, &FORWARDED).flat_map(forwarded), trusted);
        (hop, Named::Forwarded)
    };
    match hop {
        Hop::None => (peer, Found::Unnamed),
        Hop::Unreadable => (peer, Found::Unreadable(named)),
        Hop::Untrusted(client) => (client, Found::Untrusted(named)),
        Hop::Trusted(client) => (client, Found::Leftmost(named)),
    }
}

/// The lines of a field from the last to the first; a line that is not text is one entry that cannot be read.
fn lines<'h>(headers: &'h HeaderMap, name: &'h http::HeaderName) -> impl Iterator<Item = &'h str> {
    let mut lines: Vec<&str> = headers
        .get_all(name)
        .iter()
        .map(|line| line.to_str().unwrap_or("?"))
        .collect();
    lines.reverse();
    lines.into_iter()
}

/// Where a walk through the hops from the right ends.
enum Hop {
    None,
    Unreadable,
    Untrusted(IpAddr),
    /// At the leftmost one.
    Trusted(IpAddr),
}

/// From entries in order from the right: the first that is not trusted (or cannot be read), else the last.
fn first_untrusted(entries: impl Iterator<Item = Option<IpAddr>>, trusted: &[IpNet]) -> Hop {
    let mut leftmost = Hop::None;
    for entry in entries {
        match entry {
            Some(address) if is_trusted(address, trusted) => leftmost = Hop::Trusted(address),
            Some(address) => return Hop::Untrusted(address),
            None => return Hop::Unreadable,
        }
    }
    leftmost
}

fn forwarded_for(line: &str) -> impl Iterator<Item = Option<IpAddr>> {
    line.rsplit(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(address)
}

/// The `for` of each element of a `Forwarded` line (RFC 7239), from the right. A line whose quotes do not close is one
/// entry that cannot be read.
fn forwarded(line: &str) -> impl Iterator<Item = Option<IpAddr>> {
    let elements = match unquoted_split(line, ',') {
        Some(elements) => elements.into_iter().map(node).rev().collect(),
        None => vec![None],
    };
    elements.into_iter()
}

/// The address that one element names as its client.
fn node(element: &str) -> Option<IpAddr> {
    let pairs = unquoted_split(element, ';')?;
    let mut clients = pairs.into_iter().filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.eq_ignore_ascii_case("for").then_some(value)
    });
    let client = clients.next()?;
    if clients.next().is_some() {
        return None;
    }
    let bare = client
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(client);
    address(bare)
}

/// The parts between separators that are not inside a quoted string: a client chooses the host that a proxy quotes, and
/// must not write elements of its own with it. `None` where a quoted string does not end.
fn unquoted_split(text: &str, separator: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if c == separator && !quoted => {
                parts.push(text[start..at].trim());
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    (!quoted).then_some(parts)
}

/// Reads an address as proxies write it: bare, in brackets, or with a port behind it.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = entry
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(entry);
    let address = match bare.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => entry.parse::<SocketAddr>().ok()?.ip(),
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    const PEER: &str = "10.0.0.1";

    fn client(fields: &[(&str, &str)]) -> String {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "2001:db8:1::/48".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        behind(PEER.parse().unwrap(), &headers, &trusted).0.to_string()
    }

    #[test]
    fn walks_from_the_right_over_trusted_hops() {
        for (value, expected) in [
            ("1.1.1.1", "1.1.1.1"),
            ("6.6.6.6, 1.1.1.1", "1.1.1.1"),
            ("6.6.6.6, 1.1.1.1, 10.0.0.2", "1.1.1.1"),
            ("6.6.6.6, 1.1.1.1, 2001:db8:1::9, 10.0.0.2", "1.1.1.1"),
            ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
            ("::ffff:1.1.1.1, ::ffff:10.0.0.2", "1.1.1.1"),
            ("1.1.1.1,,10.0.0.2,", "1.1.1.1"),
            ("1.1.1.1:5678", "1.1.1.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            (" 1.2.3.4 ", "1.2.3.4"),
        ] {
            assert_eq!(client(&[("x-forwarded-for", value)]), expected, "{value}");
        }
    }

    #[test]
    fn what_cannot_be_read_makes_it_the_peer() {
        for value in [
            "unknown",
            "1.1.1.1, junk",
            "01.2.3.4",
            "1.2.3",
            "fe80::1%eth0",
            "\"1.1.1.1\"",
            "[::1",
            "",
            ",",
            "é",
        ] {
            assert_eq!(client(&[("x-forwarded-for", value)]), PEER, "{value}");
        }
        assert_eq!(client(&[("x-forwarded-for", "junk, 1.1.1.1")]), "1.1.1.1");
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-for", "1.1.1.1, 10.0.0.2"),
        ];
        assert_eq!(client(&lines), "1.1.1.1");
        assert_eq!(
            client(&[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "10.0.0.2")]),
            "1.1.1.1"
        );
    }

    #[test]
    fn forwarded_counts_only_without_x_forwarded_for() {
        assert_eq!(
            client(&[("forwarded", "for=6.6.6.6, FOR=\"[2001:db8::17]:4711\";proto=http")]),
            "2001:db8::17"
        );
        assert_eq!(client(&[("forwarded", "for=1.1.1.1, for=10.0.0.2")]), "1.1.1.1");
        assert_eq!(client(&[("forwarded", "for=unknown")]), PEER);
        assert_eq!(client(&[("forwarded", "for=_hidden")]), PEER);
        assert_eq!(client(&[("forwarded", "proto=http")]), PEER);
        assert_eq!(client(&[("forwarded", "for=6.6.6.6, for=\"")]), PEER);
        assert_eq!(client(&[("forwarded", "for=1.1.1.1;for=6.6.6.6")]), PEER);
        for host in ["a, for=6.6.6.6", "a;for=6.6.6.6", "\\\", for=6.6.6.6"] {
            let value = format!("for=1.1.1.1;host=\"{host}\"");
            assert_eq!(client(&[("forwarded", &value)]), "1.1.1.1", "{value}");
        }
        assert_eq!(
            client(&[("forwarded", "for=6.6.6.6"), ("x-forwarded-for", "")]),
            PEER
        );
        assert_eq!(client(&[]), PEER);
    }
}
