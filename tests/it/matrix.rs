//! Messages with framings that are broken, doubtful or lies: nothing of them is taken for another message.

use std::time::Duration;

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, rule, standard};

const SOON: Duration = Duration::from_secs(5);
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 10_000, "1d", "")))
}

/// Whole requests that are refused before anything of them is forwarded.
const REFUSED: &[&str] = &[
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer\rEncoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 03x\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 3;\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: \r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n 3\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
    "POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 1e1\r\n\r\nabc",
    "POST /m HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "GET /m HTTP/1.1\r\n Host: a\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\nX\0: a\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\n\rX: a\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    "GET /m HTTP/1.1\rHost: a\r\r",
    "GET /m\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /m HTTP/1.1 \r\nHost: a\r\n\r\n",
    "GET  /m HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /m HTTP/1.2\r\nHost: a\r\n\r\n",
    "GET /m HTTP/2.0\r\nHost: a\r\n\r\n",
    "GET /m http/1.1\r\nHost: a\r\n\r\n",
    "GET /m\r\n\r\n",
    " GET /m HTTP/1.1\r\nHost: a\r\n\r\n",
    "G<T /m HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /m HTTP/1.1\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a b\r\n\r\n",
];

#[test]
fn nothing_doubtful_is_forwarded() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for used in [false, true] {
        for request in REFUSED {
            let mut client = gateway.client();
            if used {
                assert_eq!(client.get("/").status, 200);
            }
            client.send(format!("{request}{HIDDEN}"));
            let answer = client.answer();
            assert!(
                matches!(answer.status, 400 | 431 | 501 | 505),
                "{request:?}: {}",
                answer.status
            );
            assert!(client.closes_within(SOON), "{request:?}: open after an error");
        }
    }
    for target in ["/m", "/hidden"] {
        assert_eq!(upstream.count_of(target), 0, "{target} reached the upstream");
    }
}

#[test]
fn lines_may_end_in_a_bare_line_feed_and_are_made_plain() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for head in [
        "POST /lf HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
        "\r\n\r\nPOST /lf HTTP/1.1\r\nHost: a\nX: y\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        let mut client = gateway.client();
        client.send(head);
        match client.answer().status {
            400 => assert_eq!(upstream.count(), 0),
            status => {
                assert_eq!(status, 200, "{head:?}");
                let seen = upstream.last();
                let feeds = seen.head.iter().filter(|byte| **byte == b'\n').count();
                let ends = seen.head.windows(2).filter(|pair| pair == b"\r\n").count();
                assert_eq!(feeds, ends, "{:?}", String::from_utf8_lossy(&seen.head));
                assert_eq!((seen.framing().as_str(), &seen.body[..]), ("3", &b"abc"[..]));
            }
        }
    }
}

#[test]
fn broken_chunks_are_the_clients_fault_and_hide_nothing() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for used in [false, true] {
        for body in [
            "5\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5;x\nhello\r\n0\r\n\r\n",
            "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n",
            "5\rhello\r\n0\r\n\r\n",
            "5\r\nhello\r\n-1\r\n\r\n",
            "5\r\nhello\r\n+0\r\n\r\n",
            "5\r\nhello\r\n 0\r\n\r\n",
            "5\r\nhello\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhelloab0\r\n\r\n",
            "1000000000000000a\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\r\nfffffffffffffffff\r\n",
            "5\r\nhello\r\nFFFFFFFFFFFFFFFF1\r\n",
            "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
            "5\r\nhello\r\n0\r\nX: a\r\n b\r\n\r\n",
            "5_0\r\nhello\r\n0\r\n\r\n",
        ] {
            let mut client = gateway.client();
            if used {
                assert_eq!(client.get("/").status, 200);
            }
            client.send(format!(
                "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{HIDDEN}"
            ));
            let answer = client.answer();
            assert_eq!(answer.status, 400, "{body:?}");
            assert!(client.closes_within(SOON), "{body:?}: open after an error");
        }
    }
    assert_eq!(upstream.count_of("/hidden"), 0);
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.target != "/chunks" || !seen.complete),
        "a broken body was passed on as a whole one"
    );
}

#[test]
fn a_chunk_size_may_have_many_zeros() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let zeros = "0".repeat(1_000);
    client.send(format!(
        "POST /zeros HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{zeros}5\r\nhello\r\n0\r\n\r\n"
    ));
    match client.answer().status {
        400 => {}
        status => {
            assert_eq!(status, 200);
            let seen = upstream.last();
            assert_eq!(seen.body, b"hello");
            assert!(!String::from_utf8_lossy(&seen.raw_body).contains("00005"));
        }
    }
}

