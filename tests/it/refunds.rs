//! What is given back, when, and that giving back makes no quota.

use std::time::Duration;

use crate::support::{
    ALGORITHMS, Ask, Config, Gate, Gateway, H2, Limits, Upstream, rule, standard, threads, unused_port,
    wait_until,
};

/// What a rule of a hundred has left before the next request.
#[track_caller]
fn left(gateway: &Gateway) -> u64 {
    Limits::of(&gateway.get("/probe")).remaining + 1
}

/// Waits until a rule has so much left; each look costs one, which is allowed for.
#[track_caller]
fn await_left(gateway: &Gateway, mut expected: u64) {
    wait_until(&format!("{expected} left"), Duration::from_secs(5), || {
        let left = left(gateway);
        let done = left == expected;
        expected -= 1;
        std::thread::sleep(Duration::from_millis(15));
        done
    });
}

fn hundred(config: Config, refund: &str) -> Gateway {
    Gateway::start(&config.and(&rule("r", "fixed-window", 100, "1d", refund)))
}

/// An upstream, and one more under /dead that nobody answers for.
fn with_dead(upstream: &Upstream) -> Config {
    let dead = unused_port();
    Config::new(upstream).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\n[upstream.api.timeouts]\nresponse = \"200ms\"\n\
         [upstream.dead]\ntargets = [\"http://{dead}\"]\n\
         [[route]]\npath = \"/dead\"\nupstream = \"dead\"\n[[route]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        upstream.addr()
    ))
}

/// Asks and says whether the charge was given back, by the response's own fields and by the next response's.
#[track_caller]
fn refunded(gateway: &Gateway, ask: &Ask, status: u16) -> bool {
    let before = left(gateway) - 1;
    let answer = gateway.ask(ask);
    assert_eq!(answer.status, status, "{} {}", ask.method, ask.target);
    let shown = Limits::of(&answer).remaining;
    let after = left(gateway);
    assert_eq!(
        shown, after,
        "{}: the response shows {shown}, the next one finds {after}",
        ask.target
    );
    assert!(
        after == before || after + 1 == before,
        "{before} before, {after} after"
    );
    after == before
}

#[test]
fn by_default_only_failures_that_the_gateway_answers_for_are_free() {
    let upstream = Upstream::start();
    let gateway = hundred(with_dead(&upstream), "");
    for (target, status, free) in [
        ("/", 200, false),
        ("/status/204", 204, false),
        ("/status/304", 304, false),
        ("/status/404", 404, false),
        ("/status/429", 429, false),
        ("/status/500", 500, false),
        ("/status/502", 502, false),
        ("/status/503", 503, false),
        ("/status/504", 504, false),
        ("/status/599", 599, false),
        ("/dead", 502, true),
        ("/close", 502, true),
        ("/hang", 504, true),
    ] {
        assert_eq!(refunded(&gateway, &Ask::get(target), status), free, "{target}");
    }
    assert!(gateway.metric("tollgate_refunds_total{outcome=\"upstream-error\",rule=\"r\"}") >= 3.0);
}

#[test]
fn a_rule_names_the_statuses_that_are_free() {
    let upstream = Upstream::start();
    for (refund, free) in [
        ("[\"304\"]", &["/status/304"][..]),
        ("[304]", &["/status/304"]),
        ("[\"4xx\"]", &["/status/404", "/status/429"]),
        ("[\"5xx\"]", &["/status/500", "/status/503"]),
        (
            "[\"5xx\", \"upstream-error\"]",
            &["/status/500", "/status/503", "/dead"],
        ),
        ("[\"503\", \"304\"]", &["/status/304", "/status/503"]),
        ("[]", &[]),
    ] {
        let config = with_dead(&upstream);
        let gateway = hundred(config, &format!("refund = {refund}"));
        for (target, status) in [
            ("/", 200),
            ("/status/304", 304),
            ("/status/404", 404),
            ("/status/429", 429),
            ("/status/500", 500),
            ("/status/503", 503),
            ("/dead", 502),
        ] {
            assert_eq!(
                refunded(&gateway, &Ask::get(target), status),
                free.contains(&target),
                "{target} with refund = {refund}"
            );
        }
    }
}

#[test]
fn refunds_work_with_every_algorithm() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream);
    for algorithm in ALGORITHMS {
        let lines =
            format!("refund = [\"503\"]\nkey = [\"method\"]\nmatch = {{ host = \"{algorithm}.example\" }}");
        config = config.and(&rule(algorithm, algorithm, 4, "1h", &lines));
    }
    let gateway = Gateway::start(&config);
    for algorithm in ALGORITHMS {
        let host = format!("{algorithm}.example");
        let mut client = gateway.client();
        let mut status = |target: &str| client.ask(&Ask::get(target).host(&host)).status;
        for _ in 0..9 {
            assert_eq!(status("/status/503"), 503, "{algorithm}: free of charge");
        }
        for turn in 0..4 {
            assert_eq!(status("/"), 200, "{algorithm}, request {turn}");
        }
        assert_eq!(status("/"), 429, "{algorithm}");
        assert_eq!(status("/status/503"), 429, "{algorithm}: nothing goes on credit");
    }
}

