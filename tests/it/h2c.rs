//! Upstreams that speak HTTP/2 with prior knowledge, and what gRPC needs of it.

use std::time::{Duration, Instant};

use crate::support::{
    Ask, Config, Gateway, H2, H2Upstream, Limits, Upstream, check, noise, rule, standard, wait_until,
};

const MIB: usize = 1024 * 1024;

fn config(upstream: &H2Upstream) -> Config {
    Config::to(upstream.addr()).upstream(&format!(
        "[upstream.api]\ntargets = [\"h2c://{}\"]\n",
        upstream.addr()
    ))
}

fn limited(upstream: &H2Upstream) -> Gateway {
    Gateway::start(&config(upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

fn call(body: &[u8]) -> Ask {
    Ask::post("/echo", body)
        .field("content-type", "application/grpc")
        .field("te", "trailers")
        .chunked()
}

#[test]
fn a_unary_call_passes_with_its_trailers() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    for size in [0, 5, MIB] {
        let body = noise(size, 3);
        let answer = h2.ask(&call(&body).trailer("x-sum", "abc"));
        assert_eq!(answer.status, 200);
        assert!(answer.body == body);
        assert_eq!(answer.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
        Limits::of(&answer);
        let seen = upstream.last();
        assert_eq!(
            (seen.method.as_str(), seen.uri.as_str()),
            ("POST", "http://test.example/echo")
        );
        assert_eq!(seen.fields["te"], "trailers");
        assert_eq!(seen.fields["via"], "2.0 tollgate");
        assert!(!seen.fields.contains_key("host"));
        assert_eq!(seen.trailers["x-sum"], "abc", "trailers that were not announced");
    }
    let error = h2.ask(&Ask::post("/error", "x").field("content-type", "application/grpc"));
    assert_eq!((error.status, error.must("grpc-status")), (200, "5"));
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn an_http1_client_is_translated() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    for ask in [
        Ask::get("/plain"),
        Ask::post("/plain", "body"),
        Ask::post("/plain", "body").chunked(),
    ] {
        let ask = ask
            .field("Connection", "keep-alive, X-Hop, Upgrade")
            .field("Keep-Alive", "timeout=5")
            .field("Proxy-Connection", "close")
            .field("X-Hop", "1")
            .field("Upgrade", "echo")
            .field("TE", "gzip")
            .field("X-End", "2");
        let answer = client.ask(&ask);
        assert_eq!(
            (answer.status, answer.text()),
            (200, format!("{} /plain\n", ask.method))
        );
        let seen = upstream.last();
        assert_eq!(seen.fields["x-end"], "2");
        for gone in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "x-hop",
            "upgrade",
            "te",
            "transfer-encoding",
            "host",
        ] {
            assert!(!seen.fields.contains_key(gone), "{gone}");
        }
    }
    client.send("GET /old HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer().text(), "GET /old\n");
    assert_eq!(upstream.last().uri, format!("http://{}/old", upstream.addr()));
    let mut client = gateway.client();
    let star = client.ask(&Ask::new("OPTIONS", "*"));
    assert_eq!((star.status, star.text().as_str()), (200, "OPTIONS *\n"));
}

#[test]
fn both_sides_stream_at_once() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let mut stream = h2.open(&call(b""), false).unwrap();
    for word in ["one", "two", "three"] {
        h2.say(&mut stream, word, false);
        assert_eq!(
            h2.hear(&mut stream),
            word.as_bytes(),
            "what was said comes back before more is said"
        );
    }
    h2.say(&mut stream, "", true);
    let rest = h2.answer(stream).unwrap();
    assert_eq!(rest.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
}

#[test]
fn requests_share_few_connections_within_what_the_upstream_allows() {
    let upstream = H2Upstream::start(5);
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    assert_eq!(h2.get("/first").status, 200);
    let waiting: Vec<_> = (0..20)
        .map(|_| h2.open(&Ask::get("/wait"), true).unwrap())
        .collect();
    wait_until("all are under way", Duration::from_secs(5), || {
        upstream.turns("/wait") == 20
    });
    assert_eq!(upstream.connections(), 4);
    upstream.open();
    for stream in waiting {
        assert_eq!(h2.answer(stream).unwrap().status, 200);
    }
}

#[test]
fn many_requests_at_once_open_one_connection() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let waiting: Vec<_> = (0..50)
        .map(|_| h2.open(&Ask::get("/wait"), true).unwrap())
        .collect();
    wait_until("all are under way", Duration::from_secs(5), || {
        upstream.most() == 50
    });
    assert_eq!(upstream.connections(), 1);
    upstream.open();
    for stream in waiting {
        assert_eq!(h2.answer(stream).unwrap().status, 200);
    }
}

#[test]
fn what_the_upstream_has_not_looked_at_is_sent_again() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    for path in ["/once/refused", "/once/goaway"] {
        for method in ["GET", "POST"] {
            let answer = gateway.ask(&Ask::new(method, path));
            assert_eq!(
                (answer.status, answer.text()),
                (200, format!("{method} {path}\n"))
            );
        }
        assert_eq!(upstream.turns(path), 3, "{path}");
    }
    let answer = gateway.ask(&Ask::new("GET", "/cancel"));
    assert_eq!(answer.status, 502);
    answer.problem();
    assert_eq!(upstream.turns("/cancel"), 1, "it was looked at");
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn a_client_that_leaves_takes_its_request_back() {
    let upstream = H2Upstream::start(100);
    let gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let stream = h2.open(&Ask::get("/wait"), true).unwrap();
    wait_until("it is under way", Duration::from_secs(5), || {
        upstream.turns("/wait") == 1
    });
    h2.cancel(stream);
    let mut client = gateway.client();
    client.send(Ask::get("/wait").bytes());
    wait_until("it is under way", Duration::from_secs(5), || {
        upstream.turns("/wait") == 2
    });
    client.reset();
    wait_until("both are reset", Duration::from_secs(3), || {
        upstream.seen().iter().filter(|seen| seen.reset).count() == 2
    });
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(upstream.connections(), 1, "the connection is as good as before");
}

#[test]
fn an_upstream_that_speaks_no_http2_is_a_502() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .upstream(&format!(
                "[upstream.api]\ntargets = [\"h2c://{}\"]\n",
                upstream.addr()
            ))
            .timeouts("response = \"2s\""),
    );
    let answer = gateway.get("/");
    assert!(matches!(answer.status, 502 | 504), "{}", answer.status);
    answer.problem();
}

