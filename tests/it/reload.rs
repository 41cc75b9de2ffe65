//! A new config: in force at once and as a whole, or not at all; and nobody's count is forgotten.

use std::time::{Duration, Instant};

use crate::support::{
    ALGORITHMS, Ask, Config, Gateway, Limits, Upstream, assert_no_limits, rule, standard, wait_until,
};

#[test]
fn a_reload_forgets_nobody() {
    let upstream = Upstream::start();
    let base = || Config::new(&upstream);
    let rules: Vec<_> = ALGORITHMS
        .iter()
        .map(|algorithm| {
            let lines = format!("match = {{ path = \"/{algorithm}\" }}");
            rule(algorithm, algorithm, 5, "1h", &lines)
        })
        .collect();
    let all = rules.concat();
    let gateway = Gateway::start(&base().and(&all));
    for algorithm in ALGORITHMS {
        for _ in 0..5 {
            assert_eq!(gateway.get(&format!("/{algorithm}")).status, 200);
        }
    }
    let backwards: String = rules.iter().rev().cloned().collect();
    for config in [
        base().and(&all),
        base().and("# a remark").and(&all),
        base()
            .and("[[route]]\nupstream = \"api\"\n[[route]]\npath = \"/new\"\nupstream = \"api\"\n")
            .and(&all),
        base().and(&backwards),
        base().and(&rule("more", "fixed-window", 100, "1m", "")).and(&all),
        base().and(&all),
    ] {
        gateway.reload(&config);
        for algorithm in ALGORITHMS {
            let answer = gateway.get(&format!("/{algorithm}"));
            assert_eq!(answer.status, 429, "{algorithm} after {}", config.text());
        }
    }
    assert!(gateway.metric("tollgate_config_reloads_total{result=\"ok\"}") >= 6.0);
}

#[test]
fn a_changed_limit_is_in_force_for_the_next_request() {
    let upstream = Upstream::start();
    for algorithm in ALGORITHMS {
        let config = |limit: u64| Config::new(&upstream).and(&rule("r", algorithm, limit, "1h", ""));
        let gateway = Gateway::start(&config(10));
        let mut client = gateway.client();
        for _ in 0..6 {
            assert_eq!(client.get("/").status, 200);
        }
        gateway.reload(&config(100));
        let limits = Limits::of(&client.get("/"));
        assert_eq!((limits.limit, limits.remaining), (100, 93), "{algorithm} raised");
        gateway.reload(&config(8));
        let limits = Limits::of(&client.get("/"));
        assert_eq!((limits.limit, limits.remaining), (8, 0), "{algorithm} lowered");
        gateway.reload(&config(2));
        let refused = client.get("/");
        assert_eq!(refused.status, 429, "{algorithm} lowered below what is used");
        let limits = Limits::of(&refused);
        assert_eq!((limits.limit, limits.remaining), (2, 0), "{algorithm}");
        let wait = limits.retry_after.unwrap();
        let most = if algorithm == "sliding-window" {
            7_200
        } else {
            6 * 3_600
        };
        assert!((1..=most).contains(&wait), "{algorithm}: Retry-After {wait}");
        gateway.reload(&config(9));
        assert_eq!(
            client.get("/").status,
            200,
            "{algorithm}: raised again, room for one"
        );
        assert_eq!(client.get("/").status, 429, "{algorithm}");
    }
}

#[test]
fn a_refusal_is_not_remembered_against_a_raised_limit() {
    let upstream = Upstream::start();
    let config =
        |limit: u64| Config::new(&upstream).and(&rule("r", "fixed-window", limit, "1h", "refund = []"));
    let gateway = Gateway::start(&config(1));
    assert_eq!(gateway.get("/").status, 200);
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 429);
    }
    gateway.reload(&config(3));
    let limits = Limits::of(&gateway.get("/"));
    assert_eq!((limits.limit, limits.remaining), (3, 1));
}

