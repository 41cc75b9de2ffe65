//! Sizes and times that a client cannot exceed.

use std::time::{Duration, Instant};

use crate::support::{Ask, Client, Config, Gateway, H2, Limits, Upstream, noise, rule};

#[test]
fn a_body_over_the_bound_is_413_whether_it_is_announced_or_not() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).limits("body_bytes = \"64KiB\""));
    let at = noise(65_536, 1);
    let over = noise(65_537, 1);
    let far = noise(3_000_000, 1);
    for ask in [Ask::post("/echo", at.clone()), Ask::post("/echo", at).chunked()] {
        assert_eq!(gateway.ask(&ask).status, 200);
        assert_eq!(H2::connect(gateway.addr()).ask(&ask).status, 200);
    }
    for body in [over, far] {
        let announced = Ask::post("/announced", body.clone());
        let mut client = gateway.client();
        let answer = client.ask(&announced);
        assert_eq!(answer.status, 413);
        answer.problem();
        let answer = H2::connect(gateway.addr()).ask(&announced);
        assert_eq!(answer.status, 413);
        answer.problem();
        let streamed = Ask::post("/streamed", body).chunked();
        let answer = gateway.ask(&streamed);
        assert_eq!(answer.status, 413);
        answer.problem();
        let answer = H2::connect(gateway.addr()).ask(&streamed);
        assert_eq!(answer.status, 413);
    }
    assert_eq!(
        upstream.count_of("/announced"),
        0,
        "an announced size is judged before it is forwarded"
    );
    for seen in upstream.seen().iter().filter(|seen| seen.target == "/streamed") {
        assert!(
            !seen.complete,
            "a body that was cut is not passed on as a whole one"
        );
    }
}

#[test]
fn a_target_over_the_bound_is_414() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).limits("uri_bytes = \"1KiB\""));
    let target = |length: usize| format!("/{}", "a".repeat(length - 1));
    assert_eq!(gateway.get(&target(1_024)).status, 200);
    assert_eq!(gateway.get(&target(1_025)).status, 414);
    assert_eq!(gateway.get(&format!("/?{}", "a".repeat(2_000))).status, 414);
    let mut h2 = H2::connect(gateway.addr());
    assert_eq!(h2.get(&target(1_024)).status, 200);
    assert_eq!(h2.get(&target(1_025)).status, 414);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn the_default_bounds_let_real_requests_through() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")));
    let cookie = Ask::get("/").field("Cookie", format!("a={}", "x".repeat(20_000)));
    assert_eq!(gateway.ask(&cookie).status, 200);
    assert_eq!(H2::connect(gateway.addr()).ask(&cookie).status, 200);
    assert_eq!(gateway.get(&format!("/{}", "a".repeat(15_000))).status, 200);
    let mut many = Ask::get("/");
    for n in 0..98 {
        many = many.field(&format!("X-N{n}"), "1");
    }
    let answer = gateway.ask(&many);
    assert_eq!(
        answer.status, 200,
        "99 fields; what the gateway adds does not count"
    );
    Limits::of(&answer);
    assert_eq!(H2::connect(gateway.addr()).ask(&many).status, 200);
}

#[test]
fn a_head_over_the_bound_is_431() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    let mut many = Ask::get("/");
    for n in 0..200 {
        many = many.field(&format!("X-N{n}"), "1");
    }
    assert_eq!(gateway.ask(&many).status, 431);
    for size in [70_000, 500_000] {
        let large = Ask::get("/").field("X-Large", "x".repeat(size));
        let mut client = gateway.client();
        client.send(large.bytes());
        let answer = client.answer();
        assert_eq!(answer.status, 431, "{size} bytes");
        assert!(client.closes_within(Duration::from_secs(5)));
        let over_http2 = H2::connect(gateway.addr()).try_ask(&large);
        assert!(
            over_http2.as_ref().map_or(true, |answer| answer.status == 431),
            "{size} bytes: {over_http2:?}"
        );
    }
    let small = Gateway::start(&Config::new(&upstream).limits("header_bytes = \"8KiB\"\nheader_count = 10"));
    assert_eq!(small.get("/").status, 200);
    assert_eq!(
        small
            .ask(&Ask::get("/").field("X-Large", "x".repeat(9_000)))
            .status,
        431
    );
    let mut eleven = Ask::get("/");
    for n in 0..10 {
        eleven = eleven.field(&format!("X-N{n}"), "1");
    }
    assert_eq!(small.ask(&eleven).status, 431, "eleven fields with Host");
    let over_http2 = H2::connect(small.addr()).try_ask(&Ask::get("/").field("x-large", "x".repeat(9_000)));
    assert!(
        over_http2.as_ref().map_or(true, |answer| answer.status == 431),
        "{over_http2:?}"
    );
    assert_eq!(upstream.count(), 1);
}

