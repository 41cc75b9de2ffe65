//! Limits on requests in flight: never more at the upstream, and a slot is free as soon as its request is over.

use std::time::Duration;

use crate::support::{
    Answer, Ask, Config, Gate, Gateway, H2, Upstream, rule, standard, threads, unused_port, wait_until,
};

fn slots(limit: u64, lines: &str) -> String {
    let key = if lines.contains("key =") { "" } else { "key = []\n" };
    format!("[[rule]]\nname = \"slots\"\nalgorithm = \"concurrency\"\nlimit = {limit}\n{key}{lines}\n")
}

/// An upstream that answers under /held when the gate opens, under /half with half a body before that.
fn held(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::script(move |exchange| match exchange.request.target.as_str() {
        "/held" => {
            exchange.body();
            gate.wait();
            exchange.reply(200, "", b"held\n");
        }
        "/half" => {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            gate.wait();
            exchange.write("half");
        }
        "/part" => {
            exchange.part(4);
            gate.wait();
        }
        _ => standard(exchange),
    })
}

/// What is shown as left, with what every answer of such a limiter must be.
#[track_caller]
fn left(answer: &Answer, limit: u64) -> u64 {
    let number = |name| answer.must(name).parse::<u64>().unwrap();
    let remaining = number("x-ratelimit-remaining");
    assert_eq!(number("x-ratelimit-limit"), limit);
    assert_eq!(number("x-ratelimit-used"), limit - remaining);
    assert_eq!(answer.must("x-ratelimit-resource"), "slots");
    assert_eq!(answer.field("x-ratelimit-reset"), None);
    assert_eq!(
        answer.must("ratelimit-policy"),
        format!("\"slots\";q={limit};qu=\"concurrent-requests\"")
    );
    assert_eq!(answer.must("ratelimit"), format!("\"slots\";r={remaining}"));
    remaining
}

/// Waits until nothing is in flight but the request that asks.
#[track_caller]
fn await_free(gateway: &Gateway, limit: u64) {
    wait_until("all slots are free", Duration::from_secs(5), || {
        left(&gateway.get("/probe"), limit) == limit - 1
    });
}

#[test]
fn no_more_than_the_limit_are_at_the_upstream() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let config = Config::new(&upstream)
        .server("workers = 2")
        .and(&slots(5, "match = { path = \"/held\" }"));
    let gateway = Gateway::start(&config);
    let answers = std::thread::scope(|scope| {
        let asking = scope.spawn(|| threads((0..20).collect(), |_: i32| gateway.get("/held")));
        gateway.await_metric(
            "tollgate_decisions_total{rule=\"slots\",verdict=\"reject\"}",
            15.0,
        );
        upstream.await_count(5);
        assert_eq!(gateway.get("/held").status, 429);
        gate.open();
        asking.join().unwrap()
    });
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 5);
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((refused.status, left(refused, 5)), (429, 0));
        assert_eq!(refused.must("retry-after"), "1");
        assert_eq!(
            refused.problem()["violated-policies"],
            serde_json::json!(["slots"])
        );
    }
    assert_eq!(upstream.count(), 5);
    assert_eq!(left(&gateway.get("/held"), 5), 4, "all is free again");
    assert_eq!(upstream.count(), 6);
}

/// An upstream under everything, and one under /dead that nobody answers for.
fn failing(upstream: &Upstream) -> Config {
    Config::new(upstream).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\n[upstream.api.timeouts]\nresponse = \"300ms\"\n\
         [upstream.dead]\ntargets = [\"http://{}\"]\n\
         [[route]]\npath = \"/dead\"\nupstream = \"dead\"\n[[route]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        upstream.addr(),
        unused_port()
    ))
}

#[test]
fn a_slot_is_free_once_its_answer_is_complete() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&failing(&upstream).and(&slots(1, "")));
    let asks = [
        (Ask::get("/"), 200),
        (Ask::get("/status/204"), 204),
        (Ask::get("/status/304"), 304),
        (Ask::get("/status/500"), 500),
        (Ask::new("HEAD", "/"), 200),
        (Ask::new("HEAD", "/dead"), 502),
        (Ask::get("/trailers").field("TE", "trailers"), 200),
        (Ask::post("/echo", vec![b'x'; 100_000]), 200),
        (Ask::post("/echo-chunked", vec![b'x'; 100_000]), 200),
        (Ask::get("/slow/20"), 200),
        (Ask::get("/dead"), 502),
        (Ask::get("/close"), 502),
        (Ask::get("/hang"), 504),
    ];
    for _ in 0..3 {
        let (mut h1, mut h2) = (gateway.client(), H2::connect(gateway.addr()));
        for (ask, status) in &asks {
            let answer = h1.ask(ask);
            assert_eq!((answer.status, left(&answer, 1)), (*status, 0), "{ask:?}");
            if ask.method != "HEAD" {
                let answer = h2.ask(ask);
                assert_eq!(
                    (answer.status, left(&answer, 1)),
                    (*status, 0),
                    "{ask:?} over HTTP/2"
                );
            }
        }
    }
    assert_eq!(
        gateway.metric("tollgate_refunds_total{outcome=\"upstream-error\",rule=\"slots\"}"),
        0.0,
        "a release is no refund"
    );
}