#[test]
fn a_lowered_log_says_when_enough_entries_have_left() {
    let upstream = Upstream::start();
    let config = |limit: u64| Config::new(&upstream).and(&rule("r", "sliding-log", limit, "2s", ""));
    let gateway = Gateway::start(&config(20));
    let mut client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.get("/").status, 200);
    }
    std::thread::sleep(Duration::from_millis(800));
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
    }
    gateway.reload(&config(3));
    let refused = client.get("/");
    let asked = Instant::now();
    assert_eq!(refused.status, 429);
    let wait = Limits::of(&refused).retry_after.unwrap();
    assert_eq!(wait, 2, "only a later entry's leaving makes room");
    std::thread::sleep(Duration::from_secs(wait).saturating_sub(asked.elapsed()));
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_bad_config_changes_nothing_and_is_explained() {
    let upstream = Upstream::start();
    let good = Config::new(&upstream).and(&rule("r", "fixed-window", 5, "1h", ""));
    let gateway = Gateway::start(&good);
    assert_eq!(gateway.get("/").status, 200);
    for (bad, why) in [
        (
            Config::new(&upstream).and(&rule("r", "fixed-windw", 50, "1h", "")),
            "fixed-window",
        ),
        (
            Config::new(&upstream).and(&rule("r", "fixed-window", 0, "1h", "")),
            "limit",
        ),
        (Config::new(&upstream).and("this is not TOML"), ""),
        (
            Config::new(&upstream).and("[[route]]\nupstream = \"nowhere\"\n"),
            "nowhere",
        ),
    ] {
        let line = gateway.reload_refused(&bad);
        assert!(line.contains("ERROR"), "{line}");
        assert!(line.contains(why), "{why} is not in: {line}");
        assert!(line.contains("gateway.toml:"), "no place in: {line}");
        let limits = Limits::of(&gateway.get("/"));
        assert_eq!(limits.limit, 5, "the old rules hold");
    }
    assert!(gateway.metric("tollgate_config_reloads_total{result=\"refused\"}") >= 4.0);
    gateway.reload(&good);
    assert_eq!(gateway.get("/").status, 429, "1 + 4 were used");
}

#[test]
fn what_needs_a_restart_is_said_to() {
    let upstream = Upstream::start();
    let rules = rule("r", "fixed-window", 5, "1h", "");
    let gateway = Gateway::start(&Config::new(&upstream).and(&rules));
    for changed in [
        Config::new(&upstream).server("workers = 2").and(&rules),
        Config::new(&upstream).admin("listen = \"\"").and(&rules),
    ] {
        let line = gateway.reload_refused(&changed);
        assert!(line.contains("needs a restart"), "{line}");
    }
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn a_changed_file_is_noticed_without_a_signal() {
    let upstream = Upstream::start();
    let config = |limit: u64| Config::new(&upstream).and(&rule("r", "fixed-window", limit, "1h", ""));
    let gateway = Gateway::start(&config(5));
    let from = gateway.write(&config(50));
    gateway.await_log_from(from, "reloaded");
    assert_eq!(Limits::of(&gateway.get("/")).limit, 50);
}

#[test]
fn rules_and_routes_come_and_go() {
    let upstream = Upstream::start();
    let other = Upstream::script(|exchange| exchange.reply(200, "", b"other\n"));
    let plain = Config::new(&upstream);
    let gateway = Gateway::start(&plain);
    assert_no_limits(&gateway.get("/"));
    let both = Config::new(&upstream).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\n[upstream.other]\ntargets = [\"http://{}\"]\n\
         [[route]]\nupstream = \"api\"\n[[route]]\npath = \"/other\"\nupstream = \"other\"\n",
        upstream.addr(),
        other.addr()
    ));
    gateway.reload(&both.and(&rule("r", "fixed-window", 5, "1h", "")));
    let answer = gateway.get("/other");
    assert_eq!(answer.text(), "other\n");
    assert_eq!(Limits::of(&answer).remaining, 4);
    gateway.reload(&plain);
    let answer = gateway.get("/other");
    assert_eq!(answer.text(), "GET /other\n");
    assert_no_limits(&answer);
}

