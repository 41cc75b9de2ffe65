//! `Expect: 100-continue`: who is asked for a body, when, and by whom.

use std::time::{Duration, Instant};

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, rule, standard};

const HEAD: &str = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 100, "1d", "")))
}

#[test]
fn the_upstream_is_told_and_its_100_asks_for_the_body() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.field("expect").is_some() {
            exchange.write("HTTP/1.1 100 Continue\r\n\r\n");
        }
        exchange.body();
        exchange.reply(200, "", b"done");
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        let start = Instant::now();
        client.send(format!(
            "POST /x HTTP/1.1\r\nHost: a\r\n{framing}\r\nExpect: 100-Continue\r\n\r\n"
        ));
        assert_eq!(client.head().status, 100);
        assert!(
            start.elapsed() < Duration::from_millis(400),
            "{:?}",
            start.elapsed()
        );
        client.send(if framing.starts_with('C') {
            "hello"
        } else {
            "5\r\nhello\r\n0\r\n\r\n"
        });
        let answer = client.answer();
        assert_eq!((answer.status, answer.interim.len()), (200, 0), "one 100");
        assert_eq!(upstream.last().body, b"hello");
    }
    assert_eq!(Limits::of(&client.get("/")).remaining, 97);
}

#[test]
fn a_final_answer_comes_without_a_100_where_the_body_is_not_wanted() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.field("expect").is_none() {
            return standard(exchange);
        }
        exchange.reply(401, "WWW-Authenticate: Basic\r\n", b"who?");
        if exchange.request.target == "/closes" {
            exchange.close();
        } else {
            exchange.body();
        }
    });
    let gateway = limited(&upstream);
    for target in ["/x", "/closes"] {
        let mut client = gateway.client();
        let start = Instant::now();
        client.send(HEAD.replace("/x", target));
        let answer = client.answer();
        assert!(
            start.elapsed() < Duration::from_millis(400),
            "{:?}",
            start.elapsed()
        );
        assert_eq!((answer.status, answer.text().as_str()), (401, "who?"));
        assert_eq!(answer.interim, [0_u16; 0], "the body was asked for");
        assert_eq!(upstream.last().body, b"");
        // The client may hold the body back, or send it; the next request is never taken for it.
        let before = upstream.count();
        client.send(Ask::get("/next").bytes());
        if let Ok(answer) = client.try_answer("GET") {
            assert!(matches!(answer.status, 200 | 400), "{}", answer.status);
        }
        assert!(upstream.count() <= before + 1);
    }
    assert_eq!(gateway.get("/end").text(), "GET /end\n");
}

#[test]
fn an_upstream_that_knows_nothing_of_it_costs_less_than_a_second() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        exchange.reply(200, "", b"done");
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let start = Instant::now();
    client.send(HEAD);
    assert_eq!(client.head().status, 100);
    client.send("hello");
    assert_eq!(client.answer().text(), "done");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let start = Instant::now();
    client.send([HEAD, "hello"].concat());
    let answer = client.answer();
    assert_eq!(answer.text(), "done", "a client that does not wait");
    assert!(answer.interim.len() <= 1);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn a_refusal_comes_without_a_100_and_nothing_is_read() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1, "1d", "")));
    assert_eq!(gateway.get("/").status, 200);
    let mut client = gateway.client();
    client.send(HEAD);
    let answer = client.answer();
    assert_eq!((answer.status, answer.interim.len()), (429, 0));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_client_that_knows_no_100_gets_none() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let start = Instant::now();
    client.send(HEAD.replace("HTTP/1.1", "HTTP/1.0") + "hello");
    let answer = client.answer();
    assert_eq!((answer.status, answer.interim.len()), (200, 0));
    assert!(
        start.elapsed() < Duration::from_millis(400),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(upstream.last().field("expect"), None);
    let mut client = gateway.client();
    client.send(
        HEAD.replace("HTTP/1.1", "HTTP/1.0")
            .replace("100-continue", "foo")
            + "hello",
    );
    assert_eq!(client.answer().status, 200, "HTTP/1.0 has no Expect");
}

#[test]
fn without_a_body_there_is_nothing_to_expect() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for ask in [Ask::get("/"), Ask::post("/", "")] {
        let answer = gateway.ask(&ask.field("Expect", "100-continue"));
        assert_eq!((answer.status, answer.interim.len()), (200, 0));
        assert_eq!(upstream.last().field("expect"), None);
    }
    let mut h2 = H2::connect(gateway.addr());
    let start = Instant::now();
    let answer = h2.ask(&Ask::post("/echo", "hello").field("expect", "100-continue"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert!(
        start.elapsed() < Duration::from_millis(400),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn what_else_is_expected_is_a_417() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for expected in ["foo", "100-continue, foo", "100-continue=yes"] {
        let answer = gateway.ask(&Ask::post("/", "hello").field("Expect", expected));
        assert_eq!(answer.status, 417, "{expected}");
        answer.problem();
    }
    let mut h2 = H2::connect(gateway.addr());
    assert_eq!(h2.ask(&Ask::get("/").field("expect", "foo")).status, 417);
    assert_eq!(upstream.count(), 0);
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        99,
        "none of it is charged"
    );
}
