//! `tollgate explain`: what it says is what the gateway does.

use std::fmt::Write as _;

use crate::support::{Ask, Gateway, Upstream, tollgate};

const TABLE: &str = r#"
[[rule]]
name = "per-ip"
key = ["ip"]
algorithm = "token-bucket"
limit = 600
window = "1m"
burst = 100

[[rule]]
name = "per-user"
key = ["user"]
missing = "skip"
limit = 100
window = "1m"
cost = 2
override = [{ key = "acme", limit = 1000 }, { key = "root", limit = "unlimited" }, { key = "eve", limit = "blocked" }]

[[rule]]
name = "login"
match = { path = "/v1/login", methods = ["POST"] }
key = ["endpoint", "header:x-none"]
algorithm = "fixed-window"
limit = 10
window = "5m"

[[rule]]
name = "tenant"
match = { path = "/t/{tenant}/{*rest}", not_path = ["/t/free/{*rest}"] }
key = ["path:tenant", "query:q"]
missing = "reject"
algorithm = "gcra"
limit = 60
window = "1m"

[[rule]]
name = "watched"
match = { host = "*.example.com", not_methods = ["OPTIONS"] }
key = []
limit = 5
window = "1s"
scope = "gateway"
dry_run = true
"#;

const HEAD: &str = r#"
[server]
listen = ["127.0.0.1:0"]
trusted_proxies = ["10.0.0.0/8"]
[server.limits]
uri_bytes = 60
header_count = 5
body_bytes = 100
[admin]
listen = ""
[store]
hash_key = "s3cret"
[identity]
user = ["header:x-user"]
[upstream.api]
targets = ["http://TARGET"]
[[route]]
path = "/v1/{*rest}"
upstream = "api"
[[route]]
path = "/t/{*rest}"
upstream = "api"
"#;

fn config(target: &str) -> String {
    format!("{}{TABLE}", HEAD.replace("TARGET", target))
}

