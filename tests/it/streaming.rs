//! Bodies on their way: one that breaks off is seen to, and a slow reader holds its sender back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Ask, Config, Gateway, H2, Upstream, noise, rule, standard, wait_until};

const MIB: usize = 1024 * 1024;

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

#[test]
fn a_response_that_breaks_off_does_not_look_whole() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        exchange.write(match exchange.request.target.as_str() {
            "/length" => "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
            "/chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n5\r\nhel",
            "/no-last" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "/bad-chunk" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
            _ => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n4\r\nhalf\r\n0\r\nx: 1\r\n",
        });
        exchange.close();
    });
    let gateway = limited(&upstream);
    for target in ["/length", "/chunk", "/no-last", "/bad-chunk", "/no-end"] {
        let mut client = gateway.client();
        client.send(Ask::get(target).field("TE", "trailers").bytes());
        let answer = client.try_answer("GET");
        assert!(
            answer.as_ref().map_or(true, |answer| answer.status == 502),
            "{target}: {answer:?}"
        );
        let mut h2 = H2::connect(gateway.addr());
        let answer = h2.try_ask(&Ask::get(target));
        assert!(
            answer.as_ref().map_or(true, |answer| answer.status == 502),
            "{target} over HTTP/2: {answer:?}"
        );
    }
}

#[test]
fn heads_that_speak_of_a_body_which_does_not_come_are_passed_on() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        match exchange.request.target.as_str() {
            "/304" => {
                exchange.write("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 100\r\n\r\n")
            }
            "/chunked" => exchange.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            "/204" => exchange.write("HTTP/1.1 204 No Content\r\n\r\n"),
            "/length" => exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"),
            _ => standard(exchange),
        }
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let mut h2 = H2::connect(gateway.addr());
    for (method, target, status) in [
        ("GET", "/304", 304),
        ("HEAD", "/304", 304),
        ("HEAD", "/chunked", 200),
        ("HEAD", "/length", 200),
        ("DELETE", "/204", 204),
    ] {
        let ask = Ask::new(method, target);
        for answer in [client.ask(&ask), h2.ask(&ask)] {
            assert_eq!(
                (answer.status, answer.body.len()),
                (status, 0),
                "{method} {target}"
            );
            if target == "/length" {
                assert_eq!(answer.must("content-length"), "100");
            }
        }
        assert_eq!(
            client.get("/next").text(),
            "GET /next\n",
            "after {method} {target}"
        );
    }
}

#[test]
fn a_client_that_does_not_read_holds_the_upstream_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&sent);
    let upstream = Upstream::script(move |exchange| {
        exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n");
        let block = noise(64 * 1024, 3);
        for _ in 0..4_096 {
            if !exchange.try_write(&block) {
                break;
            }
            counting.fetch_add(block.len(), Ordering::SeqCst);
        }
        exchange.close();
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    client.send(Ask::get("/").bytes());
    assert_eq!(client.head().status, 200);
    let mut h2 = H2::connect(gateway.addr());
    let stream = h2.open(&Ask::get("/"), true).unwrap();
    upstream.await_count(2);
    let mut before = usize::MAX;
    wait_until("the upstream is held back", Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(300));
        let now = sent.load(Ordering::SeqCst);
        std::mem::replace(&mut before, now) == now
    });
    assert!(
        before < 48 * MIB,
        "{} MiB were taken for two clients that do not read",
        before / MIB
    );
    drop(client);
    h2.cancel(stream);
}

#[test]
fn an_upstream_that_does_not_read_holds_the_client_back() {
    let upstream = Upstream::script(|exchange| {
        exchange.part(1);
        std::thread::sleep(Duration::from_secs(2));
        exchange.body();
        exchange.reply(200, "", b"all of it");
    });
    let gateway = limited(&upstream);
    let size = 48 * MIB;
    let mut client = gateway.client();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
    ));
    let block = noise(64 * 1024, 3);
    let start = std::time::Instant::now();
    let mut early = 0;
    for _ in 0..size / block.len() {
        assert!(client.send(&block));
        if start.elapsed() < Duration::from_millis(1_500) {
            early += block.len();
        }
    }
    assert!(
        early < 32 * MIB,
        "{} MiB were taken for an upstream that does not read",
        early / MIB
    );
    assert_eq!(client.answer().text(), "all of it");
    assert_eq!(upstream.last().body.len(), size);
}

#[test]
fn refused_uploads_do_not_use_up_a_connections_window() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "match = { path = \"/full\" }",
    )));
    assert_eq!(gateway.get("/full").status, 200);
    let mut h2 = H2::connect(gateway.addr());
    let body = noise(100_000, 3);
    for turn in 0..60 {
        let answer = h2.ask(&Ask::post("/full", body.clone()));
        assert_eq!(answer.status, 429, "upload {turn}");
    }
    let answer = h2.ask(&Ask::post("/echo", body.clone()));
    assert!(answer.status == 200 && answer.body == body);
}
