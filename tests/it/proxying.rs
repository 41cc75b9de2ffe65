//! Forwarding: routes, failures of the upstream, connections that went stale, clients that leave.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    Ask, Config, Gate, Gateway, H2, Limits, Upstream, curl, rule, standard, unused_port, wait_until,
};

fn limited(config: Config) -> Gateway {
    Gateway::start(&config.and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

fn named(name: &'static str) -> Upstream {
    Upstream::script(move |exchange| exchange.reply(200, "", name.as_bytes()))
}

#[test]
fn the_most_specific_route_wins_and_none_is_404() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let route = |path: &str, more: &str, upstream: &str| {
        format!("[[route]]\npath = \"{path}\"\n{more}\nupstream = \"{upstream}\"\n")
    };
    let gateway = Gateway::start(
        &Config::new(&a)
            .upstream(&format!(
                "[upstream.a]\ntargets = [\"http://{}\"]\n[upstream.b]\ntargets = [\"http://{}\"]\n\
                 [upstream.c]\ntargets = [\"http://{}\"]\n",
                a.addr(),
                b.addr(),
                c.addr()
            ))
            .and(&route("/v1/{*rest}", "", "a"))
            .and(&route("/v1/users/{id}", "", "b"))
            .and(&route("/v1/users/me", "", "c"))
            .and(&route("/v1/{*rest}", "host = \"b.example\"", "b"))
            .and(&route("/v1/{*rest}", "host = \"*.wild.example\"", "c")),
    );
    for (host, target, upstream) in [
        ("x", "/v1", "a"),
        ("x", "/v1/", "a"),
        ("x", "/v1/things", "a"),
        ("x", "/v1/users/7", "b"),
        ("x", "/v1/users/me", "c"),
        ("x", "/v1/users/%6de", "c"),
        ("x", "/v1/users/7/posts", "a"),
        ("b.example", "/v1/things", "b"),
        ("B.example:81", "/v1/things", "b"),
        ("a.wild.example", "/v1/things", "c"),
    ] {
        let answer = gateway.ask(&Ask::get(target).host(host));
        assert_eq!(answer.text(), upstream, "{host}{target}");
    }
    for target in ["/", "/v2", "/v10"] {
        let answer = gateway.get(target);
        assert_eq!(answer.status, 404, "{target}");
        answer.problem();
    }
}

#[test]
fn requests_go_to_all_targets_of_an_upstream() {
    let (a, b) = (Upstream::start(), Upstream::start());
    let gateway = Gateway::start(&Config::new(&a).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\", \"http://{}\"]\n",
        a.addr(),
        b.addr()
    )));
    for _ in 0..40 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert!(
        a.count() >= 5 && b.count() >= 5,
        "{} and {}",
        a.count(),
        b.count()
    );
    assert_eq!(a.count() + b.count(), 40);
}

#[test]
fn an_upstream_that_fails_is_answered_for_in_problem_json() {
    let dead = unused_port();
    let gateway = limited(Config::to(dead));
    for method in ["GET", "POST"] {
        let answer = gateway.ask(&Ask::new(method, "/").body("x"));
        assert_eq!(answer.status, 502);
        assert_problem(&answer.problem());
    }
    let upstream = Upstream::start();
    let slow = Config::new(&upstream).timeouts("response = \"300ms\"");
    let gateway = limited(slow);
    let start = Instant::now();
    let answer = gateway.get("/hang");
    assert_eq!(answer.status, 504);
    assert_problem(&answer.problem());
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(upstream.count(), 1, "a timeout is not retried");
    assert_eq!(gateway.get("/").status, 200, "the gateway is well");
    let mut h2 = H2::connect(gateway.addr());
    let answer = h2.get("/hang");
    assert_eq!(answer.status, 504);
    assert_problem(&answer.problem());
}

/// Nothing of the inside is told to clients.
fn assert_problem(problem: &Value) {
    let text = problem.to_string();
    for word in ["127.0.0.1", "refused (os", "panicked", "hyper"] {
        assert!(!text.contains(word), "{text}");
    }
}

#[test]
fn nonsense_from_the_upstream_is_a_502() {
    for nonsense in [
        "",
        "garbage\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-Half: ",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nbad name: x\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n",
    ] {
        let upstream = Upstream::script(move |exchange| {
            exchange.body();
            exchange.write(nonsense);
            exchange.close();
        });
        let gateway = limited(Config::new(&upstream));
        let answer = gateway.ask(&Ask::post("/", "x"));
        assert_eq!(answer.status, 502, "{nonsense:?}");
        assert_problem(&answer.problem());
        assert_eq!(upstream.count(), 1, "{nonsense:?}: a POST is sent once");
    }
}

