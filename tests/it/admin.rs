//! The admin listener and the log: what the gateway says about itself.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ask, Client, Config, Gateway, Upstream, rule, unused_port};

#[test]
fn health_and_readiness_are_answered() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    assert_eq!(gateway.admin(&Ask::get("/healthz")).status, 200);
    let ready = gateway.admin(&Ask::get("/readyz"));
    assert_eq!(ready.status, 200);
    assert!(ready.must("content-type").starts_with("application/json"));
    let detail: Value = serde_json::from_slice(&ready.body).unwrap();
    assert!(detail.is_object(), "{detail}");
    assert_eq!(gateway.admin(&Ask::get("/nowhere")).status, 404);
    let wrong = gateway.admin(&Ask::post("/healthz", "x")).status;
    assert!(matches!(wrong, 404 | 405), "{wrong}");
}

#[test]
fn decisions_and_refunds_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "tight",
                "fixed-window",
                3,
                "1h",
                "refund = [\"404\"]\nmatch = { path = \"/tight/{*rest}\" }",
            ))
            .and(&rule(
                "status",
                "fixed-window",
                100,
                "1h",
                "refund = [\"404\"]\nmatch = { path = \"/status/404\" }",
            )),
    );
    let mut client = gateway.client();
    for _ in 0..5 {
        client.get("/tight");
    }
    client.get("/status/404");
    let decisions = |rule: &str, verdict: &str| {
        format!("tollgate_decisions_total{{rule=\"{rule}\",verdict=\"{verdict}\"}}")
    };
    gateway.await_metric(&decisions("tight", "admit"), 3.0);
    let refused = gateway.metric(&decisions("tight", "reject")) + gateway.metric(&decisions("tight", "shed"));
    assert!(
        (refused - 2.0).abs() < 0.1,
        "{refused} rejections, shed ones with them"
    );
    gateway.await_metric(
        "tollgate_refunds_total{outcome=\"answered\",rule=\"status\"}",
        1.0,
    );
}

#[test]
fn metrics_are_well_formed_and_named() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&Config::new(&upstream).and(&rule("r", "gcra", 1, "1h", "key = [\"header:x-user\"]")));
    let mut client = gateway.client();
    for user in ["zoe-1", "zoe-2", "zoe-1"] {
        client.ask(&Ask::get("/some/path").field("X-User", user));
    }
    gateway.await_metric("tollgate_decisions_total{rule=\"r\",verdict=\"admit\"}", 2.0);
    let answer = gateway.admin(&Ask::get("/metrics"));
    assert!(answer.must("content-type").starts_with("text/plain"));
    let text = answer.text();
    for name in [
        "tollgate_decisions_total",
        "tollgate_request_seconds",
        "tollgate_upstream_seconds",
        "tollgate_requests_in_flight",
        "tollgate_store_keys",
        "tollgate_build_info",
    ] {
        assert!(
            text.contains(&format!("# TYPE {name} ")),
            "{name} has no type:\n{text}"
        );
        assert!(
            text.contains(&format!("# HELP {name} ")),
            "{name} has no help:\n{text}"
        );
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(
            series.starts_with("tollgate_") || series.starts_with("process_"),
            "{line}"
        );
    }
    assert!(!text.contains("zoe"), "a caller's key is in the metrics");
    assert!(!text.contains("/some/path"), "a client's path is in the metrics");
}

#[test]
fn admin_paths_are_not_on_the_public_side() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    for path in ["/metrics", "/healthz", "/readyz", "/api/hot"] {
        assert_eq!(
            gateway.get(path).text(),
            format!("GET {path}\n"),
            "it belongs to the upstream"
        );
    }
}

#[test]
fn an_admin_listener_that_others_can_reach_asks_for_a_token() {
    let upstream = Upstream::start();
    let port = unused_port().port();
    let admin = format!("listen = \"0.0.0.0:{port}\"\ntoken = \"env:IT_ADMIN\"");
    let gateway = Gateway::start_text(
        &Config::new(&upstream).admin(&admin).text(),
        &[("IT_ADMIN", "open-sesame")],
    );
    gateway.await_log("admin listening");
    let ask = |path: &str, token: Option<&str>| {
        let mut ask = Ask::get(path);
        if let Some(token) = token {
            ask = ask.field("Authorization", format!("Bearer {token}"));
        }
        Client::connect(([127, 0, 0, 1], port).into()).ask(&ask).status
    };
    for token in [
        None,
        Some("wrong"),
        Some(""),
        Some("open-sesame-2"),
        Some("open-sesam"),
    ] {
        assert_eq!(ask("/metrics", token), 401, "{token:?}");
    }
    assert_eq!(ask("/metrics", Some("open-sesame")), 200);
    assert!(!gateway.log().contains("open-sesame"), "{}", gateway.log());
}

#[test]
fn the_log_is_lines_of_json_where_that_is_asked_for() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .log("level = \"debug\"\nformat = \"json\"")
            .and(&rule("r", "fixed-window", 1, "1h", "")),
    );
    gateway.get("/");
    gateway.get("/");
    gateway.await_metric("tollgate_decisions_total{rule=\"r\",verdict=\"admit\"}", 1.0);
    let log = gateway.log();
    let mut levels = Vec::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        levels.push(line["level"].as_str().expect("a level").to_owned());
    }
    assert!(
        levels
            .iter()
            .all(|level| level.chars().all(|c| c.is_ascii_uppercase())),
        "{levels:?}"
    );
    assert!(log.contains("\"listening\""), "{log}");
}

#[test]
fn a_rule_that_rejects_is_logged_once_a_second_and_not_per_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("loud", "fixed-window", 1, "1h", "")));
    let mut client = gateway.client();
    for _ in 0..300 {
        client.get("/");
    }
    gateway.await_log("loud");
    let lines = gateway.log().lines().filter(|line| line.contains("loud")).count();
    assert!(lines <= 4, "{lines} lines for 299 rejections:\n{}", gateway.log());
    assert!(!gateway.log().contains('\u{1b}'), "colours in a pipe");
}

#[test]
fn what_a_client_writes_cannot_forge_a_log_line() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).log("level = \"debug\""));
    let ask = Ask::get("/x?%0a%1b[31mINFO=forged").field("User-Agent", b"\x9b31m\xff");
    assert_eq!(gateway.ask(&ask).status, 200);
    assert_eq!(gateway.get("/after").status, 200);
    let log = gateway.log();
    assert!(!log.contains('\u{1b}') && !log.contains('\u{9b}'), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("INFO=forged")), "{log}");
}

#[test]
fn silent_connections_do_not_keep_operators_out_for_long() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    let start = Instant::now();
    let silent: Vec<Client> = (0..80).map(|_| gateway.admin_client()).collect();
    let mut client = gateway.admin_client();
    client.send(Ask::get("/healthz").bytes());
    // The first 64 are let go together, then the others come in.
    assert_eq!(client.answer().status, 200);
    let took = start.elapsed();
    assert!(took > Duration::from_secs(8), "{took:?}: they kept nobody out");
    drop(silent);
}
