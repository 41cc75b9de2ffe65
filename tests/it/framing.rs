//! Where messages begin and end: bodies keep their bytes and their kind of framing, ambiguous ones go nowhere.

use std::time::Duration;

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, noise, rule};

const MIB: usize = 1024 * 1024;

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

#[test]
fn a_request_without_a_body_gains_no_framing() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        assert_eq!(gateway.ask(&Ask::new(method, "/")).status, 200);
        assert_eq!(upstream.last().framing(), "none", "{method}");
        assert_eq!(upstream.last().method, method);
        assert_eq!(h2.ask(&Ask::new(method, "/")).status, 200);
        assert_eq!(upstream.last().framing(), "none", "{method} over HTTP/2");
    }
}

#[test]
fn a_body_keeps_its_framing_and_its_bytes() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let ask = Ask::new(method, "/");
        gateway.ask(&ask.clone().body("12345"));
        assert_eq!(
            (upstream.last().framing().as_str(), &upstream.last().body[..]),
            ("5", &b"12345"[..]),
            "{method}"
        );
        gateway.ask(&ask.clone().body("12345").chunked());
        assert_eq!(
            (upstream.last().framing().as_str(), &upstream.last().body[..]),
            ("chunked", &b"12345"[..]),
            "{method}"
        );
        let mut h2 = H2::connect(gateway.addr());
        h2.ask(&ask.clone().body("12345"));
        assert_eq!(upstream.last().framing(), "5", "{method} over HTTP/2");
        h2.ask(&ask.body("12345").chunked());
        let seen = upstream.last();
        assert_eq!(
            (seen.framing().as_str(), &seen.body[..]),
            ("chunked", &b"12345"[..]),
            "{method} without a length"
        );
    }
}

#[test]
fn an_empty_body_that_was_announced_stays_announced() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    for answer in [gateway.ask(&Ask::post("/", "")), h2.ask(&Ask::post("/", ""))] {
        assert_eq!(answer.status, 200);
        assert_eq!(upstream.last().framing(), "0");
    }
    gateway.ask(&Ask::new("POST", "/"));
    let framing = upstream.last().framing();
    assert!(matches!(framing.as_str(), "none" | "0"), "{framing}");
    gateway.ask(&Ask::new("POST", "/").body("").chunked());
    let seen = upstream.last();
    assert!(seen.complete && seen.body.is_empty(), "{seen:?}");
}

#[test]
fn large_bodies_pass_both_ways_byte_for_byte() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let body = noise(MIB + 13, 7);
    let mut client = gateway.client();
    let mut h2 = H2::connect(gateway.addr());
    for target in ["/echo", "/echo-chunked"] {
        let length = Ask::post(target, body.clone());
        let chunked = length.clone().chunked();
        for (how, answer) in [
            ("HTTP/1.1 with a length", client.ask(&length)),
            ("HTTP/1.1 in chunks", client.ask(&chunked)),
            ("HTTP/2 with a length", h2.ask(&length)),
            ("HTTP/2 without", h2.ask(&chunked)),
        ] {
            assert_eq!(answer.status, 200, "{target} over {how}");
            assert!(upstream.last().complete);
            assert!(
                answer.body == body,
                "{target} over {how}: {} bytes differ from {}",
                answer.body.len(),
                body.len()
            );
        }
    }
    for seen in upstream.seen() {
        assert!(seen.body == body, "{} {}", seen.target, seen.framing());
    }
}

#[test]
fn a_response_keeps_its_framing() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let fixed = client.ask(&Ask::post("/echo", "12345"));
    assert_eq!(
        (fixed.must("content-length"), fixed.field("transfer-encoding")),
        ("5", None)
    );
    let chunked = client.ask(&Ask::post("/echo-chunked", "12345"));
    assert_eq!(
        (chunked.field("content-length"), chunked.must("transfer-encoding")),
        (None, "chunked")
    );
    for status in [204, 304] {
        let answer = client.get(&format!("/status/{status}"));
        assert_eq!(answer.status, status);
        assert_eq!(
            (answer.field("content-length"), answer.field("transfer-encoding")),
            (None, None)
        );
    }
    let head = client.ask(&Ask::new("HEAD", "/"));
    assert_eq!(head.must("content-length"), "HEAD /\n".len().to_string());
    let get = client.get("/");
    assert_eq!(get.text(), "GET /\n", "nothing of a HEAD's body came");
}