#[test]
fn requests_under_way_live_through_a_reload() {
    let upstream = Upstream::script(|exchange| {
        if exchange.request.target == "/held" {
            std::thread::sleep(Duration::from_millis(500));
            exchange.reply(200, "", b"held\n");
        } else {
            standard(exchange);
        }
    });
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 50, "1h", "")));
    let mut kept = gateway.client();
    assert_eq!(kept.get("/").status, 200);
    let mut waiting: Vec<_> = (0..10)
        .map(|_| {
            let mut client = gateway.client();
            client.send(Ask::get("/held").bytes());
            client
        })
        .collect();
    upstream.await_count(11);
    gateway.reload(&Config::new(&upstream).and(&rule("r", "fixed-window", 60, "1h", "")));
    for client in &mut waiting {
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "held\n"));
        assert_eq!(Limits::of(&answer).limit, 50, "decided under the old config");
    }
    let limits = Limits::of(&kept.get("/"));
    assert_eq!(
        (limits.limit, limits.remaining),
        (60, 48),
        "the connection was kept"
    );
    wait_until("nothing is in flight", Duration::from_secs(5), || {
        gateway.metric("tollgate_requests_in_flight") < 0.5
    });
}

#[test]
fn level_and_format_of_the_log_change_with_the_config() {
    let upstream = Upstream::start();
    let config = |log: &str| Config::new(&upstream).log(log);
    let gateway = Gateway::start(&config("level = \"info\""));
    gateway.get("/quiet");
    gateway.reload(&config("level = \"debug\"\nformat = \"json\""));
    gateway.get("/loud");
    let line = gateway.await_log("\"DEBUG\"");
    assert!(line.starts_with('{'), "{line}");
    assert_eq!(
        gateway.log().matches("\"DEBUG\"").count(),
        1,
        "only what came after: {}",
        gateway.log()
    );
}

#[test]
fn profiles_and_trusted_proxies_are_exchanged_with_the_rules() {
    let upstream = Upstream::start();
    let rules = rule("r", "fixed-window", 100, "1h", "key = [\"ip\"]");
    let gateway = Gateway::start(&Config::new(&upstream).and(&rules));
    let ask = Ask::get("/").field("X-Forwarded-For", "1.2.3.4");
    assert_eq!(Limits::of(&gateway.ask(&ask)).remaining, 99);
    gateway.reload(
        &Config::new(&upstream)
            .server("workers = 1\ntrusted_proxies = [\"127.0.0.1\"]")
            .and("[headers]\nsend = [\"draft\"]\n")
            .and(&rules),
    );
    let answer = gateway.ask(&ask);
    assert_eq!(answer.field("x-ratelimit-remaining"), None);
    assert!(
        answer.must("ratelimit").starts_with("\"r\";r=99;"),
        "{}",
        answer.must("ratelimit")
    );
    assert_eq!(
        upstream.last().field("x-forwarded-for").as_deref(),
        Some("1.2.3.4, 127.0.0.1")
    );
}

#[test]
fn counts_stay_exact_while_reloads_come_one_after_another() {
    let upstream = Upstream::start();
    let config = |remark: u32| {
        Config::new(&upstream)
            .server("workers = 2")
            .and(&format!("# {remark}"))
            .and(&rule("other", "gcra", 1_000, "1h", ""))
            .and(&rule("r", "sliding-window", 5_000, "1d", ""))
    };
    let gateway = Gateway::start(&config(0));
    let done = std::sync::atomic::AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = gateway.client();
                    let mut count = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) && count < 300 {
                        assert_eq!(client.get("/").status, 200);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for remark in 1..=15 {
            gateway.reload(&config(remark));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum::<u64>()
    });
    let last = Limits::of(&gateway.get("/"));
    assert_eq!(last.r("r"), 5_000 - count - 1, "{count} requests were answered");
}

#[test]
fn a_rule_that_starts_afresh_is_named() {
    let upstream = Upstream::start();
    let config =
        |window: &str, limit| Config::new(&upstream).and(&rule("mine", "fixed-window", limit, window, ""));
    let gateway = Gateway::start(&config("1d", 5));
    gateway.get("/");
    gateway.reload(&config("1d", 9));
    assert_eq!(Limits::of(&gateway.get("/")).remaining, 7);
    assert!(!gateway.log().contains("afresh"), "{}", gateway.log());
    gateway.reload(&config("2d", 9));
    gateway.await_log("starts afresh");
    assert!(gateway.log().contains("rule=\"mine\""), "{}", gateway.log());
    assert_eq!(Limits::of(&gateway.get("/")).remaining, 8);
}