#[test]
fn a_response_with_two_kinds_of_framing_has_one_for_the_client() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
    });
    let gateway = limited(Config::new(&upstream));
    let answer = gateway.get("/");
    match answer.status {
        502 => {}
        status => {
            assert_eq!((status, answer.text().as_str()), (200, "ok"));
            assert_eq!(answer.field("content-length"), None);
        }
    }
}

#[test]
fn interim_responses_are_not_taken_for_the_answer() {
    let upstream = Upstream::script(|exchange| {
        exchange.body();
        exchange.write(
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </b>\r\n\r\n",
        );
        exchange.write("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
        exchange.reply(200, "X-Final: yes\r\n", b"final");
    });
    let gateway = limited(Config::new(&upstream));
    for _ in 0..2 {
        let answer = gateway.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (200, "final"));
        assert_eq!(answer.must("x-final"), "yes");
        assert_eq!(answer.field("link"), None, "an interim field in the final head");
    }
    assert_eq!(Limits::of(&gateway.get("/")).remaining, 997, "charged once each");
}

#[test]
fn connections_to_the_upstream_are_reused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream));
    for _ in 0..20 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert!(
        upstream.connections() <= 3,
        "{} connections",
        upstream.connections()
    );
}

#[test]
fn a_get_does_not_notice_that_a_kept_connection_went_stale() {
    let upstream = Upstream::closing_idle_after(Duration::from_millis(60));
    let gateway = limited(Config::new(&upstream));
    let mut client = gateway.client();
    for turn in 0..25 {
        let answer = client.get("/");
        assert_eq!(answer.status, 200, "request {turn}");
        // Around the moment that the upstream closes.
        std::thread::sleep(Duration::from_micros(57_500 + turn * 250));
    }
    assert_eq!(
        Limits::of(&client.get("/")).remaining,
        1_000 - 26,
        "one charge each, whatever was tried again"
    );
}

#[test]
fn a_post_is_executed_once_at_most() {
    let upstream = Upstream::closing_idle_after(Duration::from_millis(60));
    let gateway = limited(Config::new(&upstream));
    let mut client = gateway.client();
    for turn in 0..25 {
        let target = format!("/id/{turn}");
        let answer = client.ask(&Ask::post(&target, "x"));
        assert!(matches!(answer.status, 200 | 502), "{}", answer.status);
        let executed = upstream.count_of(&target);
        assert!(executed <= 1, "request {turn} was executed {executed} times");
        assert!(executed == 1 || answer.status == 502, "an answer from nobody");
        std::thread::sleep(Duration::from_micros(57_500 + turn * 250));
    }
    // What is known to be closed is not used.
    for turn in 0..3 {
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(client.ask(&Ask::post("/known", "x")).status, 200, "POST {turn}");
    }
}

#[test]
fn a_request_that_was_read_and_dropped_is_not_sent_again() {
    let upstream = Upstream::start();
    let gateway = limited(Config::new(&upstream));
    gateway.get("/");
    let before = upstream.count();
    let answer = gateway.ask(&Ask::post("/close", "x"));
    assert_eq!(answer.status, 502);
    assert_eq!(upstream.count() - before, 1);
}

#[test]
fn what_a_client_leaves_behind_is_ended_upstream() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target == "/silent" {
            exchange.closed_within(Duration::from_secs(15));
        } else if exchange.request.target == "/flow" {
            exchange.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
            exchange.closed_within(Duration::from_secs(15));
        } else {
            standard(exchange);
        }
    });
    let gateway = limited(Config::new(&upstream));
    gateway.get("/");
    let files = gateway.open_files();
    for _ in 0..5 {
        let mut client = gateway.client();
        let before = upstream.count();
        client.send(Ask::get("/silent").bytes());
        upstream.await_count(before + 1);
        client.reset();
        let mut client = gateway.client();
        let before = upstream.count();
        client.send(Ask::get("/silent").bytes());
        upstream.await_count(before + 1);
        drop(client);
        let mut client = gateway.client();
        client.send(Ask::get("/flow").bytes());
        assert_eq!(client.head().status, 200);
        client.reset();
        let mut h2 = H2::connect(gateway.addr());
        let before = upstream.count();
        let stream = h2.open(&Ask::get("/silent"), true).unwrap();
        upstream.await_count(before + 1);
        h2.cancel(stream);
    }
    wait_until("connections upstream end", Duration::from_secs(4), || {
        upstream.open_connections() <= 1
    });
    wait_until("nothing is in flight", Duration::from_secs(2), || {
        gateway.metric("tollgate_requests_in_flight") < 0.5
    });
    wait_until("files are closed", Duration::from_secs(4), || {
        gateway.open_files() <= files + 2
    });
}