#[test]
fn a_refund_is_in_force_for_the_next_request_and_gives_no_t() {
    let upstream = Upstream::start();
    let gateway = hundred(with_dead(&upstream), "");
    let answer = gateway.get("/dead");
    let limits = Limits::of(&answer);
    assert_eq!((limits.remaining, limits.t("r")), (100, None), "nothing is owed");
    assert_eq!(left(&gateway), 100);
}

#[test]
fn our_own_429_gives_nothing_back() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "tight",
                "fixed-window",
                2,
                "1d",
                "refund = [\"4xx\", \"client-abort\"]\nmatch = { path = \"/tight\" }",
            ))
            .and(&rule("r", "fixed-window", 100, "1d", "refund = [\"4xx\"]")),
    );
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.get("/tight").status, status);
    }
    assert_eq!(left(&gateway), 98);
}

/// An upstream that answers under /held only when the gate opens.
fn held(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::script(move |exchange| {
        if exchange.request.target.starts_with("/held") {
            exchange.body();
            gate.wait();
            let status = exchange
                .request
                .target
                .rsplit('/')
                .next()
                .and_then(|word| word.parse().ok());
            exchange.reply(status.unwrap_or(200), "", b"held\n");
        } else {
            standard(exchange);
        }
    })
}

#[test]
fn a_client_that_leaves_pays_unless_the_rule_says_otherwise() {
    for (refund, expected) in [
        ("", 97),
        ("refund = [\"5xx\"]", 97),
        ("refund = [\"client-abort\"]", 100),
        ("refund = [\"upstream-error\"]", 97),
    ] {
        let gate = Gate::default();
        let upstream = held(&gate);
        let gateway = hundred(Config::new(&upstream), refund);
        let mut resetting = gateway.client();
        resetting.send(Ask::get("/held/1").bytes());
        upstream.await_count(1);
        resetting.reset();
        let mut leaving = gateway.client();
        leaving.send(Ask::get("/held/2").bytes());
        upstream.await_count(2);
        leaving.reset();
        let mut h2 = H2::connect(gateway.addr());
        let stream = h2.open(&Ask::get("/held/3"), true).unwrap();
        upstream.await_count(3);
        h2.cancel(stream);
        if expected == 100 {
            await_left(&gateway, 100);
        } else {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(left(&gateway), expected, "{refund}");
        }
        gate.open();
    }
}

#[test]
fn cancelling_over_and_over_sends_no_more_than_the_limit() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 5, "1d", "")));
    let mut h2 = H2::connect(gateway.addr());
    for turn in 0..30 {
        let stream = h2.open(&Ask::get("/held"), true).unwrap();
        if turn < 5 {
            upstream.await_count(turn + 1);
        }
        h2.cancel(stream);
    }
    assert_eq!(gateway.get("/held").status, 429);
    assert_eq!(upstream.count(), 5);
    gate.open();
}

#[test]
fn a_body_that_breaks_off_is_not_free_by_its_status() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target == "/broken" {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
            exchange.close();
        } else {
            standard(exchange);
        }
    });
    let gateway = hundred(Config::new(&upstream), "refund = [\"5xx\", \"upstream-error\"]");
    let mut client = gateway.client();
    client.send(Ask::get("/broken").bytes());
    let broken = client.try_answer("GET");
    assert!(broken.is_err(), "a short body must not look whole: {broken:?}");
    assert_eq!(left(&gateway), 99);
}

#[test]
fn nothing_is_given_back_twice() {
    let gate = Gate::default();
    let closing = gate.clone();
    let upstream = Upstream::script(move |exchange| {
        if exchange.request.target == "/broken" {
            exchange.write("HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\nonly this");
            closing.wait();
            exchange.close();
        } else {
            standard(exchange);
        }
    });
    let gateway = hundred(
        Config::new(&upstream),
        "refund = [\"5xx\", \"upstream-error\", \"client-abort\"]",
    );
    for _ in 0..5 {
        gateway.get("/");
    }
    let mut client = gateway.client();
    client.send(Ask::get("/broken").bytes());
    let head = client.head();
    assert_eq!(Limits::of(&head).remaining, 95, "its status is free");
    client.reset();
    gate.open();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(left(&gateway), 95);
}

