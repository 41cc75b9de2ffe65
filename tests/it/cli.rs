//! The command line, and what it says against a config that cannot run.

use crate::support::{Config, Gateway, Upstream, check, tollgate};

const GOOD: &str = r#"[server]
listen = ["127.0.0.1:8080"]
trusted_proxies = ["10.0.0.0/8"]
[admin]
listen = "127.0.0.1:9901"
[identity]
user = ["header:x-api-key"]
[upstream.api]
targets = ["http://127.0.0.1:3000"]
[[route]]
path = "/v1/{*rest}"
upstream = "api"
[[rule]]
name = "per-user"
match = { path = "/v1/users/{id}", methods = ["GET"] }
key = ["user", "path:id"]
algorithm = "sliding-window"
limit = 100
window = "1m"
refund = ["upstream-error"]
"#;

#[test]
fn a_good_config_passes() {
    let (code, text) = check(GOOD);
    assert_eq!(code, 0, "{text}");
}

/// Replaces a part of the good config; the check must name the line of `at` and say all of `words`.
#[track_caller]
fn fault(from: &str, to: &str, at: &str, words: &[&str]) {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    let line = 1 + text[..text.find(at).unwrap()].matches('\n').count();
    let (code, said) = check(&text);
    assert_eq!(code, 1, "{to}: {said}");
    let place = format!("gateway.toml:{line}:");
    assert!(said.contains("--> "), "{to}: no place: {said}");
    let column = said.split(&place).nth(1).and_then(|rest| rest.chars().next());
    assert!(
        column.is_some_and(|c| c.is_ascii_digit()),
        "{to}: not at {place}COLUMN: {said}"
    );
    for word in words {
        assert!(said.contains(word), "{to}: {word:?} is not in: {said}");
    }
}

#[test]
fn unknown_keys_and_words_are_named_with_the_nearest_known_one() {
    fault("limit = 100", "limt = 100", "limt", &["limt", "limit"]);
    fault(
        "trusted_proxies =",
        "trusted_proxy =",
        "trusted_proxy",
        &["trusted_proxies"],
    );
    fault("[identity]", "[identty]", "[identty]", &["identity"]);
    fault(
        "\"sliding-window\"",
        "\"sliding-windw\"",
        "sliding-windw",
        &["sliding-window"],
    );
    fault(
        "[\"upstream-error\"]",
        "[\"upstream-eror\"]",
        "upstream-eror",
        &["upstream-error"],
    );
    fault("upstream = \"api\"", "upstream = \"apo\"", "apo", &["api"]);
    fault(
        "\"user\", \"path:id\"",
        "\"usr\", \"path:id\"",
        "\"usr\"",
        &["user"],
    );
    fault(
        "limit = 100",
        "limit = 100\nmissing = \"shared\"",
        "\"shared\"",
        &["share"],
    );
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for (from, to, at) in [
        ("limit = 100", "limit = 0", "limit = 0"),
        ("limit = 100", "limit = -5", "limit = -5"),
        ("limit = 100", "limit = 1.5", "limit = 1.5"),
        ("limit = 100", "limit = \"100\"", "limit = \"100\""),
        ("limit = 100", "limit = 4398046511104", "limit = 43"),
        ("window = \"1m\"", "window = \"0s\"", "window ="),
        ("window = \"1m\"", "window = \"60d\"", "window ="),
        ("window = \"1m\"", "window = \"1 parsec\"", "window ="),
        ("window = \"1m\"", "window = 60", "window ="),
        ("limit = 100", "limit = 100\nprecision = 61", "precision"),
        ("limit = 100", "limit = 100\ncost = 101", "cost = 101"),
        ("\"10.0.0.0/8\"", "\"10.0.0.0/33\"", "10.0.0.0/33"),
        ("127.0.0.1:8080", "127.0.0.1", "listen"),
        ("http://127.0.0.1:3000", "127.0.0.1;3000", "targets"),
        ("\"/v1/{*rest}\"", "\"v1/{*rest}\"", "v1/{*rest}"),
        ("/v1/users/{id}\"", "/v1/users/{id\"", "/v1/users/{id"),
        ("\"per-user\"", "\"per user\"", "per user"),
        ("[\"GET\"]", "[\"G T\"]", "G T"),
        ("\"path:id\"", "\"path:other\"", "path:other"),
        ("127.0.0.1:9901", "0.0.0.0:9901", "[admin]"),
        (
            "127.0.0.1:9901\"",
            "127.0.0.1:9901\"\ntoken = \"file:/nowhere/at/all\"",
            "token",
        ),
        ("[\"upstream-error\"]", "[\"600\"]", "600"),
    ] {
        fault(from, to, at, &[]);
    }
}

