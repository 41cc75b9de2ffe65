//! The servers of `[store]`: which they are, and whom to trust where they are spoken to by TLS.

use std::fs;

use http::Uri;

use super::item::Item;
use super::reader::Section;
use super::source::Span;
use super::words::quoted;
use crate::store::redis::{Address, Servers};
use crate::tls::{self, TlsClient};

/// What one of the servers may be written like.
const SERVER: &str = "like \"redis://127.0.0.1:6379\"";
/// What says where the servers are.
const HINT: &str = "`shards = [\"redis://127.0.0.1:6379\"]`";
/// The port that Redis listens on unless it is told otherwise.
const PORT: u16 = 6_379;

/// Reads which servers there are, from the one of `shards`, `cluster` and `sentinel` that is there, and whom to trust.
pub(super) fn read(
    store: &Section<'_>,
    [shards, cluster, sentinel]: &[Option<Item<'_>>; 3],
    watched: &Section<'_>,
    ca: Option<&Item<'_>>,
) -> Option<(Servers, Option<TlsClient>)> {
    let mut given = [shards, cluster, sentinel].into_iter().flatten();
    let Some(first) = given.next() else {
        let problem = "`shards` is missing in [store], or `cluster` or `sentinel`";
        store.notes.absent("shards", store.header, problem, HINT);
        return None;
    };
    for other in given {
        let span = store.key_span(other.key).unwrap_or(other.span);
        let problem = format!("`{}` beside `{}`", other.key, first.key);
        let hint = "exactly one of `shards`, `cluster` and `sentinel`";
        store.notes.error(span, problem, hint);
    }
    let servers = match first.key {
        "sentinel" if first.is_table() => sentinel_of(watched)?,
        // It has been said that it must be one.
        "sentinel" => return None,
        "cluster" => Servers::Cluster(list(first)?),
        _ => Servers::Shards(list(first)?),
    };
    let listed = servers.listed();
    if let (false, Some(other)) = (
        matches!(servers, Servers::Shards(_)),
        listed
            .iter()
            .find(|server| listed.first().map(|first| first.tls) != Some(server.tls)),
    ) {
        let problem = format!("{other} is spoken to in another way than the first server");
        first.refuse(problem, "`rediss://` for all of them, or for none");
    }
    let tls = trust(store, first.span, ca, listed);
    Some((servers, tls))
}

/// Reads `sentinel`.
fn sentinel_of(section: &Section<'_>) -> Option<Servers> {
    let master = section.required("master", "what Sentinels call the primary, like \"mymaster\"");
    let nodes = section.required("nodes", "`nodes = [\"redis://127.0.0.1:26379\"]`");
    section.finish();
    let master = master.and_then(|item| {
        let text = item.text()?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if text.is_empty() || !text.chars().all(is_name) {
            item.refuse(
                format!("{} is no name of a master", quoted(text)),
                "letters, digits, dots, underscores and hyphens, like \"mymaster\"",
            );
            return None;
        }
        Some(text.to_owned())
    });
    let nodes = nodes.and_then(|item| list(&item));
    Some(Servers::Sentinel {
        master: master?,
        nodes: nodes?,
    })
}

fn list(item: &Item<'_>) -> Option<Vec<Address>> {
    let items = item.list()?;
    if items.is_empty() {
        item.refuse(format!("`{}` is empty", item.key), SERVER);
    }
    let mut servers: Vec<Address> = Vec::new();
    for item in &items {
        let Some(server) = server(item) else { continue };
        // With TLS or without, there is one server at an address.
        let same = |other: &Address| other.host == server.host && other.port == server.port;
        if servers.iter().any(same) {
            item.refuse(format!("{server} is listed twice"), "each server once");
        }
        servers.push(server);
    }
    (servers.len() == items.len()).then_some(servers)
}

/// Whom to trust: by TLS, if any of the servers is spoken to by it.
fn trust(store: &Section<'_>, span: Span, ca: Option<&Item<'_>>, servers: &[Address]) -> Option<TlsClient> {
    let by_tls = servers.iter().any(|server| server.tls);
    match ca {
        Some(ca) if by_tls => authorities(ca),
        Some(ca) => {
            let span = store.key_span(ca.key).unwrap_or(ca.span);
            let problem = "`ca` is for `rediss://`, and no server is named so";
            store
                .notes
                .error(span, problem, "leave it out, or write \"rediss://…\" for TLS");
            None
        }
        None if by_tls => {
            let system = TlsClient::trusting_the_system();
            let refuse = |error: &tls::NoTrust| {
                let hint = "`ca = \"ca.pem\"` in [store] says whom to trust";
                store.notes.error(span, error.to_string(), hint);
            };
            system.inspect_err(refuse).ok()
        }
        None => None,
    }
}

/// Those whose certificates are in a file.
fn authorities(item: &Item<'_>) -> Option<TlsClient> {
    let text = item.text()?;
    let path = item.notes.surroundings.folder.join(text);
    let name = quoted(&path.to_string_lossy());
    let problem = match fs::read(&path) {
        Ok(pem) => match TlsClient::trusting(&pem) {
            Ok(client) => return Some(client),
            Err(error) => format!("{name} is {error}"),
        },
        Err(error) => format!("cannot read {name}: {error}"),
    };
    item.refuse(
        problem,
        "a PEM file with the certificates to trust; a relative name starts at the config's folder",
    );
    None
}

/// The server that a URL names.
fn server(item: &Item<'_>) -> Option<Address> {
    let text = item.text()?;
    if text.contains('@') {
        // It may hold a password.
        item.notes.hide(item.span);
        let problem = "a user or password in the URL of a server";
        item.refuse(
            problem,
            "`username` and `password` in [store], which may be \"env:NAME\" or \"file:PATH\"",
        );
        return None;
    }
    let url = match text.contains("://") {
        true => text.to_owned(),
        false => format!("redis://{text}"),
    };
    let is_ours = |uri: &Uri| matches!(uri.scheme_str(), Some("redis" | "rediss"));
    let uri = url.parse::<Uri>().ok().filter(is_ours);
    let Some(uri) = uri else {
        item.refuse(format!("{} is no URL of a server", quoted(text)), SERVER);
        return None;
    };
    if !matches!(
        uri.path_and_query().map(|rest| rest.as_str()),
        None | Some("" | "/")
    ) {
        item.refuse(
            "more than a host and a port in the URL of a server",
            "`database` in [store] for the number of a database",
        );
        return None;
    }
    let host = uri.host().unwrap_or_default();
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let port = match uri.port() {
        Some(port) => port.as_str().parse().ok().filter(|port| *port > 0),
        None => Some(PORT),
    };
    let tls = uri.scheme_str() == Some("rediss");
    match (host, port) {
        (host, _) if tls && !host.is_empty() && !tls::can_name(host) => {
            item.refuse(
                format!("no certificate can be for {}", quoted(host)),
                "a name or an IP address",
            );
            None
        }
        ("", _) | (_, None) => {
            item.refuse(format!("{} is no URL of a server", quoted(text)), SERVER);
            None
        }
        (host, Some(port)) => Some(Address {
            host: host.to_ascii_lowercase(),
            port,
            tls,
        }),
    }
}