#[test]
fn a_body_that_ends_with_the_connection_arrives_whole() {
    let upstream = Upstream::script(|exchange| {
        exchange.write("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end");
        exchange.close();
    });
    let gateway = limited(&upstream);
    assert_eq!(gateway.get("/").text(), "until the end");
    assert_eq!(H2::connect(gateway.addr()).get("/").text(), "until the end");
}

#[test]
fn announced_trailers_pass_to_the_upstream() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let ask = Ask::new("POST", "/")
        .body("data")
        .field("Trailer", "X-Checksum")
        .trailer("X-Checksum", "abc");
    let mut h2 = H2::connect(gateway.addr());
    for answer in [gateway.ask(&ask), h2.ask(&ask)] {
        assert_eq!(answer.status, 200);
        let seen = upstream.last();
        assert_eq!(
            seen.field("trailer")
                .map(|names| names.to_ascii_lowercase())
                .as_deref(),
            Some("x-checksum")
        );
        assert_eq!(seen.trailers, [("x-checksum".to_owned(), "abc".to_owned())]);
        assert_eq!(
            seen.field("x-checksum"),
            None,
            "a trailer is no field of the head"
        );
        assert_eq!(seen.body, b"data");
    }
}

#[test]
fn trailers_cannot_change_who_asks() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        1_000,
        "1d",
        "key = [\"header:x-user\"]",
    )));
    let ask = |value: &str| {
        Ask::new("POST", "/")
            .body("data")
            .field("X-User", "a")
            .field("Trailer", "X-User, Content-Length, Transfer-Encoding")
            .trailer("X-User", value)
            .trailer("Content-Length", "3")
    };
    for (value, left) in [("b", 999), ("c", 998)] {
        let answer = gateway.ask(&ask(value));
        if answer.status == 200 {
            assert_eq!(Limits::of(&answer).remaining, left);
            assert_eq!(upstream.last().field("x-user").as_deref(), Some("a"));
            assert!(
                !upstream
                    .last()
                    .trailers
                    .iter()
                    .any(|(name, _)| name == "content-length")
            );
        } else {
            assert_eq!(answer.status, 400);
        }
    }
}

#[test]
fn announced_trailers_pass_to_the_client() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let wanted = [("x-checksum".to_owned(), "abc".to_owned())];
    let ask = Ask::get("/trailers")
        .field("TE", "trailers")
        .field("Connection", "TE");
    let answer = gateway.ask(&ask);
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(answer.must("trailer").to_ascii_lowercase(), "x-checksum");
    assert_eq!(answer.trailers, wanted);
    assert_eq!(answer.field("x-checksum"), None);
    let mut h2 = H2::connect(gateway.addr());
    let answer = h2.ask(&Ask::get("/trailers").field("te", "trailers"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    assert_eq!(answer.trailers, wanted);
    assert_eq!(h2.get("/trailers").trailers, wanted, "HTTP/2 needs no permission");
}

/// Heads that are no clear HTTP, with what follows them.
const MALFORMED: &[&str] = &[
    "Transfer-Encoding: xchunked\r\n\r\n",
    "Transfer-Encoding: identity\r\n\r\n",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "X: a\r\n b\r\n\r\n",
    "Content-Length: +3\r\n\r\nabc",
    "Content-Length: 3,4\r\n\r\nabc",
    "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "Content-Length: \r\n\r\n",
    "Content-Length: 0x3\r\n\r\nabc",
    "Content-Length: -1\r\n\r\n",
    "Content-Length: 3 3\r\n\r\nabc",
    "Content-Length: 18446744073709551616\r\n\r\nabc",
    "Content-Length: abc\r\n\r\nabc",
    "X: a\rb\r\n\r\n",
    "X\r: a\r\n\r\n",
    "X Y: a\r\n\r\n",
    ": a\r\n\r\n",
    "X: a\0b\r\n\r\n",
];

#[test]
fn malformed_heads_are_refused_on_fresh_and_on_used_connections() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for used in [false, true] {
        for head in MALFORMED {
            let mut client = gateway.client();
            if used {
                assert_eq!(client.get("/").status, 200);
            }
            client.send(format!("POST /malformed HTTP/1.1\r\nHost: a\r\n{head}{hidden}"));
            let answer = client.answer();
            assert!(matches!(answer.status, 400 | 501), "{head:?}: {}", answer.status);
            assert!(
                client.closes_within(Duration::from_secs(5)),
                "{head:?}: open after an error"
            );
        }
    }
    for target in ["/malformed", "/hidden"] {
        assert_eq!(upstream.count_of(target), 0, "{target} reached the upstream");
    }
}

