//! The values of keys whose readers look at them themselves.

use serde_json::{Value, json};

use super::super::limiter;
use super::super::overrides::{BLOCKED, UNLIMITED};
use super::super::rule::NAME_MOST;
use super::super::server::{HEADER_BYTES_LEAST, PROFILES};
use super::super::store::PREFIX_MOST;
use super::super::upstream::EVERYTHING;
use super::super::value::duration_pattern;
use super::size;
use crate::identity::SOURCES;
use crate::limit::sliding_log::LIMIT_MAX;
use crate::limit::sliding_window::PRECISION_MAX;
use crate::limit::{Kind, RANGE};
use crate::rules::REFUND_WORDS;

pub(super) const RULE: &str = "rule";
pub(super) const STORE: &str = "store";
const LISTEN: &str = ":[0-9]{1,5}$";
const NETWORK: &str = "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$";
const METHOD: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
const HOST: &str = r"^(\*\.)?(\[.+\]|[0-9A-Za-z._-]+)$";
const TARGET: &str = "^(http|h2c)://[^/@?#]+$";
const SERVER: &str = r"^(rediss?://)?[^/@?#\s]+/?$";
const PATH: &str = "^/[^?#]*$";
const FILE: &str = "[^/]$";

/// Keys whose default depends on the machine or on other keys.
pub(super) fn has_no_default(table: &str, key: &str) -> bool {
    matches!(
        (table, key),
        ("server", "workers") | ("upstream.*.timeouts", "connect" | "response")
    )
}

/// The value of a key; `inline` gives the schema of a table that has no header. `true` for a key that nothing is known of.
pub(super) fn own(table: &str, key: &str, inline: impl Fn(&str) -> Value) -> Value {
    match (table, key) {
        ("server", "listen") => {
            let listen = some(json!({ "type": "string", "pattern": LISTEN }));
            defaulting(listen, json!(["127.0.0.1:8080"]))
        }
        ("server", "trusted_proxies") => defaulting(list(text(NETWORK)), json!([])),
        ("server.limits", "header_bytes") => size(64 << 10, HEADER_BYTES_LEAST, u32::MAX.into()),
        ("admin", "listen") => {
            let listen = text(&format!("^$|{LISTEN}"));
            defaulting(listen, json!("127.0.0.1:9901"))
        }
        ("admin", "token") | (STORE, "hash_key" | "username" | "password") | ("alarm", "webhook") => {
            json!({ "type": "string", "minLength": 1 })
        }
        (STORE, key) => of_store(key),
        ("store.sentinel", key) => of_sentinel(key),
        ("upstream.*", "targets") => some(text(TARGET)),
        ("route", "path") => defaulting(text(PATH), json!(EVERYTHING)),
        ("route" | "match", "host") => text(HOST),
        ("route", "upstream") => json!({ "type": "string" }),
        ("identity", "user") => defaulting(list(text(&one_source())), json!([])),
        ("headers", "send") => {
            let mut send = list(json!({ "enum": PROFILES.map(|(word, _)| word) }));
            send["uniqueItems"] = json!(true);
            defaulting(send, json!(PROFILES.map(|(word, _)| word)))
        }
        ("match", "path") => text(PATH),
        ("match", "methods" | "not_methods") => list(text(METHOD)),
        ("match", "not_path") => list(text(PATH)),
        (RULE, "match") => inline("match"),
        (RULE, "override") => list(inline("override")),
        (RULE, "name") => text(&format!("^[0-9A-Za-z._-]{{1,{NAME_MOST}}}$")),
        (RULE, "key") => list(text(&key_part())),
        (RULE, "algorithm") => {
            let algorithm = json!({ "enum": Kind::ALL.map(Kind::name) });
            defaulting(algorithm, json!(limiter::DEFAULT.name()))
        }
        (RULE, "limit") | (RULE | "override", "burst") => number(1, RANGE - 1),
        (RULE, "outage_share") => {
            json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.5 })
        }
        (RULE, "blend") => json!({ "type": "boolean", "default": true }),
        (RULE, "window" | "queue") => text(&duration_pattern(false)),
        (RULE, "precision") => defaulting(number(1, PRECISION_MAX), json!(1)),
        (RULE, "cost") => defaulting(number(0, RANGE - 1), json!(1)),
        (RULE, "refund") => {
            let status = number(100, 599);
            let text = text("^[1-5][0-9][0-9]$");
            let outcome = json!({ "anyOf": [status, text, { "enum": REFUND_WORDS }] });
            defaulting(list(outcome), json!(["upstream-error"]))
        }
        ("override", "key") => json!({ "anyOf": [{ "type": "string" }, list(json!({ "type": "string" }))] }),
        ("override", "limit") => json!({ "anyOf": [number(1, RANGE - 1), { "enum": [UNLIMITED, BLOCKED] }] }),
        _ => Value::Bool(true),
    }
}