#[test]
fn a_slow_upstream_is_out_of_time() {
    let upstream = H2Upstream::start(100);
    let gateway = Gateway::start(&config(&upstream).timeouts("response = \"300ms\""));
    let start = Instant::now();
    assert_eq!(gateway.get("/wait").status, 504);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(upstream.turns("/wait"), 1);
}

#[test]
fn an_upstream_speaks_one_protocol() {
    let (code, text) = check(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[upstream.api]\ntargets = [\"http://a:1\", \"h2c://b:1\"]\n",
    );
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("some targets are http:// and some h2c://"),
        "{text}"
    );
}

#[test]
fn a_refused_call_is_one_that_grpc_understands() {
    let upstream = H2Upstream::start(100);
    let gateway = Gateway::start(&config(&upstream).and(&rule("r", "fixed-window", 1, "1h", "")));
    let mut h2 = H2::connect(gateway.addr());
    assert_eq!(h2.ask(&call(b"one")).trailers.len(), 1);
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc; x=y",
    ] {
        let refused = h2.ask(
            &Ask::post("/echo", "two")
                .field("content-type", kind)
                .field("te", "trailers"),
        );
        assert_eq!(refused.status, 200, "{kind}");
        assert_eq!(refused.must("content-type"), "application/grpc");
        assert_eq!(refused.must("grpc-status"), "8");
        let wait: u64 = refused.must("grpc-retry-pushback-ms").parse().unwrap();
        assert!(wait > 3_500_000 && wait <= 3_600_000, "{wait}");
        assert!(refused.body.is_empty() && refused.trailers.is_empty());
        Limits::of(&refused);
    }
    assert_eq!(
        h2.ask(&Ask::post("/echo", "x").field("content-type", "application/grpcx"))
            .status,
        429
    );
    assert_eq!(upstream.turns("/echo"), 1);
}

#[test]
fn an_event_is_seen_before_the_next_is_sent() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target != "/events" {
            return standard(exchange);
        }
        exchange.write(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        for number in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            exchange.write(format!("9\r\ndata: {number}\n\n\r\n"));
        }
        std::thread::sleep(Duration::from_millis(300));
        exchange.write("0\r\n\r\n");
    });
    let gateway = Gateway::start(&Config::new(&upstream));
    let mut client = gateway.client();
    client.send(Ask::get("/events").bytes());
    assert_eq!(client.head().status, 200);
    let mut h2 = H2::connect(gateway.addr());
    let mut stream = h2.open(&Ask::get("/events"), true).unwrap();
    let start = Instant::now();
    for number in 0..3_u32 {
        let event = format!("data: {number}\n\n");
        assert_eq!(
            client.exactly(14).unwrap(),
            format!("9\r\n{event}\r\n").as_bytes()
        );
        assert_eq!(h2.hear(&mut stream), event.as_bytes());
        let took = start.elapsed();
        assert!(
            took < Duration::from_millis(300) * (number + 1) + Duration::from_millis(250),
            "{took:?}"
        );
    }
}