#[test]
fn a_megabyte_of_extensions_in_small_chunks_is_too_much() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(1_000));
    let sent = (0..1_000).all(|_| client.send(&chunk));
    if sent {
        client.send("0\r\n\r\n");
    }
    if let Ok(answer) = client.try_answer("POST") {
        assert_eq!(answer.status, 400);
    }
    assert!(upstream.seen().iter().all(|seen| !seen.complete));
}

#[test]
fn a_response_that_is_no_clear_http_is_a_502() {
    let fields: String = (0..130).map(|number| format!("X-{number}: y\r\n")).collect();
    let huge = format!("X-Huge: {}\r\n", "y".repeat(300 * 1024));
    for head in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n".to_owned(),
        "Transfer-Encoding: gzip, chunked\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n".to_owned(),
        "Content-Length: 5\r\nContent-Length: 6\r\n".to_owned(),
        "Content-Length: -5\r\n".to_owned(),
        "Content-Length: \r\n".to_owned(),
        "Content-Length: 18446744073709551616\r\n".to_owned(),
        "X: a\rb\r\nContent-Length: 5\r\n".to_owned(),
        "X: a\0b\r\nContent-Length: 5\r\n".to_owned(),
        "X : a\r\nContent-Length: 5\r\n".to_owned(),
        format!("{fields}Content-Length: 5\r\n"),
        format!("{huge}Content-Length: 5\r\n"),
    ] {
        let shown = head[..head.len().min(80)].to_owned();
        let upstream = Upstream::script(move |exchange| {
            if exchange.request.target != "/bad" {
                return standard(exchange);
            }
            exchange.body();
            exchange.write(format!(
                "HTTP/1.1 200 OK\r\n{head}\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden"
            ));
        });
        let gateway = limited(&upstream);
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        let answer = client.ask(&Ask::post("/bad", "x"));
        assert_eq!(answer.status, 502, "{shown:?}");
        answer.problem();
        for _ in 0..3 {
            assert_eq!(client.get("/next").text(), "GET /next\n", "{shown:?}");
        }
    }
}

#[test]
fn a_body_that_is_not_as_long_as_said_is_cut_and_spoils_nothing() {
    for (head, body, whole) in [
        ("Content-Length: 5\r\n", "hello and more", true),
        (
            "Content-Length: 5\r\n",
            "helloHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden",
            true,
        ),
        ("Content-Length: 50\r\n", "hello", false),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n", false),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\nzz\r\n", false),
        (
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            false,
        ),
        (
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhello\r\nfffffffffffffffff\r\n",
            false,
        ),
        (
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhidden",
            true,
        ),
    ] {
        let upstream = Upstream::script(move |exchange| {
            if exchange.request.target != "/bad" {
                return standard(exchange);
            }
            exchange.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}"));
            if !whole {
                exchange.close();
            }
        });
        let gateway = limited(&upstream);
        for _ in 0..5 {
            let mut client = gateway.client();
            client.send(Ask::get("/bad").bytes());
            match client.try_answer("GET") {
                Ok(answer) if whole => assert_eq!((answer.status, answer.text().as_str()), (200, "hello")),
                Ok(answer) => assert_eq!(answer.status, 502, "{head}{body}"),
                Err(why) => assert!(!whole, "{head}{body}: {why}"),
            }
            if !whole {
                assert!(client.closes_within(SOON), "{head}{body}: open after a cut");
            }
            assert_eq!(gateway.get("/next").text(), "GET /next\n", "{head}{body}");
            let posted = gateway.ask(&Ask::post("/next", "x"));
            assert_eq!(posted.text(), "POST /next\n", "{head}{body}");
            let mut h2 = H2::connect(gateway.addr());
            match h2.try_ask(&Ask::get("/bad")) {
                Ok(answer) if whole => assert_eq!(answer.text(), "hello"),
                Ok(answer) => assert_eq!(answer.status, 502, "{head}{body} over HTTP/2"),
                Err(error) => assert!(!whole, "{head}{body} over HTTP/2: {error}"),
            }
        }
    }
}

