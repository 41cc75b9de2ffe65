//! `[store]` and `[alarm]`.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::Store;
use super::item::{Item, Word};
use super::reader::Section;
use super::secret;
use super::servers;
use super::words::quoted;
use crate::decide::EdgeSettings;
use crate::identity::Secret;
use crate::store::redis::{Eviction, Password, Servers, Settings};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Redis,
}

const KINDS: [Word<Kind>; 2] = [("memory", Kind::Memory), ("redis", Kind::Redis)];
const EVICTIONS: [Word<Eviction>; 2] = [("refuse", Eviction::Refuse), ("allow", Eviction::Allow)];
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

/// Reads `[edge]`.
pub(super) fn edge(root: &Section<'_>) -> EdgeSettings {
    let edge = root.section("edge");
    let default = EdgeSettings::default().max_staleness;
    let max_staleness = edge.duration("max_staleness", default, Duration::ZERO);
    edge.finish();
    EdgeSettings { max_staleness }
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
    let sentinel = store.section("sentinel");
    let listed = ["shards", "cluster", "sentinel"].map(|key| used(store, key, is_used));
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
    let (servers, tls) = servers::read(store, &listed, &sentinel, ca.as_ref())?;
    let is_cluster = matches!(servers, Servers::Cluster(_));
    if let (true, Some(span)) = (is_cluster, store.key_span("database")) {
        let problem = "`database` is not for a cluster, which has one alone";
        store.notes.error(span, problem, "leave it out");
    }
    Some(Settings {
        tls,
        prefix: prefix.unwrap_or_else(|| "tollgate".to_owned()),
        servers,
        username,
        password: password.map(Password::new),
        database: database.unwrap_or(0),
        partitions: partitions.unwrap_or(if is_cluster { 64 } else { 256 }),
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
