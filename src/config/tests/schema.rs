//! The schema says what the reader does.

use std::collections::BTreeSet;

use jsonschema::Validator;
use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::example::{EXAMPLE, LATER, commented_out, differing};
use super::{REST, parse_snippet, parse_text};
use crate::config::schema;
use crate::config::schema::known;

fn json_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text.as_ref()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => u64::try_from(number).map_or_else(|_| json!(number as f64), |number| json!(number)),
            Err(_) => json!(f64::MAX),
        },
        DeValue::Float(number) => json!(number.as_str().parse::<f64>().unwrap()),
        DeValue::Boolean(flag) => json!(flag),
        DeValue::Datetime(date) => json!({ "date": date.to_string() }),
        DeValue::Array(array) => array.iter().map(|item| json_of(item.get_ref())).collect(),
        DeValue::Table(table) => object(table),
    }
}

fn object(table: &DeTable<'_>) -> Value {
    let entries = table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), json_of(value.get_ref())));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn toml(text: &str) -> Value {
    object(DeTable::parse(text).unwrap().get_ref())
}

fn validator() -> Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

#[track_caller]
fn accepts(validator: &Validator, text: &str) {
    let errors: Vec<String> = validator
        .iter_errors(&toml(text))
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}\n{text}");
}

#[test]
fn it_is_a_schema() {
    jsonschema::draft202012::meta::validate(&schema()).unwrap();
}

#[test]
fn the_example_is_valid_with_each_key_put_in() {
    let validator = validator();
    accepts(&validator, EXAMPLE);
    let mut judged = 0;
    for (paragraph, uncommented) in commented_out() {
        let text = EXAMPLE.replacen(&paragraph, &uncommented, 1);
        if differing(EXAMPLE, &text).contains(LATER) {
            assert!(!validator.is_valid(&toml(&text)), "{uncommented}");
        } else {
            accepts(&validator, &text);
            judged += 1;
        }
    }
    assert!(judged > 30, "{judged}");
}

/// Each table and key of the schema, with tables named as the reader names them.
fn properties(schema: &Value, table: &str, found: &mut BTreeSet<(String, String)>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (key, property) in properties {
        found.insert((table.to_owned(), key.clone()));
        let below = if table.is_empty() {
            key.clone()
        } else {
            format!("{table}.{key}")
        };
        properties_below(property, &below, key, found);
    }
}

fn properties_below(property: &Value, below: &str, key: &str, found: &mut BTreeSet<(String, String)>) {
    match key {
        // Tables without a header of their own.
        "match" => properties(property, "match", found),
        "override" => properties(&property["items"], "override", found),
        _ => {
            properties(property, below, found);
            properties(&property["items"], below, found);
            properties(&property["additionalProperties"], &format!("{below}.*"), found);
        }
    }
}

#[test]
fn every_key_of_the_reader_is_in_it_and_no_other() {
    let mut in_schema = BTreeSet::new();
    properties(&schema(), "", &mut in_schema);
    let asked: BTreeSet<(String, String)> = known()
        .into_iter()
        .map(|known| (known.table, known.key.to_owned()))
        .collect();
    assert_eq!(in_schema, asked);
    assert!(asked.len() > 60, "{}", asked.len());
    // What the reader is asked for by the example is what it was asked for by the probe.
    for (table, key) in [
        ("rule", "override"),
        ("match", "not_path"),
        ("upstream.*.timeouts", "connect"),
    ] {
        assert!(
            asked.contains(&(table.to_owned(), key.to_owned())),
            "{table} {key}"
        );
    }
}

#[test]
fn every_key_has_a_type_and_says_what_it_is_for() {
    fn look(schema: &Value, place: &str) {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let place = format!("{place}/{key}");
            assert!(property.is_object(), "{place} may be anything");
            let about = property["description"].as_str();
            assert!(about.is_some_and(|about| about.len() > 3), "{place} says nothing");
            assert!(!about.unwrap().contains(LATER), "{place}");
            let typed = ["type", "enum", "anyOf"]
                .iter()
                .any(|word| property.get(word).is_some());
            assert!(typed, "{place} has no type: {property}");
            look(property, &place);
            look(&property["items"], &place);
            look(&property["additionalProperties"], &place);
        }
    }
    look(&schema(), "");
}