#[test]
fn answers_without_a_body_have_none() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        let head = match exchange.request.target.as_str() {
            "/204" => "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\n",
            _ if exchange.request.method == "HEAD" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            _ => return standard(exchange),
        };
        exchange.write(head);
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    let mut h2 = H2::connect(gateway.addr());
    for _ in 0..2 {
        let empty = client.get("/204");
        assert_eq!((empty.status, empty.field("content-length")), (204, None));
        assert_eq!(client.get("/304").status, 304);
        let head = client.ask(&Ask::new("HEAD", "/"));
        assert_eq!((head.status, head.must("content-length")), (200, "5"));
        assert_eq!(client.get("/next").text(), "GET /next\n");
        assert_eq!(h2.get("/204").status, 204);
        assert_eq!(h2.get("/304").status, 304);
        assert_eq!(h2.ask(&Ask::new("HEAD", "/")).status, 200);
        assert_eq!(h2.get("/next").text(), "GET /next\n");
    }
}

#[test]
fn an_old_client_keeps_its_connection_where_it_asks_for_it() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    for _ in 0..3 {
        client.send("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "GET /\n"));
        assert_eq!(answer.must("connection").to_ascii_lowercase(), "keep-alive");
    }
    client.send("POST /echo-chunked HTTP/1.0\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello");
    let answer = client.answer();
    assert_eq!(
        (answer.text().as_str(), answer.field("transfer-encoding")),
        ("hello", None)
    );
    assert!(
        client.closes_within(SOON),
        "the end of the connection is the end of the body"
    );
}

#[test]
fn a_refusal_in_the_middle_of_a_pipeline_stays_there() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "match = { path = \"/limited\" }",
    )));
    assert_eq!(gateway.get("/limited").status, 200);
    for middle in [
        Ask::get("/limited"),
        Ask::post("/limited", "body"),
        Ask::post("/limited", "body").chunked(),
    ] {
        let mut client = gateway.client();
        let bytes = [
            Ask::post("/one", "body").bytes(),
            middle.bytes(),
            Ask::get("/three").bytes(),
        ];
        client.send(bytes.concat());
        assert_eq!(client.answer().text(), "POST /one\n");
        let refused = client.answer();
        assert_eq!(refused.status, 429);
        Limits::of(&refused);
        assert_eq!(client.answer().text(), "GET /three\n");
    }
    assert_eq!(upstream.count_of("/limited"), 1);
}

#[test]
fn the_last_hop_answers_itself() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for method in ["TRACE", "OPTIONS"] {
        let ask = Ask::new(method, "/x").field("Cookie", "secret");
        for (hops, next) in [("1", "0"), ("10", "9"), ("x", "x")] {
            let answer = gateway.ask(&ask.clone().field("Max-Forwards", hops));
            assert_eq!(answer.status, 200, "{method} {hops}");
            assert_eq!(upstream.last().field("max-forwards").as_deref(), Some(next));
        }
        let count = upstream.count();
        let answer = gateway.ask(&ask.field("Max-Forwards", "0"));
        if method == "TRACE" {
            assert_eq!(
                (answer.status, answer.must("content-type")),
                (200, "message/http")
            );
            let text = answer.text();
            assert!(
                text.starts_with("TRACE /x HTTP/1.1\r\nhost: test.example\r\n"),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        } else {
            assert_eq!(answer.status, 204);
            assert!(answer.must("allow").contains("OPTIONS"));
        }
        assert_eq!(upstream.count(), count);
    }
    let other = gateway.ask(&Ask::get("/").field("Max-Forwards", "0"));
    assert_eq!(other.status, 200, "it is for two methods only");
    assert_eq!(upstream.last().field("max-forwards").as_deref(), Some("0"));
}

#[test]
fn strange_targets_pass_or_are_refused() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let answer = gateway.ask(&Ask::new("OPTIONS", "*"));
    assert_eq!((answer.status, answer.text().as_str()), (200, "OPTIONS *\n"));
    Limits::of(&answer);
    let mut client = gateway.client();
    client.send(format!(
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n{HIDDEN}"
    ));
    let answer = client.answer_to("CONNECT");
    assert_eq!(answer.status, 405);
    assert!(answer.must("allow").contains("GET"));
    assert!(client.closes_within(SOON));
    let mut h2 = H2::connect(gateway.addr());
    let answer = h2.connect_to("evil.example:443");
    assert_eq!(answer.status, 405);
    assert_eq!(h2.get("/next").status, 200);
    for target in ["foo", "*", "http:///x", "//", "evil.example:443"] {
        let before = upstream.count();
        let answer = gateway.ask(&Ask::get(target));
        if answer.status != 400 {
            assert_eq!(answer.text(), format!("GET {target}\n"));
            assert_eq!(upstream.count(), before + 1);
        }
    }
    assert_eq!(upstream.count_of("/hidden"), 0);
}