#[test]
fn a_client_that_leaves_at_any_stage_frees_its_slot() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(&Config::new(&upstream).and(&slots(6, "")));
    let start = |ask: &Ask, bytes: usize| {
        let (mut client, before) = (gateway.client(), upstream.count());
        client.send(&ask.bytes()[..ask.bytes().len() - bytes]);
        upstream.await_count(before + 1);
        client
    };
    start(&Ask::get("/held"), 0).reset();
    drop(start(&Ask::get("/held"), 0));
    start(&Ask::post("/part", vec![b'x'; 10]), 6).reset();
    drop(start(&Ask::post("/part", vec![b'x'; 10]), 6));
    await_free(&gateway, 6);
    let mut half = start(&Ask::get("/half"), 0);
    assert_eq!(left(&half.head(), 6), 5);
    half.exactly(4).unwrap();
    half.reset();
    await_free(&gateway, 6);
    let mut h2 = H2::connect(gateway.addr());
    let before = upstream.count();
    let (waiting, reading) = (
        h2.open(&Ask::get("/held"), true).unwrap(),
        h2.open(&Ask::get("/half"), true).unwrap(),
    );
    upstream.await_count(before + 2);
    wait_until("both hold a slot", Duration::from_secs(5), || {
        left(&gateway.get("/probe"), 6) == 3
    });
    h2.cancel(waiting);
    h2.cancel(reading);
    await_free(&gateway, 6);
    // A connection takes its streams with it.
    let before = upstream.count();
    let _held = h2.open(&Ask::get("/held"), true).unwrap();
    upstream.await_count(before + 1);
    drop(h2);
    await_free(&gateway, 6);
    gate.open();
}

#[test]
fn cancelling_over_and_over_keeps_no_slot() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(&Config::new(&upstream).and(&slots(4, "")));
    for round in 0..10 {
        let mut h2 = H2::connect(gateway.addr());
        for _ in 0..20 {
            let stream = h2.open(&Ask::get("/held"), true).unwrap();
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            h2.cancel(stream);
        }
        let mut client = gateway.client();
        client.send(Ask::get("/held").bytes());
        client.reset();
    }
    await_free(&gateway, 4);
    gate.open();
}

#[test]
fn a_reload_keeps_count_of_what_is_in_flight() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let config = |rules: &str| Config::new(&upstream).and(rules);
    let gateway = Gateway::start(&config(&slots(3, "")));
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(Ask::get("/held").bytes());
    }
    upstream.await_count(3);
    for (rules, limit) in [(slots(2, ""), 2), (String::new(), 0), (slots(3, "cost = 1"), 3)] {
        gateway.reload(&config(&rules));
        let answer = gateway.get("/");
        if limit == 0 {
            assert_eq!(answer.status, 200, "the rule is gone");
        } else {
            assert_eq!((answer.status, left(&answer, limit)), (429, 0));
        }
    }
    gateway.reload(&config(&slots(4, "")));
    assert_eq!(left(&gateway.get("/"), 4), 0, "a raised limit acts at once");
    gate.open();
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(left(&gateway.get("/"), 4), 3, "releases went to the same key");
}

#[test]
fn what_another_rule_refuses_holds_no_slot() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&slots(2, ""))
            .and(&rule("few", "fixed-window", 3, "1d", "visible = false"))
            .and(&slots(1, "dry_run = true").replace("\"slots\"", "\"dry\"")),
    );
    for status in [200, 200, 200, 429, 429, 429] {
        let answer = gateway.get("/");
        let remaining = if status == 200 { 1 } else { 2 };
        assert_eq!((answer.status, left(&answer, 2)), (status, remaining));
    }
    gateway.await_metric(
        "tollgate_decisions_total{rule=\"dry\",verdict=\"dry_reject\"}",
        0.0,
    );
}

#[test]
fn each_caller_has_slots_of_its_own_and_a_dry_run_only_counts() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&slots(1, "key = [\"header:x-user\"]"))
            .and(&slots(1, "dry_run = true").replace("\"slots\"", "\"dry\"")),
    );
    let by = |user: &str| Ask::get("/held").field("X-User", user);
    let mut clients = ["ann", "bob"].map(|user| {
        let mut client = gateway.client();
        client.send(by(user).bytes());
        client
    });
    upstream.await_count(2);
    assert_eq!(gateway.ask(&by("ann")).status, 429);
    gateway.await_metric(
        "tollgate_decisions_total{rule=\"dry\",verdict=\"dry_reject\"}",
        2.0,
    );
    gate.open();
    for client in &mut clients {
        assert_eq!(left(&client.answer(), 1), 0);
    }
    assert_eq!(gateway.ask(&by("ann")).status, 200);
    let admitted = gateway.metric("tollgate_decisions_total{rule=\"dry\",verdict=\"admit\"}");
    assert!(
        (admitted - 2.0).abs() < 0.1,
        "its own slot was released: {admitted}"
    );
    gateway.await_metric("tollgate_store_keys", 0.0);
}
