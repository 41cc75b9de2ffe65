//! The memory store is bounded, and a full one hands out nothing that is not owed.

use std::time::Duration;

use crate::support::{Ask, Config, Gateway, Limits, Upstream, rule, wait_until};

fn user(name: impl std::fmt::Display) -> Ask {
    Ask::get("/").field("X-User", name.to_string())
}

#[test]
fn in_a_full_store_newcomers_share_and_nobody_starts_afresh() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[store]\nkind = \"memory\"\nmax_keys = 5\n")
            .and(&rule("r", "fixed-window", 4, "1h", "key = [\"header:x-user\"]")),
    );
    let mut client = gateway.client();
    // Room for the shared bucket may be taken from the five.
    let mut early = Vec::new();
    for name in 0..5 {
        early.push(Limits::of(&client.ask(&user(name))).remaining);
    }
    assert!(early[..4].iter().all(|&left| left == 3), "{early:?}");
    let mut admitted = 0;
    for name in 100..140 {
        admitted += usize::from(client.ask(&user(name)).status == 200);
    }
    assert!(
        admitted <= 4,
        "{admitted} newcomers were admitted by a bucket of 4"
    );
    assert!(admitted >= 3, "nobody is refused for being new: {admitted}");
    for name in 0..4 {
        let left = Limits::of(&client.ask(&user(name))).remaining;
        assert_eq!(left, 2, "caller {name} goes on where it was");
    }
    assert!(gateway.metric("tollgate_store_overflow_total{rule=\"r\"}") >= 36.0);
    assert!(gateway.metric("tollgate_store_keys") <= 6.0);
    assert!(gateway.await_log("ERROR").contains("r"));
}

#[test]
fn expired_callers_make_room() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[store]\nkind = \"memory\"\nmax_keys = 20\n")
            .and(&rule(
                "r",
                "fixed-window",
                2,
                "300ms",
                "key = [\"header:x-user\"]",
            )),
    );
    let mut client = gateway.client();
    for round in 0..3 {
        for name in 0..15 {
            let answer = client.ask(&user(format!("{round}-{name}")));
            assert_eq!(Limits::of(&answer).remaining, 1, "round {round}, caller {name}");
        }
        std::thread::sleep(Duration::from_millis(320));
    }
    assert!(gateway.metric("tollgate_store_overflow_total{rule=\"r\"}") < 0.5);
}

#[test]
fn a_stores_size_is_its_bound_and_metrics_do_not_grow_with_callers() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[store]\nkind = \"memory\"\nmax_keys = 100\n")
            .and(&rule("r", "token-bucket", 5, "1h", "key = [\"header:x-user\"]")),
    );
    let mut client = gateway.client();
    let mut series = Vec::new();
    for name in 0..1_500 {
        client.ask(&user(format!("caller-{name}")));
        if name == 300 || name == 1_499 {
            gateway.await_metric("tollgate_requests_in_flight", 0.0);
            series.push(gateway.admin(&Ask::get("/metrics")).text().lines().count());
        }
    }
    assert_eq!(series[0], series[1], "lines of /metrics");
    let text = gateway.admin(&Ask::get("/metrics")).text();
    assert!(!text.contains("caller-"), "{text}");
    assert!(gateway.metric("tollgate_store_keys") <= 101.0);
    let lines = gateway.log().lines().count();
    assert!(lines < 100, "{lines} log lines for 1500 callers");
}

#[test]
fn keys_leave_when_their_time_is_over() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[store]\nkind = \"memory\"\n")
            .and(&rule("r", "sliding-log", 5, "200ms", "key = [\"header:x-user\"]")),
    );
    let mut client = gateway.client();
    for name in 0..200 {
        client.ask(&user(name));
    }
    let most = gateway.metric("tollgate_store_keys");
    assert!(most >= 100.0, "{most}");
    wait_until(
        "the store forgets callers that left",
        Duration::from_secs(8),
        || {
            std::thread::sleep(Duration::from_millis(50));
            gateway.metric("tollgate_store_keys") <= most - 15.0
        },
    );
}

#[test]
fn what_newcomers_share_has_the_limit_of_the_rule_whoever_comes() {
    let upstream = Upstream::start();
    let lines = "key = [\"header:x-user\"]\noverride = [{ key = \"900\", limit = 1000 }]";
    let gateway = Gateway::start(&Config::new(&upstream).and("[store]\nmax_keys = 1\n").and(&rule(
        "r",
        "fixed-window",
        4,
        "1h",
        lines,
    )));
    let mut client = gateway.client();
    assert_eq!(client.ask(&user(1)).status, 200);
    for expected in [3, 2, 1, 0] {
        let answer = client.ask(&user(900));
        assert_eq!((answer.status, Limits::of(&answer).limit), (200, 4));
        assert_eq!(Limits::of(&answer).remaining, expected);
    }
    assert_eq!(client.ask(&user(900)).status, 429);
}