#[test]
fn a_refund_that_comes_after_its_window_leaves_the_next_one_alone() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let mut config = Config::new(&upstream);
    for algorithm in ALGORITHMS {
        let lines = format!("refund = [\"503\"]\nmatch = {{ host = \"{algorithm}.example\" }}");
        config = config.and(&rule(algorithm, algorithm, 4, "800ms", &lines));
    }
    let gateway = Gateway::start(&config);
    let mut waiting: Vec<_> = ALGORITHMS
        .iter()
        .map(|algorithm| {
            let mut client = gateway.client();
            client.send(
                Ask::get("/held/503")
                    .host(&format!("{algorithm}.example"))
                    .bytes(),
            );
            client
        })
        .collect();
    upstream.await_count(ALGORITHMS.len());
    // Two windows later nothing of the charge is left in any of them.
    std::thread::sleep(Duration::from_millis(1_610));
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.answer().status, 503);
    }
    let counts = threads(ALGORITHMS.to_vec(), |algorithm| {
        let ask = Ask::get("/").host(&format!("{algorithm}.example"));
        let mut client = gateway.client();
        let start = std::time::Instant::now();
        let count = (0..8).filter(|_| client.ask(&ask).status == 200).count();
        (algorithm, count, start.elapsed())
    });
    for (algorithm, count, took) in counts {
        // A bucket gets a drop each 200 ms.
        let drops = if algorithm == "token-bucket" || algorithm == "gcra" {
            (took.as_millis() / 200) as usize + 1
        } else {
            0
        };
        assert!(
            (4..=4 + drops).contains(&count),
            "{algorithm} admitted {count} in {took:?}"
        );
    }
}

#[test]
fn overlapping_refunds_fill_a_bucket_to_its_brim_and_no_further() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "token-bucket",
        5,
        "1h",
        "refund = [\"503\"]",
    )));
    let mut waiting: Vec<_> = (0..5)
        .map(|_| {
            let mut client = gateway.client();
            client.send(Ask::get("/held/503").bytes());
            client
        })
        .collect();
    upstream.await_count(5);
    assert_eq!(gateway.get("/").status, 429, "all of it is reserved");
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.answer().status, 503);
    }
    let count = (0..20).filter(|_| gateway.get("/").status == 200).count();
    // Given back out of order, they may leave less than a unit of debt, which counts as one.
    assert!((4..=5).contains(&count), "{count}");
}

#[test]
fn one_of_two_rules_may_refund_and_the_other_not() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("kind", "fixed-window", 10, "1d", "refund = [\"404\"]"))
            .and(&rule("strict", "sliding-log", 10, "1d", "refund = []")),
    );
    for turn in 1..=3 {
        let limits = Limits::of(&gateway.get("/status/404"));
        assert_eq!((limits.r("kind"), limits.r("strict")), (10, 10 - turn));
    }
}

#[test]
fn charges_and_refunds_add_up_under_concurrency() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream).server("workers = 2");
    for algorithm in ALGORITHMS {
        let lines = format!("refund = [\"503\"]\nmatch = {{ host = \"{algorithm}.example\" }}");
        config = config.and(&rule(algorithm, algorithm, 2_000, "30d", &lines));
    }
    let gateway = Gateway::start(&config);
    threads((0..6).collect(), |thread: usize| {
        let mut client = gateway.client();
        let mut h2 = H2::connect(gateway.addr());
        for turn in 0..15 {
            for algorithm in ALGORITHMS {
                let target = if (turn + thread).is_multiple_of(3) {
                    "/"
                } else {
                    "/status/503"
                };
                let ask = Ask::get(target).host(&format!("{algorithm}.example"));
                let answer = if turn % 2 == 0 {
                    client.ask(&ask)
                } else {
                    h2.ask(&ask)
                };
                assert!(matches!(answer.status, 200 | 503));
            }
        }
    });
    for algorithm in ALGORITHMS {
        let limits = Limits::of(&gateway.ask(&Ask::get("/").host(&format!("{algorithm}.example"))));
        assert_eq!(
            limits.remaining,
            2_000 - 30 - 1,
            "{algorithm}: 30 of 90 were kept"
        );
    }
}

#[test]
fn a_client_that_leaves_during_its_upload_has_left() {
    let upstream = Upstream::start();
    for (refund, free) in [("refund = [\"client-abort\"]", true), ("", false)] {
        let gateway = hundred(Config::new(&upstream), refund);
        for chunked in [false, true] {
            let before = left(&gateway) - 1;
            let mut client = gateway.client();
            let framing = if chunked {
                "transfer-encoding: chunked"
            } else {
                "content-length: 100"
            };
            let part = if chunked { "5\r\nhello\r\n" } else { "hello" };
            let seen = upstream.connections();
            client.send(format!("POST /up HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{part}"));
            wait_until("the request is under way", Duration::from_secs(5), || {
                upstream.connections() > seen || gateway.metric("tollgate_requests_in_flight") > 0.0
            });
            drop(client);
            gateway.await_metric("tollgate_requests_in_flight", 0.0);
            await_left(&gateway, before - u64::from(!free));
        }
    }
}

#[test]
fn an_answer_to_head_is_whole_without_a_body() {
    let upstream = Upstream::start();
    let gateway = hundred(with_dead(&upstream), "refund = [\"client-abort\"]");
    let before = left(&gateway) - 1;
    assert_eq!(gateway.ask(&Ask::new("HEAD", "/dead")).status, 502);
    assert_eq!(gateway.ask(&Ask::new("HEAD", "/")).status, 200);
    await_left(&gateway, before - 2);
}