#[test]
fn two_kinds_of_framing_smuggle_nothing() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for (version, fields, body) in [
        (
            "1.1",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "1.1",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "0\r\n\r\n",
        ),
        (
            "1.1",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "1.0",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        ("1.0", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
    ] {
        let count = upstream.count();
        let mut client = gateway.client();
        client.send(format!(
            "POST /both HTTP/{version}\r\nHost: a\r\n{fields}\r\n{body}{hidden}"
        ));
        let answer = client.answer();
        assert!(
            client.closes_within(Duration::from_secs(5)),
            "HTTP/{version} {fields:?}: the connection goes on after {}",
            answer.status
        );
        match answer.status {
            400 | 501 => assert_eq!(upstream.count(), count, "{fields:?}"),
            status => {
                assert_eq!(status, 200, "{fields:?}");
                assert_eq!(upstream.count(), count + 1, "{fields:?}");
                upstream.last().framing();
            }
        }
        assert_eq!(upstream.count_of("/hidden"), 0, "HTTP/{version} {fields:?}");
    }
}

#[test]
fn lengths_that_say_the_same_are_one() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for fields in [
        "Content-Length: 3, 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
    ] {
        let mut client = gateway.client();
        client.send(format!("POST /same HTTP/1.1\r\nHost: a\r\n{fields}\r\nabc"));
        match client.answer().status {
            400 => {}
            status => {
                assert_eq!(status, 200, "{fields:?}");
                assert_eq!(upstream.last().framing(), "3");
            }
        }
    }
}

#[test]
fn chunks_that_are_none_are_refused_and_strange_ones_made_plain() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for body in [
        "-1\r\na\r\n0\r\n\r\n",
        "fffffffffffff000\r\na",
        "1000\r\n",
        "11111111111111111\r\na",
        "zz\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "\r\n",
    ] {
        let mut client = gateway.client();
        client.send(format!(
            "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        ));
        client.finish();
        assert_eq!(
            client.answer().status,
            400,
            "{body:?}: a client's broken body is no fault of the upstream"
        );
    }
    assert!(
        upstream.seen().iter().all(|seen| !seen.complete),
        "a broken body was passed on as a whole one"
    );
    let extended = "5;x=1;y=\"a;b\"\r\nhello\r\n0;last\r\n\r\n";
    let mut client = gateway.client();
    client.send(format!(
        "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{extended}"
    ));
    match client.answer().status {
        400 => {}
        status => {
            assert_eq!(status, 200);
            let seen = upstream.last();
            assert_eq!(seen.body, b"hello");
            assert!(!seen.raw_body.contains(&b';'), "extensions belong to the hop");
        }
    }
    assert_eq!(gateway.get("/").status, 200, "the gateway is well");
}

#[test]
fn an_endless_chunk_extension_is_cut_off() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;");
    let sent = (0..64).all(|_| client.send(vec![b'x'; 16 * 1024]));
    let closed = !sent || client.closes_within(Duration::from_secs(5));
    assert!(closed, "a megabyte of extension was taken");
}

#[test]
fn an_http10_client_gets_what_it_understands() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    client.send("GET /echo-chunked HTTP/1.0\r\nHost: a\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("transfer-encoding")), (200, None));
    assert!(client.closes_within(Duration::from_secs(5)));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().text(), "GET /\n");
    assert!(client.closes_within(Duration::from_secs(5)));
    assert!(upstream.last().head.starts_with(b"GET / HTTP/1.1\r\n"));
}