#[test]
fn defaults_are_those_of_the_reader() {
    let schema = schema();
    let mut tried = 0;
    let tables = [
        "server",
        "server.timeouts",
        "server.limits",
        "admin",
        "log",
        "store",
        "identity",
        "headers",
    ];
    for table in tables {
        let path: Vec<String> = table
            .split('.')
            .map(|name| format!("/properties/{name}"))
            .collect();
        let keys = schema.pointer(&format!("{}/properties", path.concat())).unwrap();
        for (key, property) in keys.as_object().unwrap() {
            let Some(default) = property.get("default") else {
                continue;
            };
            let for_redis = ["prefix", "database", "partitions", "deadline", "eviction"];
            let redis = match for_redis.contains(&key.as_str()) {
                true => "kind = \"redis\"\nshards = [\"h\"]\n",
                false => "",
            };
            let shown = |lines: &str| {
                let snippet = format!("[{table}]\n{redis}{lines}\n");
                format!("{:?}", parse_snippet(&snippet).unwrap().settings)
            };
            let settings = shown(&format!("{key} = {default}"));
            assert_eq!(settings, shown(""), "{key}");
            tried += 1;
        }
    }
    assert!(tried > 15, "{tried}");
    let rule = |line: &str| {
        let text = format!("[[rule]]\nname = \"r\"\nkey = []\nlimit = 5\nwindow = \"1s\"\n{line}\n{REST}");
        format!("{:?}", parse_text(&text).unwrap().settings.rules)
    };
    for (key, property) in schema["properties"]["rule"]["items"]["properties"]
        .as_object()
        .unwrap()
    {
        if let Some(default) = property.get("default") {
            assert_eq!(rule(&format!("{key} = {default}")), rule(""), "{key}");
        }
    }
}

/// Lines of a rule, or a whole config where they begin with a header.
const WRONG: [&str; 37] = [
    "limt = 5",
    "limit = 0",
    "limit = 4398046511104",
    "limit = \"5\"",
    "limit = 1.5",
    "window = 60",
    "window = \"0s\"",
    "window = \"1 m\"",
    "window = \"1w\"",
    "algorithm = \"leaky\"",
    "algorithm = \"concurrency\"",
    "algorithm = \"token-bucket\"\nqueue = \"1s\"",
    "algorithm = \"sliding-log\"\nlimit = 10001",
    "burst = 5",
    "algorithm = \"gcra\"\nprecision = 2",
    "precision = 61",
    "key = [\"usr\"]",
    "key = [\"header\"]",
    "missing = \"shared\"",
    "refund = [\"upstream-eror\"]",
    "refund = [600]",
    "name = \"per user\"",
    "match = { path = \"v1\" }",
    "match = { methods = [\"G T\"] }",
    "match = { pth = \"/v1\" }",
    "override = [{ key = \"a\", limit = \"barred\" }]",
    "override = [{ limit = 5 }]",
    "cost = -1",
    "dry_run = \"yes\"",
    "lease = { size = 20 }",
    "[server]\nworkers = 0",
    "[server]\nlisten = []",
    "[server.limits]\nheader_bytes = \"64KB\"",
    "[log]\nlevel = \"loud\"",
    "[store]\nkind = \"file\"",
    "[store]\nkind = \"redis\"\ndeadline = \"20ms\"",
    "[store]\nkind = \"redis\"\nshards = [\"h\"]\ncluster = [\"h\"]",
];

#[test]
fn what_is_wrong_is_refused_by_both() {
    let validator = validator();
    let rule = "name = \"r\"\nkey = [\"ip\"]\nlimit = 5\nwindow = \"1s\"\n";
    let upstream = "[upstream.api]\ntargets = [\"http://127.0.0.1:3000\"]\n";
    accepts(&validator, &format!("{upstream}[[rule]]\n{rule}"));
    for wrong in WRONG {
        let text = if wrong.starts_with('[') {
            format!("{wrong}\n{upstream}")
        } else {
            let keys: Vec<&str> = wrong.lines().filter_map(|line| line.split(" =").next()).collect();
            let others: String = rule
                .lines()
                .filter(|line| !keys.iter().any(|key| line.starts_with(&format!("{key} ="))))
                .map(|line| format!("{line}\n"))
                .collect();
            format!("{upstream}[[rule]]\n{others}{wrong}\n")
        };
        assert!(parse_text(&text).is_err(), "the reader takes {text}");
        assert!(!validator.is_valid(&toml(&text)), "the schema takes {text}");
    }
    for store in [
        "",
        "kind = \"memory\"",
        "kind = \"redis\"\nshards = [\"h\"]",
        "kind = \"redis\"\ncluster = [\"h\"]",
        "kind = \"redis\"\nsentinel = { master = \"m\", nodes = [\"h\"] }",
    ] {
        let text = format!("[store]\n{store}\n{upstream}");
        parse_text(&text).unwrap();
        accepts(&validator, &text);
    }
    for text in [
        "",
        "[upstream.api]\n",
        "[[route]]\nupstream = \"api\"\n",
        "[[rule]]\nname = \"r\"\n",
    ] {
        assert!(
            parse_text(text).is_err() && !validator.is_valid(&toml(text)),
            "{text}"
        );
    }
}
