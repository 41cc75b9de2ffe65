//! Callers that an override blocks.

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, assert_no_limits, rule};

const BLOCKS: &str = "key = [\"header:x-user\"]\noverride = [{ key = \"mallory\", limit = \"blocked\" }]";

fn by(user: &str) -> Ask {
    Ask::get("/").field("X-User", user)
}

#[test]
fn a_blocked_caller_is_refused_before_anything_is_charged() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("all", "fixed-window", 10, "1d", ""))
            .and(&rule("users", "fixed-window", 5, "1d", BLOCKS))
            .and(&rule("later", "sliding-log", 10, "1d", "")),
    );
    for _ in 0..3 {
        let refused = gateway.ask(&by("mallory"));
        assert_eq!(refused.status, 403);
        let problem = refused.problem();
        assert_eq!(
            (&problem["type"], &problem["title"]),
            (&"about:blank".into(), &"Forbidden".into())
        );
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty())
        );
        assert_eq!(refused.field("retry-after"), None);
        assert_no_limits(&refused);
    }
    assert_eq!(H2::connect(gateway.addr()).ask(&by("mallory")).status, 403);
    assert_eq!(upstream.count(), 0);
    let limits = Limits::of(&gateway.ask(&by("ann")));
    assert_eq!((limits.r("all"), limits.r("users"), limits.r("later")), (9, 4, 9));
    for (series, value) in [
        ("rule=\"users\",verdict=\"blocked\"", 4.0),
        ("rule=\"users\",verdict=\"reject\"", 0.0),
        ("rule=\"all\",verdict=\"admit\"", 1.0),
        ("rule=\"all\",verdict=\"reject\"", 0.0),
    ] {
        gateway.await_metric(&format!("tollgate_decisions_total{{{series}}}"), value);
    }
    let line = gateway.await_log("blocked=");
    assert!(
        line.contains("users") && !gateway.log().contains("mallory"),
        "{line}"
    );
}

#[test]
fn a_dry_run_blocks_nobody() {
    let upstream = Upstream::start();
    let dry = format!("{BLOCKS}\ndry_run = true");
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("all", "fixed-window", 10, "1d", ""))
            .and(&rule("users", "fixed-window", 5, "1d", &dry)),
    );
    let answer = gateway.ask(&by("mallory"));
    assert_eq!(answer.status, 200);
    assert_eq!(Limits::of(&answer).r("all"), 9);
    gateway.await_metric(
        "tollgate_decisions_total{rule=\"users\",verdict=\"dry_reject\"}",
        1.0,
    );
}

#[test]
fn a_reload_blocks_and_unblocks() {
    let upstream = Upstream::start();
    let config = |lines: &str| Config::new(&upstream).and(&rule("users", "fixed-window", 5, "1d", lines));
    let open = config("key = [\"header:x-user\"]");
    let gateway = Gateway::start(&open);
    assert_eq!(gateway.ask(&by("mallory")).status, 200);
    gateway.reload(&config(BLOCKS));
    assert_eq!(gateway.ask(&by("mallory")).status, 403);
    gateway.reload(&open);
    assert_eq!(Limits::of(&gateway.ask(&by("mallory"))).remaining, 3);
}

#[test]
fn networks_are_blocked_and_an_earlier_override_lets_through() {
    let upstream = Upstream::start();
    let lines = "key = [\"ip\"]\noverride = [{ key = \"10.0.0.1\", limit = \"unlimited\" }, \
        { key = \"10.0.0.0/8\", limit = \"blocked\" }]";
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .server("workers = 1\ntrusted_proxies = [\"127.0.0.1/32\"]")
            .and(&rule("r", "fixed-window", 2, "1d", lines)),
    );
    for (address, status) in [("10.0.0.1", 200), ("10.0.0.2", 403), ("192.0.2.1", 200)] {
        let ask = Ask::get("/").field("X-Forwarded-For", address);
        assert_eq!(gateway.ask(&ask).status, status, "{address}");
    }
}