#[test]
fn requests_in_one_go_are_answered_in_order_and_charged_each() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 3, "1d", "")));
    let mut client = gateway.client();
    let mut bytes = Ask::get("/after/100").bytes();
    bytes.extend(Ask::post("/two", "body").bytes());
    bytes.extend(Ask::get("/three").bytes());
    bytes.extend(Ask::get("/four").bytes());
    client.send(bytes);
    assert_eq!(client.answer().text(), "late\n");
    assert_eq!(client.answer().text(), "POST /two\n");
    assert_eq!(client.answer().text(), "GET /three\n");
    assert_eq!(client.answer().status, 429);
}

#[test]
fn http2_streams_do_not_wait_for_each_other() {
    let upstream = Upstream::start();
    let gateway = limited(Config::new(&upstream));
    let mut h2 = H2::connect(gateway.addr());
    let start = Instant::now();
    let late = h2.open(&Ask::get("/after/700"), true).unwrap();
    for _ in 0..5 {
        assert_eq!(h2.get("/").status, 200);
    }
    assert!(
        start.elapsed() < Duration::from_millis(650),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(h2.answer(late).unwrap().text(), "late\n");
}

#[test]
fn too_many_connections_to_an_upstream_wait_and_then_fail() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::script(move |exchange| {
        exchange.body();
        if exchange.request.target == "/held" {
            held.wait();
        }
        exchange.reply(200, "", b"ok");
    });
    let gateway = limited(Config::new(&upstream).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\nconnections = 1\n[upstream.api.timeouts]\nconnect = \"300ms\"\n",
        upstream.addr()
    )));
    let mut first = gateway.client();
    first.send(Ask::get("/held").bytes());
    upstream.await_count(1);
    let start = Instant::now();
    let second = gateway.get("/second");
    assert!(matches!(second.status, 502..=504), "{}", second.status);
    assert!(
        start.elapsed() >= Duration::from_millis(290),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(upstream.count(), 1);
    gate.open();
    assert_eq!(first.answer().status, 200);
    assert_eq!(gateway.get("/third").status, 200);
}

#[test]
fn an_upgrade_is_passed_through_after_the_101_and_not_before() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target == "/ws" {
            assert_eq!(exchange.request.field("upgrade").as_deref(), Some("echo"));
            exchange.write(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello",
            );
            exchange.part(4);
            let mut sent = exchange.request.body.clone();
            sent.reverse();
            exchange.write(sent);
            exchange.close();
        } else {
            standard(exchange);
        }
    });
    let gateway = limited(Config::new(&upstream));
    for connection in ["Upgrade", "keep-alive, Upgrade", "upgrade,Keep-Alive"] {
        let mut client = gateway.client();
        client.send(
            Ask::get("/ws")
                .field("Connection", connection)
                .field("Upgrade", "echo")
                .bytes(),
        );
        let head = client.head();
        assert_eq!(head.status, 101, "Connection: {connection}");
        assert_eq!(head.must("upgrade"), "echo");
        assert!(head.must("connection").eq_ignore_ascii_case("upgrade"));
        Limits::of(&head);
        assert_eq!(client.exactly(5).unwrap(), b"hello");
        client.send("abcd");
        assert_eq!(client.exactly(4).unwrap(), b"dcba");
        assert!(client.closes_within(Duration::from_secs(5)));
    }
}

#[test]
fn a_request_behind_an_upgrade_that_was_not_granted_is_limited_like_any_other() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "match = { path = \"/limited\" }",
    )));
    assert_eq!(gateway.get("/limited").status, 200);
    let mut client = gateway.client();
    let mut bytes = Ask::get("/")
        .field("Connection", "Upgrade")
        .field("Upgrade", "foo")
        .bytes();
    bytes.extend(Ask::get("/limited").bytes());
    client.send(bytes);
    assert_eq!(client.answer().status, 200);
    if let Ok(second) = client.try_answer("GET") {
        assert_eq!(second.status, 429);
    }
    assert_eq!(upstream.count_of("/limited"), 1);
    let upgrade_without_connection = gateway.ask(&Ask::get("/").field("Upgrade", "foo"));
    assert_eq!(upgrade_without_connection.status, 200);
    assert_eq!(upstream.last().field("upgrade"), None);
}

#[test]
fn an_old_upstream_does_not_make_the_gateway_old() {
    let upstream = Upstream::script(|exchange| {
        exchange.write("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok");
        exchange.close();
    });
    let gateway = Gateway::start(&Config::new(&upstream));
    let mut client = gateway.client();
    for _ in 0..2 {
        assert!(client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }
    let said = curl(&[
        "-sv",
        "--http1.1",
        "-o",
        "/dev/null",
        "-w",
        "%{http_version}",
        &gateway.url("/"),
    ]);
    assert_eq!(said, "1.1");
}