/// The value of a key of `[store]`.
fn of_store(key: &str) -> Value {
    match key {
        "snapshot" | "ca" => text(FILE),
        "prefix" => {
            let prefix = text(&format!("^[!-z|~]{{1,{PREFIX_MOST}}}$"));
            defaulting(prefix, json!("tollgate"))
        }
        "shards" | "cluster" => some(text(SERVER)),
        "database" => defaulting(number(0, u32::MAX.into()), json!(0)),
        "partitions" => defaulting(number(1, u16::MAX.into()), json!(256)),
        "deadline" => defaulting(text(&duration_pattern(false)), json!("50ms")),
        "eviction" => defaulting(json!({ "enum": ["refuse", "allow"] }), json!("refuse")),
        _ => Value::Bool(true),
    }
}

/// The value of a key of `[store.sentinel]`.
fn of_sentinel(key: &str) -> Value {
    match key {
        "master" => text("^[0-9A-Za-z._-]+$"),
        "nodes" => of_store("shards"),
        _ => Value::Bool(true),
    }
}

/// A rule whose algorithm has a window must have one.
pub(super) fn window() -> Value {
    let without = Kind::ALL.into_iter().filter(|kind| !kind.has_window());
    let without: Vec<&str> = without.map(Kind::name).collect();
    json!({
        "if": { "properties": { "algorithm": { "enum": without } }, "required": ["algorithm"] },
        "else": { "required": ["window"] },
    })
}

/// What a log may not have: a limit that would keep too much.
pub(super) fn log_limit() -> Value {
    json!({
        "if": {
            "properties": { "algorithm": { "const": Kind::SlidingLog.name() } },
            "required": ["algorithm"],
        },
        "then": { "properties": { "limit": { "maximum": LIMIT_MAX } } },
    })
}

/// A store in Redis must say where its servers are, in one way.
pub(super) fn servers() -> Value {
    let ways = ["shards", "cluster", "sentinel"].map(|key| json!({ "required": [key] }));
    json!({
        "if": { "properties": { "kind": { "const": "redis" } }, "required": ["kind"] },
        "then": { "oneOf": ways },
    })
}

fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

/// A list of at least one.
fn some(item: Value) -> Value {
    let mut list = list(item);
    list["minItems"] = json!(1);
    list
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn number(least: u64, most: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

fn defaulting(mut value: Value, default: Value) -> Value {
    value["default"] = default;
    value
}

/// A regular expression for a source of key parts, among those that `fits`.
fn source(fits: impl Fn(&str) -> bool) -> String {
    let words = SOURCES.into_iter().filter(|word| fits(word));
    let words: Vec<String> = words
        .map(|word| match word.ends_with(':') {
            true => format!("{word}[^|]+"),
            false => word.to_owned(),
        })
        .collect();
    format!("({})", words.join("|"))
}

/// A source of the key part `user`, which is not itself and nothing that only one rule knows.
fn one_source() -> String {
    format!("^{}$", source(|word| !matches!(word, "user" | "path:")))
}

fn key_part() -> String {
    let source = source(|_| true);
    format!(r"^\s*{source}\s*(\|\s*{source}\s*)*$")
}
