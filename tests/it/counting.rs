//! How many requests get through: exactly as many as the limits say, whatever the order, protocol or concurrency.

use crate::support::{ALGORITHMS, Answer, Ask, Config, Gateway, H2, Limits, Upstream, rule};

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

fn admitted(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// A rule for each algorithm, on a path of its own.
fn a_rule_each(limit: u64, window: &str, lines: &str) -> String {
    ALGORITHMS
        .iter()
        .map(|algorithm| {
            let lines = format!("match = {{ path = \"/{algorithm}\" }}\n{lines}");
            rule(algorithm, algorithm, limit, window, &lines)
        })
        .collect()
}

#[test]
fn each_algorithm_admits_exactly_its_limit_and_counts_down() {
    for limit in [1, 2, 5, 50] {
        let upstream = Upstream::start();
        let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(limit, "10m", "")));
        for algorithm in ALGORITHMS {
            let mut client = gateway.client();
            let target = format!("/{algorithm}");
            for left in (0..limit).rev() {
                let answer = client.get(&target);
                assert_eq!(answer.status, 200, "{algorithm} with {left} left of {limit}");
                let limits = Limits::of(&answer);
                assert_eq!(
                    (limits.limit, limits.remaining, limits.resource.as_str()),
                    (limit, left, algorithm)
                );
                assert_eq!(limits.retry_after, None);
            }
            for _ in 0..3 {
                let answer = client.get(&target);
                assert_eq!(answer.status, 429, "{algorithm} over {limit}");
                assert_eq!(Limits::of(&answer).remaining, 0, "{algorithm}");
            }
            assert_eq!(upstream.count_of(&target), limit as usize, "{algorithm}");
        }
    }
}

#[test]
fn a_flood_over_http1_admits_exactly_the_limit() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .server("workers = 2")
            .and(&a_rule_each(7, "10m", "")),
    );
    for algorithm in ["fixed-window", "sliding-log"] {
        let target = format!("/{algorithm}");
        let request = Ask::get(&target).bytes();
        let mut clients: Vec<_> = (0..300).map(|_| gateway.client()).collect();
        for client in &mut clients {
            client.send(&request);
        }
        let answers: Vec<_> = clients.iter_mut().map(|client| client.answer()).collect();
        assert_eq!(admitted(&answers), 7, "{algorithm}");
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 429).count(),
            293,
            "{algorithm}: {:?}",
            statuses(&answers)
        );
        assert_eq!(upstream.count_of(&target), 7, "{algorithm}");
        let mut left: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == 200)
            .map(|answer| Limits::of(answer).remaining)
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [0, 1, 2, 3, 4, 5, 6],
            "{algorithm}: each admission has a number of its own"
        );
    }
}

#[test]
fn a_flood_over_http2_admits_exactly_the_limit() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(7, "10m", "")));
    for algorithm in ["fixed-window", "sliding-log"] {
        let target = format!("/{algorithm}");
        let mut connections: Vec<_> = (0..5).map(|_| H2::connect(gateway.addr())).collect();
        let streams: Vec<_> = connections
            .iter_mut()
            .map(|connection| {
                (0..60)
                    .map(|_| connection.open(&Ask::get(&target), true).unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        let answers: Vec<_> = connections
            .iter()
            .zip(streams)
            .flat_map(|(connection, streams)| {
                streams
                    .into_iter()
                    .map(|stream| connection.answer(stream).unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(answers.len(), 300);
        assert_eq!(admitted(&answers), 7, "{algorithm}");
        assert_eq!(upstream.count_of(&target), 7, "{algorithm}");
    }
}

#[test]
fn a_cost_is_taken_as_a_whole() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(20, "10m", "cost = 6")));
    for algorithm in ALGORITHMS {
        let answers: Vec<_> = (0..5).map(|_| gateway.get(&format!("/{algorithm}"))).collect();
        assert_eq!(statuses(&answers), [200, 200, 200, 429, 429], "{algorithm}");
        let left: Vec<_> = answers
            .iter()
            .map(|answer| Limits::of(answer).remaining)
            .collect();
        assert_eq!(
            left,
            [14, 8, 2, 2, 2],
            "{algorithm}: a rejection takes nothing and shows what is left"
        );
    }
}

#[test]
fn cost_zero_is_always_admitted_and_takes_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(1, "10m", "cost = 0")));
    for algorithm in ALGORITHMS {
        for _ in 0..3 {
            let answer = gateway.get(&format!("/{algorithm}"));
            assert_eq!(answer.status, 200, "{algorithm}");
            let limits = Limits::of(&answer);
            assert_eq!((limits.remaining, limits.t(algorithm)), (1, None), "{algorithm}");
        }
    }
}

