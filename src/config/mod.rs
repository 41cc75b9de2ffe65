//! `gateway.toml` to the settings of the modules below, with every fault at its line and column.
//!
//! [`load`] reads a file, [`parse`] a text: either gives [`Settings`] and perhaps warnings, or a [`Report`] of all that
//! is wrong. This module never opens a socket, and never shows a secret.

mod finding;
mod identity;
mod item;
mod known;
mod limiter;
mod matching;
mod notes;
mod overlap;
mod overrides;
mod reader;
mod render;
mod report;
mod rule;
mod schema;
mod secret;
mod server;
mod servers;
mod source;
mod store;
mod syntax;
mod upstream;
mod value;
mod warn;
mod words;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

pub use finding::{Finding, Severity};
pub use notes::Surroundings;
pub use report::Report;
pub use schema::schema;
pub use source::{Place, Span};
pub use value::show_duration;

use crate::{admin, proxy, rules, telemetry};
use notes::Notes;
use reader::Section;
use source::Source;

/// A whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[server]` as far as sockets go.
    pub server: crate::server::Settings,
    /// `[admin]`.
    pub admin: admin::Settings,
    /// `[log]`.
    pub log: telemetry::Settings,
    /// `[upstream.*]`, in the order of the file.
    pub upstreams: Vec<crate::upstream::Settings>,
    /// Routes, header profiles, and the limits of requests.
    pub proxy: proxy::Settings,
    /// `[store]`.
    pub store: Store,
    /// `[edge]`.
    pub edge: crate::decide::EdgeSettings,
    /// Where `[alarm]` says that alarms are posted to.
    pub webhook: Option<http::Uri>,
    /// `[identity]`, and the trusted proxies of `[server]`.
    pub identity: crate::identity::Settings,
    /// The secret of `[store] hash_key`. Without one, what gateways that share a store have in common, and `None` for
    /// the others.
    pub secret: Option<crate::identity::Secret>,
    /// `[[rule]]`, in the order of the file.
    pub rules: Vec<rules::Rule>,
}

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Most keys that the memory store holds.
    pub max_keys: usize,
    /// The file that the memory store's state is kept in while no gateway runs.
    pub snapshot: Option<PathBuf>,
    /// The store in Redis, where that is the one.
    pub redis: Option<crate::store::redis::Settings>,
}

/// A config that runs.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub settings: Settings,
    /// What is odd about it: warnings only.
    pub report: Report,
}

impl Loaded {
    /// The warnings as a compiler would show them, and the [summary](Self::summary).
    pub fn render(&self, colour: bool) -> String {
        format!("{}{}", self.report.shown(colour), self.summary())
    }

    /// One line on what the config is.
    pub fn summary(&self) -> String {
        let count = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let Settings {
            upstreams,
            proxy,
            rules,
            ..
        } = &self.settings;
        let parts = [
            count(rules.len(), "rule"),
            count(proxy.routes.len(), "route"),
            count(upstreams.len(), "upstream"),
        ];
        format!(
            "{}: {}; {}",
            self.report.file(),
            parts.join(", "),
            self.report.counts()
        )
    }
}

/// Reads the config file at `path`, with the environment of this process.
///
/// # Errors
/// All that is wrong with it.
pub fn load(path: &Path) -> Result<Loaded, Report> {
    let name = path.display().to_string();
    let bytes = fs::read(path).map_err(|error| {
        let problem = format!("cannot read the config file: {error}");
        let hint = "`--config FILE` names another".to_owned();
        Report::of_file(&name, problem, hint)
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(&name, text, &Surroundings::of_process(folder)),
        Err(error) => Err(not_utf8(&name, &bytes[..error.valid_up_to()])),
    }
}

/// A report on a file that is UTF-8 as far as `valid` and no further.
fn not_utf8(name: &str, valid: &[u8]) -> Report {
    let source = Source::new(name, &String::from_utf8_lossy(valid));
    let end = source.text.len();
    let finding = Finding {
        severity: Severity::Error,
        file: name.to_owned(),
        place: Some(source.place(Span::from(end..end))),
        problem: "the config file is not UTF-8 from here on".to_owned(),
        hint: Some("save it as UTF-8".to_owned()),
    };
    Report::new(name, source.without(&[]), vec![finding])
}

/// Reads the text of a config file that is called `name`.
///
/// # Errors
/// All that is wrong with it.
pub fn parse(name: &str, text: &str, surroundings: &Surroundings<'_>) -> Result<Loaded, Report> {
    parse_for(Use::Gateway, name, text, surroundings)
}

/// Reads the text of a config that is called `name` for its rules alone: it needs no upstream.
///
/// # Errors
/// All that is wrong with it.
pub fn parse_limits(name: &str, text: &str, surroundings: &Surroundings<'_>) -> Result<Loaded, Report> {
    parse_for(Use::Limits, name, text, surroundings)
}

/// What a config is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Gateway,
    Limits,
}

fn parse_for(
    purpose: Use,
    name: &str,
    text: &str,
    surroundings: &Surroundings<'_>,
) -> Result<Loaded, Report> {
    let source = Source::new(name, text);
    let mut readable = syntax::readable(&source);
    let text = std::mem::take(&mut readable.text);
    let table = DeTable::parse_recoverable(&text).0.into_inner();
    let notes = Notes::new(&source, *surroundings, readable);
    let settings = read(&Section::root(&table, &notes), purpose);
    let refused = notes.refused();
    let (findings, secrets) = notes.finish();
    let report = Report::new(name, source.without(&secrets), findings);
    match settings {
        Some(settings) if !refused => Ok(Loaded { settings, report }),
        _ => Err(report),
    }
}

fn read(root: &Section<'_>, purpose: Use) -> Option<Settings> {
    let server = server::server(root);
    let admin = server::admin(root, &server.listen);
    let log = server::log(root);
    let upstreams = upstream::upstreams(root, &server, purpose == Use::Gateway);
    let routes = upstream::routes(root, &upstreams);
    let (store, secret) = store::store(root, purpose == Use::Gateway);
    let edge = store::edge(root);
    let webhook = store::alarm(root);
    let identity = identity::identity(root, server.trusted_proxies);
    let profiles = server::headers(root);
    let rules = rule::rules(root, &identity);
    root.finish();
    if root.notes.refused() {
        return None;
    }
    let scene = warn::Scene {
        routes: (purpose == Use::Gateway).then_some(routes.as_slice()),
        max_keys: store.max_keys,
        ipv6_prefix: identity.ipv6_prefix,
        tells_hashes: store.redis.is_some() && secret.is_none(),
        user: &identity.user,
    };
    warn::rules(&rules, &scene, root.notes);
    Some(Settings {
        proxy: proxy::Settings {
            routes,
            profiles,
            body: server.body,
            body_bytes: server.body_bytes,
            uri_bytes: server.uri_bytes,
            header_count: server.sockets.header_count,
        },
        server: server.sockets,
        admin,
        log,
        upstreams,
        secret: secret.or_else(|| store.redis.as_ref().map(|_| store::no_secret())),
        store,
        edge,
        webhook,
        identity,
        rules: rules.into_iter().map(|read| read.rule).collect(),
    })
}