#[test]
fn keys_that_the_algorithm_does_not_use_are_refused() {
    for (algorithm, key) in [
        ("fixed-window", "precision = 2"),
        ("sliding-log", "burst = 5"),
        ("token-bucket", "queue = \"1s\""),
        ("gcra", "blend = false"),
        ("concurrency", "window = \"1m\""),
        ("concurrency", "refund = [\"5xx\"]"),
    ] {
        let algorithm = format!("\"{algorithm}\"\n{key}");
        fault("\"sliding-window\"", &algorithm, key, &[]);
    }
}

#[test]
fn what_a_rule_can_never_do_is_explained() {
    fault("\"sliding-window\"", "\"gcra\"\ncost = 2", "cost = 2", &["burst"]);
    fault(
        "\"sliding-window\"\nlimit = 100",
        "\"sliding-log\"\nlimit = 10001",
        "limit = 10001",
        &["sliding-window"],
    );
}

#[test]
fn a_key_part_without_its_source_is_refused() {
    fault(
        "[identity]\nuser = [\"header:x-api-key\"]\n",
        "",
        "\"user\"",
        &["identity"],
    );
}

#[test]
fn what_does_not_exist_yet_is_said_to() {
    for (from, to, at) in [
        (
            "limit = 100",
            "limit = 100\nlease = { size = 20, hold = \"1s\" }",
            "lease",
        ),
        (
            "[identity]",
            "[headers]\nsend = [\"draft-7\"]\n[identity]",
            "draft-7",
        ),
    ] {
        fault(from, to, at, &["not supported yet"]);
    }
}

#[test]
fn names_are_unique_and_faults_come_all_at_once() {
    let twice = format!(
        "{GOOD}[[rule]]\nname = \"per-user\"\nkey = []\nalgorithm = \"gcra\"\nlimit = 1\nwindow = \"1s\"\n"
    );
    let (code, said) = check(&twice);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("gateway.toml:22:"), "{said}");
    let many = GOOD
        .replace("limit = 100", "limit = 0")
        .replace("\"1m\"", "\"1x\"")
        .replace("upstream = \"api\"", "upstream = \"nobody\"")
        .replace("10.0.0.0/8", "10.0.0.0/80");
    let (code, said) = check(&many);
    assert_eq!(code, 1);
    for line in [3, 12, 18, 19] {
        assert!(
            said.contains(&format!("gateway.toml:{line}:")),
            "line {line}: {said}"
        );
    }
}

#[test]
fn broken_toml_is_placed() {
    let (code, said) = check("[server\nlisten = 1\n");
    assert_eq!(code, 1);
    assert!(said.contains("gateway.toml:1:"), "{said}");
    let (code, said) = check("");
    assert_eq!(code, 1, "no upstream: {said}");
    assert!(said.contains("upstream"), "{said}");
}

#[test]
fn a_config_that_is_no_text_is_refused_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.toml");
    for bytes in [
        &b"\xff\xfe\x00"[..],
        b"[server]\nworkers = \"\xff\"\n",
        &[b'['; 100_000],
    ] {
        std::fs::write(&path, bytes).unwrap();
        let output = tollgate(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
    let output = tollgate(&["check", "--config", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "a folder is no config");
}

#[test]
fn exit_codes_tell_usage_from_config() {
    for (args, code) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["run", "--help"], 0),
        (&["check", "--help"], 0),
        (&["demo", "--help"], 0),
        (&["explain", "--help"], 0),
        (&["schema"], 0),
        (&["schema", "--nonsense"], 2),
        (&["nonsense"], 2),
        (&["check", "--nonsense"], 2),
        (&[], 2),
        (&["check", "--config", "/nowhere/at/all.toml"], 1),
        (&["run", "--config", "/nowhere/at/all.toml"], 1),
    ] {
        let output = tollgate(args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            !String::from_utf8_lossy(&output.stderr).contains("panicked"),
            "{args:?}"
        );
    }
}

#[test]
fn a_bad_config_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    std::fs::write(&path, GOOD.replace("limit = 100", "limit = 0")).unwrap();
    let output = tollgate(&["run", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("bad.toml:18:"), "{said}");
}

#[test]
fn a_port_in_use_is_a_start_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("taken.toml");
    let taken = Config::new(&upstream)
        .text()
        .replacen("127.0.0.1:0", &gateway.addr().to_string(), 1);
    std::fs::write(&path, taken).unwrap();
    let output = tollgate(&["run", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&gateway.addr().to_string()), "{said}");
}

#[test]
fn the_schema_is_printed_as_json() {
    let output = tollgate(&["schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let limit = &schema["properties"]["rule"]["items"]["properties"]["limit"];
    assert_eq!(limit["type"], "integer");
    assert!(output.stderr.is_empty());
}