/// Exit code, standard output and standard error.
fn explain(text: &str, args: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.toml");
    std::fs::write(&path, text).unwrap();
    let mut all = vec!["explain"];
    all.extend(args);
    all.extend(["--config", path.to_str().unwrap()]);
    let output = tollgate(&all);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[track_caller]
fn said(args: &[&str]) -> String {
    let (code, out, err) = explain(&config("127.0.0.1:9"), args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[test]
fn everything_about_one_request() {
    let out = said(&["GET", "http://api.test/v1/users/7?x=1", "-H", "X-User: acme"]);
    let (hash, out) = {
        let hash = out
            .split("hash")
            .nth(1)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap();
        (hash.to_owned(), out.clone())
    };
    assert_eq!(hash.len(), 32);
    let mut told = String::new();
    for line in out.lines() {
        let line = match line.strip_prefix("  hash    ") {
            Some(_) => "  hash    …",
            None => line,
        };
        writeln!(told, "{line}").unwrap();
    }
    assert_eq!(
        told,
        r#"GET http://api.test/v1/users/7?x=1
client    127.0.0.1 (the peer; it is no trusted proxy)
route     /v1/{*rest} to upstream api

per-ip: charges 1 unit
  key     ip = 127.0.0.1
  hash    …
  limit   600 in 1m, token-bucket, burst 100; scope store

per-user: charges 2 units
  key     header:x-user = acme (of user)
  hash    …
  limit   1000 in 1m, sliding-window; scope store
  override number 1 of the rule

login: not for it: the method is not in methods (POST)

tenant: not for it: the path does not fit path (/t/{tenant}/{*rest})

watched: not for it: the host does not fit host (*.example.com)

answer    the upstream's, if all 2 rules have room; else 429
headers   RateLimit-Policy: "per-ip";q=100;w=10, "per-user";q=1000;w=60
"#
    );
    assert!(!out.contains('\u{1b}'), "colours without a terminal");
    assert_eq!(
        out,
        said(&["GET", "http://api.test/v1/users/7?x=1", "-H", "X-User: acme"]),
        "the hash is that of the secret in the config"
    );
}

/// Arguments, and what is to be said of them.
const CASES: &[(&[&str], &[&str])] = &[
    (
        &["GET", "/v1/x"],
        &["skipped: there is no user (missing = \"skip\")", "user is absent"],
    ),
    (
        &["GET", "/v1/x", "-H", "x-user: root"],
        &["skipped: the caller is unlimited", "override number 2"],
    ),
    (
        &["GET", "/v1/x", "-H", "x-user: eve"],
        &[
            "per-user: refuses: this caller is blocked",
            "answer    403 Forbidden: this caller is blocked",
        ],
    ),
    (
        &["POST", "/v1/%6Cogin/"],
        &["endpoint = POST /v1/login", "header:x-none is absent"],
    ),
    (
        &["GET", "/t/free/x"],
        &["the path fits not_path (/t/free/{*rest})"],
    ),
    (
        &["GET", "/t/a/x"],
        &[
            "tenant: refuses: the request needs the query parameter q",
            "answer    400 Bad Request: the request needs the query parameter q",
            "path:tenant = a",
        ],
    ),
    (
        &["GET", "/t/a/x?q=1&q=2"],
        &["refuses: the request has more than one value for the query parameter q"],
    ),
    (
        &["GET", "http://a.example.com/v1/x"],
        &[
            "watched: charges 1 unit (dry run: never refuses)",
            "none: one bucket for all",
            "scope gateway",
        ],
    ),
    (
        &["OPTIONS", "http://a.example.com/v1/x"],
        &["the method is in not_methods"],
    ),
    (
        &["GET", "/elsewhere"],
        &[
            "route     no route (404)",
            "answer    404 Not Found: there is no route to this",
        ],
    ),
    (
        &[
            "GET",
            "/v1/0123456789012345678901234567890123456789012345678901234567890",
        ],
        &["414 URI Too Long"],
    ),
    (
        &["PUT", "/v1/x", "-H", "content-length: 101"],
        &["413 Payload Too Large"],
    ),
    (
        &[
            "GET", "/v1/x", "-H", "a: 1", "-H", "b: 1", "-H", "c: 1", "-H", "d: 1", "-H", "e: 1",
        ],
        &["431 Request Header Fields Too Large"],
    ),
    (&["CONNECT", "/v1/x"], &["405 Method Not Allowed"]),
    (
        &["GET", "/v1/x", "-H", "host: a b"],
        &["400 Bad Request: the request has an invalid Host"],
    ),
    (
        &["GET", "/v1/x", "-H", "transfer-encoding: gzip"],
        &["501 Not Implemented"],
    ),
    (
        &["GET", "/v1/x", "--ip", "2001:db8::7"],
        &["client    2001:db8::7 (the peer", "ip = 2001:db8::/64"],
    ),
    (
        &["GET", "/v1/x", "--ip", "10.0.0.1"],
        &["client    10.0.0.1 (the peer; a trusted proxy that names no client)"],
    ),
    (
        &[
            "GET",
            "/v1/x",
            "--ip",
            "10.0.0.1",
            "-H",
            "x-forwarded-for: 192.0.2.9, 10.1.1.1",
        ],
        &["client    192.0.2.9 (X-Forwarded-For: from the right, the first that is not trusted)"],
    ),
    (
        &[
            "GET",
            "/v1/x",
            "--ip",
            "10.0.0.1",
            "-H",
            "forwarded: for=10.2.2.2",
        ],
        &["client    10.2.2.2 (Forwarded: the leftmost; all are trusted)"],
    ),
    (
        &[
            "GET",
            "/v1/x",
            "--ip",
            "10.0.0.1",
            "-H",
            "x-forwarded-for: nobody",
        ],
        &["(the peer; an entry of X-Forwarded-For cannot be read)"],
    ),
];

#[test]
fn reasons_and_refusals() {
    for (args, words) in CASES {
        let out = said(args);
        for word in *words {
            assert!(out.contains(word), "{args:?}: no {word:?} in\n{out}");
        }
    }
}

#[test]
fn codes_tell_usage_from_config() {
    let good = config("127.0.0.1:9");
    for (args, problem) in [
        (&["GET"][..], "URL"),
        (&["G T", "/"], "not a method"),
        (&["GET", "ftp://a/"], "http:// or https:// with a host"),
        (&["GET", "v1/x"], "a path that begins with \"/\""),
        (&["GET", "http://u:p@a/"], "no place for a user name"),
        (&["GET", "http://a b/"], "not a URL"),
        (&["GET", "/", "-H", "nothing"], "`Name: value`"),
        (&["GET", "/", "-H", "a b: 1"], "is no field name"),
        (&["GET", "/", "-H", "a: b\nc: d"], "is no field value"),
        (
            &["GET", "/", "-H", "content-length: x"],
            "Content-Length is one number",
        ),
        (&["GET", "/", "--ip", "nowhere"], "nowhere"),
    ] {
        let (code, out, err) = explain(&good, args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(problem), "{args:?}: {err}");
    }
    let (code, out, err) = explain(&good.replace("limit = 600", "limit = 0"), &["GET", "/"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("0 is no limit"), "{err}");
    let output = tollgate(&["explain", "GET", "/", "--config", "/nowhere/at/all.toml"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn without_a_secret_the_hash_is_of_this_run() {
    let text = config("127.0.0.1:9").replace("hash_key = \"s3cret\"", "");
    let (_, out, _) = explain(&text, &["GET", "/v1/x"]);
    assert!(out.contains("of this run alone: no store.hash_key"), "{out}");
}

#[test]
fn the_gateway_does_what_the_explanation_says() {
    let upstream = Upstream::start();
    let text = config(&upstream.addr().to_string());
    let gateway = Gateway::start_text(&text, &[]);
    for (method, target, fields) in [
        ("GET", "/v1/x", &[][..]),
        ("GET", "/v1/x", &[("x-user", "acme")]),
        ("GET", "/v1/x", &[("x-user", "root")]),
        ("GET", "/v1/x", &[("x-user", "eve")]),
        ("POST", "/v1/login", &[("x-user", "ann")]),
        ("GET", "/t/a/x?q=1", &[("host", "a.example.com")]),
        ("GET", "/t/a/x", &[]),
        ("GET", "/t/a/x?q=1&q=2", &[]),
        ("GET", "/elsewhere", &[]),
        (
            "GET",
            "/v1/0123456789012345678901234567890123456789012345678901234567890",
            &[],
        ),
    ] {
        let mut args = vec![method.to_owned(), target.to_owned()];
        let mut ask = Ask::new(method, target);
        for (name, value) in fields {
            args.extend(["-H".to_owned(), format!("{name}: {value}")]);
            ask = if *name == "host" {
                ask.host(value)
            } else {
                ask.field(name, value)
            };
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (_, out, _) = explain(&text, &args);
        let answer = gateway.ask(&ask);
        match out.split("RateLimit-Policy: ").nth(1) {
            Some(policies) => {
                assert_eq!(answer.status, 200, "{args:?}: {out}");
                assert_eq!(
                    answer.field("ratelimit-policy"),
                    Some(policies.trim()),
                    "{args:?}"
                );
            }
            None => assert!(
                out.contains(&format!("answer    {} ", answer.status)),
                "{args:?}: {}\n{out}",
                answer.status
            ),
        }
    }
}
