//! Answers that come before the request is read: the client gets all of them, and nothing is in doubt afterwards.

use std::time::{Duration, Instant};

use crate::support::{
    Answer, Ask, Client, Config, Gate, Gateway, H2, Limits, Upstream, noise, rule, standard, wait_until,
};

const MIB: usize = 1024 * 1024;

/// A gateway with nothing left under /full.
fn exhausted(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&Config::new(upstream).timeouts("body = \"3s\"").and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "match = { path = \"/full\" }",
    )));
    assert_eq!(gateway.get("/full").status, 200);
    gateway
}

/// After an answer to an upload, the connection is closed or takes the next request as one.
#[track_caller]
fn closed_or_usable(client: &mut Client, upstream: &Upstream) {
    let count = upstream.count();
    client.send(Ask::get("/next").bytes());
    if let Ok(answer) = client.try_answer("GET") {
        assert_eq!((answer.status, answer.text().as_str()), (200, "GET /next\n"));
        assert_eq!(upstream.count(), count + 1);
    }
}

#[track_caller]
fn whole_refusal(answer: &Answer) {
    assert_eq!(answer.status, 429);
    assert_eq!(answer.problem()["violated-policies"][0], "r");
    Limits::of(answer);
}

#[test]
fn a_refused_upload_gets_its_whole_answer_over_http1() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let count = upstream.count();
    for size in [1, 10_000, 200_000, 8 * MIB] {
        let length = Ask::post("/full", noise(size, 3));
        for ask in [length.clone(), length.chunked()] {
            let mut client = gateway.client();
            client.send(ask.bytes());
            whole_refusal(&client.answer());
            closed_or_usable(&mut client, &upstream);
        }
    }
    assert_eq!(upstream.count_of("/full"), 1);
    assert!(
        upstream.count() > count,
        "small bodies leave the connection usable"
    );
}

#[test]
fn a_refusal_does_not_wait_for_the_body() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    for framing in ["Content-Length: 5000000", "Transfer-Encoding: chunked"] {
        let mut client = gateway.client();
        let start = Instant::now();
        client.send(format!("POST /full HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        whole_refusal(&client.answer());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
}

#[test]
fn an_upload_that_never_ends_is_ended() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    client.send("POST /full HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    whole_refusal(&client.answer());
    // It reads on for 10 seconds, then closes its side and gives the client 30 to do the same.
    wait_until("the gateway stops reading", Duration::from_secs(43), || {
        std::thread::sleep(Duration::from_millis(50));
        !client.send(format!("400\r\n{}\r\n", "x".repeat(0x400)))
    });
}

#[test]
fn a_refused_upload_gets_its_whole_answer_over_http2() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    for size in [1, 10_000, 3 * MIB] {
        let ask = Ask::post("/full", noise(size, 5));
        whole_refusal(&h2.ask(&ask));
        whole_refusal(&h2.ask(&ask.chunked()));
    }
    let open = h2.open(&Ask::post("/full", "").chunked(), false).unwrap();
    whole_refusal(&h2.answer(open).unwrap());
    assert_eq!(
        h2.get("/next").text(),
        "GET /next\n",
        "the connection is as good as before"
    );
    assert_eq!(upstream.count_of("/full"), 1);
}

#[test]
fn a_refused_head_has_no_body() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    let refused = client.ask(&Ask::new("HEAD", "/full"));
    assert_eq!(refused.status, 429);
    assert!(refused.field("retry-after").is_some());
    assert_eq!(refused.must("content-type"), "application/problem+json");
    assert_eq!(client.get("/next").text(), "GET /next\n");
    let refused = H2::connect(gateway.addr()).ask(&Ask::new("HEAD", "/full"));
    assert_eq!((refused.status, refused.body.len()), (429, 0));
}

#[test]
fn a_client_that_waits_for_100_is_refused_without_it() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    client.send("POST /full HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let answer = client.answer();
    assert_eq!(
        answer.interim, [0_u16; 0],
        "the body was asked for and then refused"
    );
    whole_refusal(&answer);
}

#[test]
fn a_client_that_waits_for_100_gets_one() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        exchange.reply(200, "", b"done");
    });
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    let start = Instant::now();
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head().status, 100);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    client.send("hello");
    let answer = client.answer();
    assert_eq!((answer.status, answer.interim.len()), (200, 0));
    assert_eq!(upstream.last().body, b"hello");
    let mut old = gateway.client();
    old.send("POST /x HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello");
    assert_eq!(old.answer().interim, [0_u16; 0], "HTTP/1.0 knows no 100");
}

#[test]
fn an_upstream_that_does_not_ask_for_the_body_can_answer_without_it() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target == "/unauthorised" {
            exchange.reply(401, "", b"who are you?");
            exchange.close();
        } else {
            standard(exchange);
        }
    });
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    let start = Instant::now();
    client.send(
        "POST /unauthorised HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\nExpect: 100-continue\r\n\r\n",
    );
    let answer = client.answer();
    assert_eq!((answer.status, answer.text().as_str()), (401, "who are you?"));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let mut odd = gateway.client();
    odd.send("POST /odd HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: foo\r\n\r\nok");
    let status = odd.answer().status;
    assert!(matches!(status, 200 | 417), "{status}");
}

#[test]
fn an_early_answer_of_the_upstream_reaches_a_client_that_still_sends() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::script(move |exchange| match exchange.request.target.as_str() {
        "/reads-on" => {
            exchange.part(1024);
            exchange.reply(413, "", b"too much");
            exchange.body();
        }
        "/stops" => {
            exchange.part(1024);
            exchange.reply(413, "", b"too much");
            held.wait();
            exchange.close();
        }
        _ => standard(exchange),
    });
    let gateway = exhausted(&upstream);
    for target in ["/reads-on", "/stops"] {
        let ask = Ask::post(target, noise(6 * MIB, 9));
        let mut client = gateway.client();
        client.send(ask.bytes());
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (413, "too much"),
            "{target}"
        );
        closed_or_usable(&mut client, &upstream);
        let mut h2 = H2::connect(gateway.addr());
        let answer = h2.ask(&ask);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (413, "too much"),
            "{target} over HTTP/2"
        );
        assert_eq!(h2.get("/next").status, 200);
    }
    assert_eq!(
        gateway.get("/").text(),
        "GET /\n",
        "a connection with half a request on it is not used again"
    );
    gate.open();
}

#[test]
fn a_client_that_breaks_off_its_upload_does_not_spoil_the_next_request() {
    let upstream = Upstream::script(|exchange| {
        let complete = {
            exchange.body();
            exchange.request.complete
        };
        if complete {
            exchange.reply(200, "", b"whole");
        } else {
            exchange.close();
        }
    });
    let gateway = exhausted(&upstream);
    for _ in 0..5 {
        let mut client = gateway.client();
        client.send("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nonly this");
        let before = upstream.count();
        wait_until("it is forwarded", Duration::from_secs(5), || {
            upstream.count() > before || upstream.count_of("/half") > 0
        });
        client.reset();
        assert_eq!(gateway.ask(&Ask::post("/whole", "x")).text(), "whole");
    }
}