#[test]
fn an_upstreams_head_without_measure_is_a_502() {
    let upstream = Upstream::script(|exchange| {
        let fields: String = match exchange.request.target.as_str() {
            "/many" => (0..5_000).map(|n| format!("X-N{n}: 1\r\n")).collect(),
            "/large" => format!("X-Large: {}\r\n", "x".repeat(2_000_000)),
            _ => (0..60).map(|n| format!("X-N{n}: 1\r\n")).collect(),
        };
        exchange.reply(200, &fields, b"ok");
    });
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")));
    for target in ["/many", "/large"] {
        assert_eq!(gateway.get(target).status, 502, "{target}");
    }
    let answer = gateway.get("/sixty");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.must("x-n59"), "1");
}

#[test]
fn a_slow_head_is_given_up() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).timeouts("header = \"400ms\"\nidle = \"5s\""));
    let start = Instant::now();
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n");
    match client.try_answer("GET") {
        Ok(answer) => assert_eq!(answer.status, 408),
        Err(why) => assert!(!why.starts_with("nothing"), "{why}"),
    }
    assert!(
        start.elapsed() >= Duration::from_millis(380),
        "{:?}",
        start.elapsed()
    );
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let mut kept = gateway.client();
    assert_eq!(kept.get("/").status, 200);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(kept.get("/").status, 200, "an idle connection has another timer");
}

#[test]
fn a_silent_body_and_an_idle_connection_are_given_up() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).timeouts("body = \"300ms\"\nidle = \"600ms\""));
    let mut silent = gateway.client();
    silent.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    let start = Instant::now();
    if let Ok(answer) = silent.try_answer("POST") {
        assert!(matches!(answer.status, 400 | 408), "{}", answer.status);
    }
    assert!(silent.closes_within(Duration::from_secs(3)));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(
        !upstream.seen().iter().any(|seen| seen.complete),
        "half a body was passed on as a whole one"
    );
    let mut idle = gateway.client();
    assert_eq!(idle.get("/").status, 200);
    assert!(
        idle.closes_within(Duration::from_secs(4)),
        "an idle connection stayed"
    );
    let mut steady = gateway.client();
    steady.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n");
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(150));
        steady.send("x");
    }
    assert_eq!(steady.answer().status, 200, "slow but never silent for long");
}

#[test]
fn connections_beyond_the_bound_wait_until_there_is_room() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).limits("connections = 2"));
    let mut first = gateway.client();
    let mut second = gateway.client();
    assert_eq!([first.get("/").status, second.get("/").status], [200, 200]);
    let mut third = gateway.client();
    third.send(Ask::get("/third").bytes());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(upstream.count_of("/third"), 0, "a third was accepted");
    drop(first);
    assert_eq!(third.answer().status, 200);
    assert_eq!(second.get("/").status, 200);
}

#[test]
fn ipv6_clients_are_served_on_their_own_listener() {
    let upstream = Upstream::start();
    let config = Config::new(&upstream)
        .and(&rule("r", "fixed-window", 9, "1d", "key = [\"ip\"]"))
        .text()
        .replacen("[\"127.0.0.1:0\"]", "[\"[::1]:0\", \"127.0.0.1:0\"]", 1);
    let gateway = Gateway::start_text(&config, &[]);
    let line = gateway.await_log("[::1]:");
    let port = line
        .rsplit(':')
        .next()
        .and_then(|port| port.trim().parse::<u16>().ok())
        .unwrap();
    let mut client = Client::connect((std::net::Ipv6Addr::LOCALHOST, port).into());
    let answer = client.get("/");
    assert_eq!(Limits::of(&answer).remaining, 8);
    assert_eq!(upstream.last().field("x-forwarded-for").as_deref(), Some("::1"));
    let forwarded = upstream.last().field("forwarded").unwrap();
    assert!(forwarded.contains("for=\"[::1]\""), "{forwarded}");
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        8,
        "another address, another counter"
    );
}

#[test]
fn connections_of_one_address_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).limits("connections_per_ip = 3"));
    let mut open: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut open {
        assert_eq!(client.get("/").status, 200);
    }
    let mut fourth = gateway.client();
    fourth.send(Ask::get("/fourth").bytes());
    assert!(
        fourth.try_answer("GET").is_err(),
        "a fourth connection was served"
    );
    assert_eq!(upstream.count_of("/fourth"), 0);
    drop(open.pop());
    crate::support::wait_until("there is room again", Duration::from_secs(5), || {
        let mut client = gateway.client();
        client.send(Ask::get("/").bytes());
        client.try_answer("GET").is_ok()
    });
}