#[test]
fn two_rules_with_one_key_have_a_counter_each() {
    for (first, second) in [("fixed-window", "fixed-window"), ("sliding-log", "token-bucket")] {
        let upstream = Upstream::start();
        let gateway = Gateway::start(
            &Config::new(&upstream)
                .and(&rule("minute", first, 5, "1m", "key = [\"ip\"]"))
                .and(&rule("day", second, 50, "1d", "key = [\"ip\"]")),
        );
        for left in (0..5).rev() {
            let limits = Limits::of(&gateway.get("/"));
            assert_eq!((limits.r("minute"), limits.r("day")), (left, left + 45));
        }
        let refused = gateway.get("/");
        assert_eq!(refused.status, 429);
        assert_eq!(
            refused.problem()["violated-policies"],
            serde_json::json!(["minute"])
        );
        assert_eq!(
            Limits::of(&refused).r("day"),
            45,
            "a refusal takes nothing elsewhere"
        );
    }
}

#[test]
fn one_rule_on_two_routes_is_one_counter() {
    let upstream = Upstream::start();
    let routes = "[[route]]\npath = \"/a/{*rest}\"\nupstream = \"api\"\n[[route]]\npath = \"/b/{*rest}\"\nupstream = \"api\"\n";
    let gateway =
        Gateway::start(
            &Config::new(&upstream)
                .and(routes)
                .and(&rule("all", "fixed-window", 4, "1m", "")),
        );
    let answers: Vec<_> = ["/a/1", "/b/1", "/a/2", "/b/2", "/a/3", "/b/3"]
        .map(|target| gateway.get(target))
        .into();
    assert_eq!(statuses(&answers), [200, 200, 200, 200, 429, 429]);
}

#[test]
fn a_general_rule_is_charged_once_beside_a_special_one() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("all", "fixed-window", 10, "1m", "key = [\"ip\"]"))
            .and(&rule(
                "a",
                "fixed-window",
                100,
                "1m",
                "key = [\"ip\"]\nmatch = { path = \"/a\" }",
            ))
            .and(&rule(
                "any",
                "fixed-window",
                100,
                "1m",
                "key = [\"ip\"]\nmatch = { path = \"/{x}\" }",
            )),
    );
    let answers: Vec<_> = (0..11).map(|_| gateway.get("/a")).collect();
    assert_eq!(admitted(&answers), 10);
    let last = Limits::of(&answers[10]);
    assert_eq!((last.r("all"), last.r("a"), last.r("any")), (0, 90, 90));
}

#[test]
fn what_one_rule_rejects_burns_no_other_quota() {
    for algorithm in ALGORITHMS {
        let upstream = Upstream::start();
        let gateway = Gateway::start(
            &Config::new(&upstream)
                .and(&rule("group", algorithm, 10, "10m", ""))
                .and(&rule(
                    "special",
                    algorithm,
                    3,
                    "10m",
                    "match = { path = \"/special\" }",
                )),
        );
        let special: Vec<_> = (0..5).map(|_| gateway.get("/special")).collect();
        assert_eq!(statuses(&special), [200, 200, 200, 429, 429], "{algorithm}");
        let plain: Vec<_> = (0..9).map(|_| gateway.get("/plain")).collect();
        assert_eq!(admitted(&plain), 7, "{algorithm}");
        assert_eq!(upstream.count(), 10, "{algorithm}: what is refused stays here");
    }
}

#[test]
fn large_limits_are_shown_to_the_digit() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 4_398_046_511_103, "1d", "")));
    let limits = Limits::of(&gateway.get("/"));
    assert_eq!(
        (limits.limit, limits.remaining),
        (4_398_046_511_103, 4_398_046_511_102)
    );
}

#[test]
fn rules_decided_in_the_process_and_in_the_store_are_one_table() {
    let upstream = Upstream::start();
    for (group, special) in [("gateway", "store"), ("store", "gateway"), ("gateway", "gateway")] {
        let gateway = Gateway::start(
            &Config::new(&upstream)
                .server("workers = 2")
                .and(&rule(
                    "group",
                    "fixed-window",
                    10,
                    "1h",
                    &format!("scope = \"{group}\""),
                ))
                .and(&rule(
                    "special",
                    "sliding-log",
                    3,
                    "1h",
                    &format!("scope = \"{special}\"\nmatch = {{ path = \"/special\" }}"),
                )),
        );
        let answers: Vec<_> = (0..5).map(|_| gateway.get("/special")).collect();
        assert_eq!(statuses(&answers), [200, 200, 200, 429, 429]);
        // The first: of what Redis refused just now, the gateway speaks alone.
        let refused = Limits::of(&answers[3]);
        if gateway.shares_limits() && (group, special) == ("store", "gateway") {
            // What is refused in the process is not asked of the store, which then has nothing to say.
            assert!(!refused.has("group"), "{refused:?}");
        } else {
            assert_eq!(refused.r("group"), 7, "{group}, {special}");
        }
        let plain: Vec<_> = (0..9).map(|_| gateway.get("/plain")).collect();
        assert_eq!(admitted(&plain), 7, "{group}, {special}");
    }
}
