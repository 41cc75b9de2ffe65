//! Upstreams that cannot be reached: what requests cost meanwhile, and what operators are told.

use std::time::Duration;

use crate::support::{Ask, Config, Gateway, Limits, Upstream, rule, unused_port, wait_until};

/// What one client is charged is never given back by its outcome.
fn paying(upstream: &str) -> Gateway {
    let api = format!("[upstream.api]\n{upstream}");
    let config = Config::to(unused_port()).upstream(&api);
    Gateway::start(&config.and(&rule("r", "fixed-window", 100, "1d", "refund = []")))
}

#[test]
fn a_client_that_leaves_before_its_request_is_sent_pays_nothing() {
    let upstream = Upstream::start();
    let gateway = paying(&format!(
        "targets = [\"http://{}\"]\nconnections = 1",
        upstream.addr()
    ));
    let mut first = gateway.client();
    first.send(Ask::get("/hang").bytes());
    upstream.await_count(1);
    for _ in 0..3 {
        let mut second = gateway.client();
        second.send(Ask::get("/").bytes());
        gateway.await_metric("tollgate_requests_in_flight", 2.0);
        second.reset();
        gateway.await_metric("tollgate_requests_in_flight", 1.0);
    }
    first.reset();
    gateway.await_metric("tollgate_requests_in_flight", 0.0);
    assert_eq!(upstream.count(), 1);
    let limits = Limits::of(&gateway.get("/"));
    assert_eq!(limits.remaining, 98, "the first and the last are charged");
}

#[test]
fn what_no_target_took_is_an_upstream_error_and_told_once_a_second() {
    let dead = unused_port();
    let gateway = paying(&format!("targets = [\"http://{dead}\"]"));
    for _ in 0..9 {
        assert_eq!(gateway.get("/").status, 502);
    }
    let answer = gateway.get("/");
    assert_eq!((answer.status, Limits::of(&answer).remaining), (502, 90));
    let log = gateway.await_log("upstream failing");
    assert!(
        log.contains("upstream=\"api\"") || log.contains("upstream=api"),
        "{log}"
    );
    assert!(
        log.contains("cannot reach the target: Connection refused"),
        "{log}"
    );
    assert!(log.contains(&format!("(http://{dead})")), "{log}");
    wait_until("all failures are told", Duration::from_secs(5), || {
        let log = gateway.log();
        let counts = log.split("failures=").skip(1);
        let told: u64 = counts
            .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .sum();
        told == 10
    });
    assert!(gateway.log().matches("upstream failing").count() <= 3);
}

#[test]
fn an_upstream_that_answers_again_is_told() {
    let upstream = Upstream::start();
    let gateway = paying(&format!("targets = [\"http://{}\"]", upstream.addr()));
    assert_eq!(gateway.get("/close").status, 502);
    let log = gateway.await_log("upstream failing");
    assert!(log.contains("the upstream broke off: "), "{log}");
    assert!(!log.contains("answers again"), "{log}");
    assert_eq!(gateway.get("/").status, 200);
    gateway.await_log("upstream answers again");
}
