//! Clients that others wrote, told to wait: each waits once, for as long as it was told.
//!
//! With room for two requests in two seconds, four calls take five requests, one of them refused.

use std::time::Duration;

use crate::support::{Config, Gateway, Upstream, node, python, rule};

const WINDOW: Duration = Duration::from_secs(2);

/// How much longer than the window the calls may take.
const MORE: Duration = Duration::from_millis(1_500);

/// How often a machine may be too busy for a client to make its calls in time.
const ATTEMPTS: usize = 5;

/// Lets a client make its four calls, and checks what came of them; `client` returns how long they took.
#[track_caller]
fn four_calls(upstream: impl Fn() -> Upstream, more: Duration, client: impl Fn(&Gateway) -> String) {
    let mut attempts = Vec::new();
    for _ in 0..ATTEMPTS {
        let upstream = upstream();
        let gateway = Gateway::start(&Config::new(&upstream).and(&rule("two", "fixed-window", 2, "2s", "")));
        let said = client(&gateway);
        let took = said.lines().last().and_then(|line| line.trim().parse().ok());
        let took = took.unwrap_or_else(|| panic!("it did not say how long it took: {said}"));
        gateway.await_metric("tollgate_decisions_total{rule=\"two\",verdict=\"admit\"}", 4.0);
        assert_eq!(upstream.count(), 4);
        let refused = gateway.metric("tollgate_decisions_total{rule=\"two\",verdict=\"reject\"}");
        assert!(
            refused < 1.5,
            "it did not wait as told: {refused} requests were refused"
        );
        if refused > 0.5 && Duration::from_secs_f64(took) <= WINDOW + more {
            return;
        }
        attempts.push(format!("{refused} refused in {took} s"));
    }
    panic!("never one refused within {:?}: {attempts:?}", WINDOW + more);
}

#[test]
fn requests_waits_once() {
    four_calls(Upstream::start, MORE, |gateway| {
        python("requests_retry.py", &[&gateway.url("/items")], b"").printed()
    });
}

#[test]
fn axios_waits_once() {
    four_calls(Upstream::start, MORE, |gateway| {
        node("axios_retry.mjs", &[&gateway.url("/items")]).printed()
    });
}

#[test]
fn got_waits_once() {
    four_calls(Upstream::start, MORE, |gateway| {
        node("got.mjs", &[&gateway.url("/items")]).printed()
    });
}

#[test]
fn octokit_waits_once() {
    // The reset is told in whole seconds, and the plugin rounds what is left up to whole seconds and waits one more.
    let more = MORE + Duration::from_secs(1);
    four_calls(Upstream::start, more, |gateway| {
        node("octokit.mjs", &[&gateway.url("")]).printed()
    });
}

#[test]
fn grpc_waits_once() {
    let upstream = || {
        Upstream::script(|exchange| {
            let message = exchange.body();
            exchange.write(
                "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\
             Trailer: grpc-status\r\n\r\n",
            );
            exchange.write(format!("{:x}\r\n", message.len()));
            exchange.write(message);
            exchange.write("\r\n0\r\ngrpc-status: 0\r\n\r\n");
        })
    };
    four_calls(upstream, MORE, |gateway| {
        python("grpc_retry.py", &[&gateway.addr().to_string()], b"").printed()
    });
}
