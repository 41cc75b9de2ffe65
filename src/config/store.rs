//! `[store]` and `[alarm]`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::Store;
use super::item::{Item, Word};
use super::reader::Section;
use super::secret;
use super::words::quoted;
use crate::identity::Secret;
use crate::store::redis::{Address, Eviction, Password, Servers, Settings};
use crate::tls::{self, TlsClient};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Redis,
}

const KINDS: [Word<Kind>; 2] = [("memory", Kind::Memory), ("redis", Kind::Redis)];
const EVICTIONS: [Word<Eviction>; 2] = [("refuse", Eviction::Refuse), ("allow", Eviction::Allow)];
/// What one of the servers may be written like.
const SERVER: &str = "like \"redis://127.0.0.1:6379\"";
/// The port that Redis listens on unless it is told otherwise.
const PORT: u16 = 6_379;
pub(super) const PREFIX_MOST: usize = 64;
const NO_SECRET: &str = "tollgate: no hash_key";

/// Reads `[store]`, with its `hash_key`. It may be shared with other processes if this one `shares` its limits at all.
pub(super) fn store(root: &Section<'_>, shares: bool) -> (Store, Option<Secret>) {
    let store = root.section("store");
    let kind = store.word("kind", &KINDS, &[], Kind::Memory);
    let max_keys = store.number("max_keys", 1_000_000, 1, usize::MAX);
    let hash_key = store.item("hash_key").and_then(|item| secret::read(&item));
    let snapshot = used(&store, "snapshot", kind == Kind::Memory).and_then(|item| snapshot(&item));
    let redis = redis(&store, kind == Kind::Redis);
    store.later(&["cluster", "sentinel"]);
    store.finish();
    if let (false, Kind::Redis, Some(item)) = (shares, kind, store.item("kind")) {
        let problem = "`kind = \"redis\"` is for the gateway: a layer keeps its limits in memory";
        item.refuse(problem, "`kind = \"memory\"`");
    }
    let store = Store {
        max_keys,
        snapshot,
        redis,
    };
    (store, hash_key.as_deref().map(Secret::from_text))
}

/// What gateways that share a store hash keys with when they are given no secret: all the same.
pub(super) fn no_secret() -> Secret {
    Secret::from_text(NO_SECRET)
}

/// Reads `[alarm]`: where alarms are posted to.
pub(super) fn alarm(root: &Section<'_>) -> Option<Uri> {
    let alarm = root.section("alarm");
    let webhook = alarm.item("webhook").and_then(|item| webhook(&item));
    alarm.finish();
    webhook
}

/// A key that not every kind of store uses; says so if this one does not.
fn used<'a>(store: &Section<'a>, key: &'static str, is_used: bool) -> Option<Item<'a>> {
    let item = store.item(key)?;
    if is_used {
        return Some(item);
    }
    let users = if key == "snapshot" { "memory" } else { "redis" };
    let span = store.key_span(key).unwrap_or(item.span);
    let problem = format!("`{key}` is for `kind = \"{users}\"` alone");
    store.notes.error(span, problem, "leave it out");
    None
}

fn redis(store: &Section<'_>, is_used: bool) -> Option<Settings> {
    let prefix = used(store, "prefix", is_used).and_then(|item| prefix(&item));
    let shards = used(store, "shards", is_used).and_then(|item| servers(&item));
    let username = used(store, "username", is_used).and_then(|item| secret::read(&item));
    let password = used(store, "password", is_used).and_then(|item| secret::read(&item));
    let database = used(store, "database", is_used);
    let partitions = used(store, "partitions", is_used);
    let deadline = used(store, "deadline", is_used);
    let eviction = used(store, "eviction", is_used).and_then(|item| item.word(&EVICTIONS, &[]));
    let database = database.and_then(|item| item.integer());
    let partitions = partitions.and_then(|item| {
        let partitions = item.integer()?;
        item.within(partitions, 1, u16::MAX, |number| number.to_string())
    });
    let deadline = deadline.and_then(|item| {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(10));
        item.within(item.duration()?, least, most, super::show_duration)
    });
    let ca = used(store, "ca", is_used);
    if !is_used {
        return None;
    }
    if store.key_span("shards").is_none() {
        let hint = "`shards = [\"redis://127.0.0.1:6379\"]`";
        store
            .notes
            .absent("shards", store.header, "`shards` is missing in [store]", hint);
    }
    let shards = shards?;
    Some(Settings {
        tls: trust(store, ca.as_ref(), &shards),
        prefix: prefix.unwrap_or_else(|| "tollgate".to_owned()),
        servers: Servers::Shards(shards),
        username,
        password: password.map(Password::new),
        database: database.unwrap_or(0),
        partitions: partitions.unwrap_or(256),
        deadline: deadline.unwrap_or(Duration::from_millis(50)),
        eviction: eviction.unwrap_or(Eviction::Refuse),
    })
}

/// What names of keys begin with: nothing that has a meaning in a name, and nothing that cannot be typed.
fn prefix(item: &Item<'_>) -> Option<String> {
    let text = item.text()?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
    if text.is_empty() || text.len() > PREFIX_MOST || !text.chars().all(plain) {
        let hint = "1 to 64 visible ASCII characters without braces, like \"tollgate\"";
        item.refuse(format!("{} is no prefix", quoted(text)), hint);
        return None;
    }
    Some(text.to_owned())
}

fn servers(item: &Item<'_>) -> Option<Vec<Address>> {
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
fn trust(store: &Section<'_>, ca: Option<&Item<'_>>, servers: &[Address]) -> Option<TlsClient> {
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
                store
                    .notes
                    .error(store.value_span("shards"), error.to_string(), hint);
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

/// Where alarms go. The URL may hold a token, and is never shown.
fn webhook(item: &Item<'_>) -> Option<Uri> {
    let text = secret::read(item)?;
    let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    let uri = text
        .parse::<Uri>()
        .ok()
        .filter(|uri| is_http(uri) && uri.host().is_some_and(|host| !host.is_empty()));
    if uri.is_none() {
        item.refuse(
            "the webhook is no URL",
            "\"https://…\", \"env:NAME\" or \"file:PATH\"",
        );
    }
    uri
}

/// The name of a file, from the config's folder on.
fn snapshot(item: &Item<'_>) -> Option<PathBuf> {
    let text = item.text()?;
    let path = item.notes.surroundings.folder.join(text);
    if text.is_empty() || text.ends_with('/') || path.file_name().is_none() {
        item.refuse(
            format!("{} is not the name of a file", quoted(text)),
            "like \"limits.snap\"",
        );
        return None;
    }
    Some(path)
}
