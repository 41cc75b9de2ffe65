//! The JSON schema of a config, for editors.
//!
//! It is made of what the reader says of itself: a config with every kind of table is read, and each key that the reader
//! asks for becomes a property, with its type, words, range and default. What a key's own reader would look at is in
//! [`values`]; what a key is for, in the comments of the example at the root.

mod about;
mod values;

use std::path::Path;

use serde_json::{Map, Value, json};
use toml::de::DeTable;

use super::known::{Known, Shape};
use super::limiter::{self, particular};
use super::notes::{Notes, Surroundings};
use super::reader::Section;
use super::source::Source;
use super::value::{duration_pattern, show_duration, size_pattern};
use super::{Use, read, syntax};

/// A config with every kind of table.
const PROBE: &str = r#"
upstream."*".targets = ["http://127.0.0.1:3000"]

[store]
kind = "redis"
sentinel = {}

[[route]]
upstream = "*"

[[rule]]
name = "probe"
match = {}
key = ["ip"]
limit = 1
window = "1s"
override = [{ key = "*", limit = 1 }]
"#;

/// Numbers from here on are not exact in every reader of JSON.
const EXACT: u64 = 1 << 53;

/// The JSON schema (draft 2020-12) of a config.
pub fn schema() -> Value {
    let known = known();
    let mut root = table(&known, "");
    if let Value::Object(root) = &mut root {
        root.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        root.insert(
            "title".to_owned(),
            json!("The configuration of a Tollgate gateway"),
        );
    }
    root
}

/// What the reader asks for.
pub(in crate::config) fn known() -> Vec<Known> {
    let source = Source::new("schema", PROBE);
    let readable = syntax::readable(&source);
    let table = DeTable::parse_recoverable(PROBE).0.into_inner();
    let surroundings = Surroundings {
        variable: &|_| None,
        folder: Path::new(""),
    };
    let notes = Notes::new(&source, surroundings, readable).recording();
    let _ = read(&Section::root(&table, &notes), Use::Gateway);
    notes.known()
}

/// The schema of the table with this name.
fn table(known: &[Known], name: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for known_key in known.iter().filter(|known| known.table == name) {
        properties.insert(known_key.key.to_owned(), property(known, known_key));
        // Without an upstream there is nothing to forward to, although no single key is missing.
        if known_key.required || (name.is_empty() && known_key.shape == Shape::Named) {
            required.push(known_key.key);
        }
    }
    if name == values::RULE {
        // Which algorithm has one is a condition.
        required.retain(|key| *key != "window");
    }
    let mut table = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    match name {
        values::RULE => table["allOf"] = conditions(),
        values::STORE => table["allOf"] = json!([values::servers()]),
        _ => {}
    }
    table
}

fn property(
    known: &[Known],
    Known {
        table: inside,
        key,
        shape,
        ..
    }: &Known,
) -> Value {
    let below = match inside.is_empty() {
        true => (*key).to_owned(),
        false => format!("{inside}.{key}"),
    };
    let mut property = match shape {
        Shape::Own => values::own(inside, key, |inline| table(known, inline)),
        Shape::Flag { default } => json!({ "type": "boolean", "default": default }),
        Shape::Number { default, least, most } => bounded(
            json!({ "type": "integer", "minimum": least, "default": default }),
            *most as u64,
        ),
        Shape::Size { default, least, most } => size(*default, *least, *most),
        Shape::Duration { default, least } => json!({
            "type": "string",
            "pattern": duration_pattern(least.is_zero()),
            "default": show_duration(*default),
        }),
        Shape::Word { known, default } => match default {
            Some(default) => json!({ "enum": known, "default": default }),
            None => json!({ "enum": known }),
        },
        Shape::Table => table(known, &below),
        Shape::Named => json!({
            "type": "object",
            "minProperties": 1,
            "additionalProperties": table(known, &format!("{below}.*")),
        }),
        Shape::Tables => json!({ "type": "array", "items": table(known, &below) }),
    };
    if let Value::Object(property) = &mut property {
        if values::has_no_default(inside, key) {
            property.remove("default");
        }
        if let Some(about) = about::about(inside, key) {
            property.insert("description".to_owned(), json!(about));
        }
    }
    property
}

fn size(default: u64, least: u64, most: u64) -> Value {
    json!({
        "anyOf": [
            bounded(json!({ "type": "integer", "minimum": least }), most),
            { "type": "string", "pattern": size_pattern() },
        ],
        "default": default,
    })
}

fn bounded(mut number: Value, most: u64) -> Value {
    if most < EXACT {
        number["maximum"] = json!(most);
    }
    number
}

/// What a rule may not have, by its algorithm.
fn conditions() -> Value {
    let only = particular().into_iter().map(|(key, users)| {
        let mut then = json!({ "properties": { "algorithm": { "enum": users } } });
        if !users.contains(&limiter::DEFAULT.name()) {
            then["required"] = json!(["algorithm"]);
        }
        json!({ "if": { "required": [key] }, "then": then })
    });
    only.chain([values::window(), values::log_limit()]).collect()
}
