//! Clients that stop sending, and clients that are gone.

use std::time::{Duration, Instant};

use crate::support::{Ask, Config, Gateway, Limits, Upstream, rule, standard, wait_until};

/// What one client is charged is given back if it leaves.
fn refunding(upstream: &Upstream) -> Gateway {
    let lines = "refund = [\"client-abort\"]";
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 100, "1d", lines)))
}

/// An upstream that says nothing under /silent, and under /drip a byte every 300 milliseconds, 8 in all; after half of
/// it, nothing more under /stop.
fn slow() -> Upstream {
    Upstream::script(|exchange| match exchange.request.target.as_str() {
        "/silent" => {
            exchange.closed_within(Duration::from_secs(15));
        }
        "/drip" => {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(300));
                exchange.write("x");
            }
        }
        "/stop" => {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            exchange.closed_within(Duration::from_secs(15));
        }
        _ => standard(exchange),
    })
}

#[test]
fn a_client_that_has_said_all_gets_an_answer_that_comes_soon() {
    let upstream = Upstream::start();
    let gateway = refunding(&upstream);
    for ask in [
        Ask::get("/after/600"),
        Ask::post("/after/600", "body"),
        Ask::post("/after/600", "body").chunked(),
    ] {
        let mut client = gateway.client();
        client.send(ask.bytes());
        client.finish();
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "late\n"));
        assert!(client.closes_within(Duration::from_secs(1)), "{ask:?}: kept open");
    }
    assert_eq!(Limits::of(&gateway.get("/")).remaining, 96);
}

#[test]
fn several_requests_before_the_end_are_all_answered() {
    let upstream = Upstream::start();
    let gateway = refunding(&upstream);
    let mut client = gateway.client();
    let bytes = [
        Ask::get("/after/300").bytes(),
        Ask::post("/two", "body").bytes(),
        Ask::get("/after/600").bytes(),
    ];
    client.send(bytes.concat());
    client.finish();
    assert_eq!(client.answer().text(), "late\n");
    assert_eq!(client.answer().text(), "POST /two\n");
    assert_eq!(client.answer().text(), "late\n");
    assert!(client.closes_within(Duration::from_secs(1)));
}

#[test]
fn an_answer_that_makes_progress_is_not_cut() {
    let upstream = slow();
    let gateway = refunding(&upstream);
    let mut client = gateway.client();
    client.send(Ask::get("/drip").bytes());
    client.finish();
    assert_eq!(client.answer().text(), "xxxxxxxx");
    assert!(client.closes_within(Duration::from_secs(1)));
}

#[test]
fn a_client_that_has_closed_is_gone_after_a_second_without_progress() {
    let upstream = slow();
    let gateway = refunding(&upstream);
    for target in ["/silent", "/stop"] {
        let mut client = gateway.client();
        let before = upstream.count();
        client.send(Ask::get(target).bytes());
        upstream.await_count(before + 1);
        if target == "/stop" {
            assert_eq!(client.head().status, 200);
            client.exactly(4).unwrap();
        }
        let start = Instant::now();
        client.finish();
        assert!(client.closes_within(Duration::from_secs(5)));
        let took = start.elapsed();
        assert!(
            took > Duration::from_millis(900) && took < Duration::from_millis(2_000),
            "{target}: {took:?}"
        );
        wait_until("the upstream is let go", Duration::from_millis(500), || {
            upstream.open_connections() == 0
        });
    }
    gateway.await_metric("tollgate_requests_in_flight", 0.0);
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        99,
        "both were given back"
    );
}

#[test]
fn a_vanished_client_costs_a_second_and_a_reset_nothing() {
    let upstream = slow();
    let gateway = refunding(&upstream);
    for (reset, most) in [(false, 2_000), (true, 500)] {
        let mut client = gateway.client();
        let before = upstream.count();
        client.send(Ask::get("/silent").bytes());
        upstream.await_count(before + 1);
        let start = Instant::now();
        if reset {
            client.reset();
        } else {
            drop(client);
        }
        wait_until("the upstream is let go", Duration::from_secs(5), || {
            upstream.open_connections() == 0
        });
        let took = start.elapsed();
        assert!(took < Duration::from_millis(most), "reset {reset}: {took:?}");
    }
    gateway.await_metric("tollgate_requests_in_flight", 0.0);
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        99,
        "both were given back"
    );
}

#[test]
fn a_body_that_ends_too_soon_is_the_clients_fault() {
    let upstream = Upstream::start();
    let gateway = refunding(&upstream);
    for half in [
        "Content-Length: 10\r\n\r\nhalf",
        "Transfer-Encoding: chunked\r\n\r\na\r\nhalf",
    ] {
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{half}"));
        client.finish();
        assert_eq!(client.answer().status, 400, "{half:?}");
        assert!(client.closes_within(Duration::from_secs(2)));
    }
    assert!(upstream.seen().iter().all(|seen| !seen.complete));
}

#[test]
fn an_idle_connection_that_ends_is_closed_at_once() {
    let upstream = Upstream::start();
    let gateway = refunding(&upstream);
    for used in [false, true] {
        let mut client = gateway.client();
        if used {
            assert_eq!(client.get("/").status, 200);
        }
        let start = Instant::now();
        client.finish();
        assert!(client.closes_within(Duration::from_secs(5)));
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "{:?}",
            start.elapsed()
        );
    }
}

/// What a client has sent ahead lies before the end that it sends, or is thrown away by its reset.
#[test]
fn a_client_that_sent_ahead_and_vanished_is_noticed() {
    let upstream = slow();
    let gateway = refunding(&upstream);
    for target in ["/silent", "/stop"] {
        for reset in [false, true] {
            // More than is read ahead, and less than the kernel takes.
            for ahead in [1, 1_000] {
                let mut client = gateway.client();
                let before = upstream.count();
                client.send([Ask::get(target).bytes(), Ask::get("/ahead").bytes().repeat(ahead)].concat());
                upstream.await_count(before + 1);
                if target == "/stop" {
                    assert_eq!(client.head().status, 200);
                    client.exactly(4).unwrap();
                }
                let start = Instant::now();
                if reset {
                    client.reset();
                } else {
                    client.finish();
                }
                wait_until("the upstream is let go", Duration::from_secs(10), || {
                    upstream.open_connections() == 0
                });
                let took = start.elapsed();
                assert!(
                    took < Duration::from_millis(3_000),
                    "{target}, reset {reset}, {ahead} ahead: {took:?}"
                );
            }
        }
    }
    gateway.await_metric("tollgate_requests_in_flight", 0.0);
    assert_eq!(upstream.count_of("/ahead"), 0);
}

#[test]
fn a_client_that_sent_ahead_and_waits_is_kept() {
    let upstream = slow();
    let gateway = refunding(&upstream);
    let mut client = gateway.client();
    client.send([Ask::get("/after/3500").bytes(), Ask::get("/ahead").bytes()].concat());
    assert_eq!(client.answer().text(), "late\n");
    assert_eq!(client.answer().text(), "GET /ahead\n");
}
