//! Several gateways on one Redis decide as one.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    ALGORITHMS, Ask, Config, Fault, Faulty, Gateway, Limits, RECOVERY, Redis, Site, Upstream, on_redis, rule,
    threads, wait_until,
};

/// Two gateways with the same config on one server.
struct Two {
    gateways: [Gateway; 2],
    redis: Redis,
    upstream: Upstream,
}

impl Two {
    #[track_caller]
    fn new(tables: &str) -> Self {
        let (upstream, redis) = (Upstream::start(), Redis::start());
        let config = Config::new(&upstream)
            .and(&on_redis(&[&redis.url()], "deadline = \"2s\""))
            .and(tables);
        Self {
            gateways: [Gateway::start(&config), Gateway::start(&config)],
            redis,
            upstream,
        }
    }

    /// So many requests at once, half of them to each; how many were admitted.
    #[track_caller]
    fn flood(&self, clients: usize, each: usize, ask: &Ask) -> usize {
        let admitted = threads((0..clients).collect(), |client| {
            let mut link = self.gateways[client % 2].client();
            (0..each)
                .filter(|_| {
                    let answer = link.ask(ask);
                    assert!([200, 429].contains(&answer.status), "{answer:?}");
                    answer.status == 200
                })
                .count()
        });
        admitted.into_iter().sum()
    }
}

/// Every key that the gateways left, with its time to live in milliseconds.
fn keys(redis: &Redis) -> Vec<(String, i64)> {
    let names: Vec<String> = redis.ask(&["KEYS", "*"]);
    names
        .into_iter()
        .map(|name| {
            let left = redis.ask(&["PTTL", &name]);
            (name, left)
        })
        .collect()
}

#[test]
fn a_flood_over_two_gateways_gets_the_limit_and_no_more() {
    for algorithm in ALGORITHMS {
        let two = Two::new(&rule("r", algorithm, 20, "1d", ""));
        assert_eq!(two.flood(20, 15, &Ask::get("/")), 20, "{algorithm}");
        assert_eq!(two.upstream.count(), 20, "{algorithm}");
        let keys = keys(&two.redis);
        assert_eq!(keys.len(), 1, "{algorithm}: one key for one limiter: {keys:?}");
        assert!(
            keys[0].1 > 0 && keys[0].1 <= 2 * 86_400_000,
            "{algorithm}: {keys:?}"
        );
    }
}

#[test]
fn a_flood_of_a_dearer_request_gets_its_share() {
    for algorithm in ALGORITHMS {
        let two = Two::new(&rule("r", algorithm, 20, "1d", "cost = 5"));
        assert_eq!(two.flood(10, 6, &Ask::get("/")), 4, "{algorithm}");
    }
}

#[test]
fn both_tell_the_same_numbers() {
    for algorithm in ALGORITHMS {
        let two = Two::new(&rule("r", algorithm, 10, "1d", ""));
        let told: Vec<Limits> = (0..10)
            .map(|turn| Limits::of(&two.gateways[turn % 2].get("/")))
            .collect();
        let left: Vec<u64> = told.iter().map(|limits| limits.remaining).collect();
        assert_eq!(left, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "{algorithm}");
        let rejections: Vec<Limits> = (0..6)
            .map(|turn| {
                let answer = two.gateways[turn % 2].get("/");
                assert_eq!(answer.status, 429);
                Limits::of(&answer)
            })
            .collect();
        let resets: BTreeSet<u64> = rejections.iter().map(|limits| limits.reset).collect();
        assert_eq!(resets.len(), 1, "{algorithm}: the reset wobbles: {resets:?}");
    }
}

#[test]
fn what_one_gives_back_the_other_has() {
    for algorithm in ALGORITHMS {
        let two = Two::new(&rule("r", algorithm, 10, "1d", "refund = [304, 503]"));
        let [one, other] = &two.gateways;
        let left = |gateway: &Gateway| Limits::of(&gateway.get("/")).remaining;
        assert_eq!(left(one), 9);
        for _ in 0..20 {
            let answer = one.get("/status/503");
            assert_eq!(answer.status, 503, "{algorithm}");
            assert_eq!(
                Limits::of(&answer).remaining,
                9,
                "{algorithm}: shown as given back"
            );
        }
        wait_until("the refund", RECOVERY, || {
            let settled = two.redis.stat("evalsha", "calls") + two.redis.stat("eval", "calls");
            settled >= 41.0
        });
        assert_eq!(left(other), 8, "{algorithm}");
    }
}

#[test]
fn a_rejected_request_burns_no_other_quota() {
    let tables = [
        rule("group", "fixed-window", 10, "1d", ""),
        rule(
            "special",
            "sliding-log",
            3,
            "1d",
            "match = { path = \"/special\" }",
        ),
    ]
    .concat();
    let two = Two::new(&tables);
    let special: Vec<u16> = (0..5)
        .map(|turn| two.gateways[turn % 2].get("/special").status)
        .collect();
    assert_eq!(special, [200, 200, 200, 429, 429]);
    assert_eq!(two.flood(2, 10, &Ask::get("/")), 7);
}

#[test]
fn two_prefixes_and_two_databases_never_meet() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let gateway = |store: &str| {
        let config = Config::new(&upstream).and(&on_redis(&[&redis.url()], store));
        Gateway::start(&config.and(&rule("r", "fixed-window", 5, "1d", "")))
    };
    let apart = [
        "",
        "prefix = \"other\"",
        "database = 1",
        "database = 2",
        "prefix = \"toll\"",
    ]
    .map(gateway);
    for turn in 0..6 {
        for gateway in &apart {
            let expected = if turn < 5 { 200 } else { 429 };
            assert_eq!(gateway.get("/").status, expected);
        }
    }
    let names = keys(&redis);
    assert_eq!(names.len(), 3, "{names:?}");
    for prefix in ["tollgate:", "other:", "toll:"] {
        let of = names.iter().filter(|(name, _)| name.starts_with(prefix)).count();
        assert_eq!(of, 1, "{prefix} in {names:?}");
    }
}

#[test]
fn who_leaves_while_it_waits_shifts_nobody() {
    let site = Site::with(
        "deadline = \"2s\"",
        &rule("r", "fixed-window", 1_000, "1d", "key = [\"header:x-user\"]"),
    );
    let user = |name: usize| Ask::get("/").field("x-user", format!("user-{name}"));
    // The first call is on its way; the others wait together for the next.
    site.proxy.set(Fault::Delay(Duration::from_millis(150)));
    let mut clients: Vec<_> = (0..30).map(|_| site.gateway.client()).collect();
    for (name, client) in clients.iter_mut().enumerate() {
        client.send(user(name).bytes());
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut stayed = Vec::new();
    for (name, client) in clients.into_iter().enumerate() {
        if name % 2 == 0 {
            client.reset();
        } else {
            stayed.push((name, client));
        }
    }
    for (name, mut client) in stayed {
        assert_eq!(Limits::of(&client.answer()).remaining, 999, "user-{name}");
    }
    site.proxy.set(Fault::None);
    let mut looks = 0;
    wait_until("what the others were charged is given back", RECOVERY, || {
        looks += 1;
        let left: Vec<u64> = (0..30)
            .step_by(2)
            .map(|name| Limits::of(&site.gateway.ask(&user(name))).remaining)
            .collect();
        // Each look is charged itself.
        left.iter().all(|left| *left == 1_000 - looks)
    });
}

#[test]
fn a_gateway_that_is_killed_leaves_nothing_immortal() {
    for algorithm in ALGORITHMS {
        let mut two = Two::new(&rule("r", algorithm, 10_000, "1m", "key = [\"header:x-user\"]"));
        let users: Vec<usize> = (0..8).collect();
        std::thread::scope(|scope| {
            for user in &users {
                let addr = two.gateways[0].addr();
                scope.spawn(move || {
                    let ask = Ask::get("/").field("x-user", user.to_string()).bytes();
                    while let Ok(mut link) = std::net::TcpStream::connect(addr) {
                        use std::io::{Read, Write};
                        let mut answer = [0; 64];
                        while link.write_all(&ask).is_ok()
                            && link.read(&mut answer).is_ok_and(|read| read > 0)
                        {}
                    }
                });
            }
            wait_until("some load", RECOVERY, || two.upstream.count() > 50);
            two.gateways[0].signal(Signal::KILL);
            two.gateways[0].ended_within(RECOVERY);
        });
        let keys = keys(&two.redis);
        assert!(!keys.is_empty());
        for (name, left) in keys {
            assert!(left > 0 && left <= 121_000, "{algorithm}: {name} lives {left} ms");
        }
        assert_eq!(two.gateways[1].get("/").status, 200);
    }
}

#[test]
fn a_reload_keeps_the_links_and_the_counts() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let proxy = Faulty::before(redis.port());
    let config = |limit| {
        let config = Config::new(&upstream).and(&on_redis(&[&proxy.url()], "deadline = \"2s\""));
        config.and(&rule("r", "fixed-window", limit, "1d", ""))
    };
    let gateway = Gateway::start(&config(100));
    for _ in 0..10 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let connects = proxy.connects();
    for (limit, left) in [(50, 39), (200, 188), (100, 87)] {
        gateway.reload(&config(limit));
        assert_eq!(Limits::of(&gateway.get("/")).remaining, left, "of {limit}");
    }
    gateway.reload(&config(13));
    assert_eq!(
        gateway.get("/").status,
        429,
        "what was used counts against the new limit"
    );
    assert_eq!(proxy.connects(), connects);
}

#[test]
fn what_is_owed_at_the_end_of_a_gateway_is_given_back() {
    let mut two = Two::new(&rule("r", "fixed-window", 10, "1d", "refund = [503]"));
    let [one, other] = &mut two.gateways;
    let mut last = one.client();
    last.send(Ask::get("/after/400/503").bytes());
    two.upstream.await_count(1);
    one.term();
    assert_eq!(last.answer().status, 503);
    assert!(one.ended_within(Duration::from_secs(10)).success());
    assert_eq!(Limits::of(&other.get("/")).remaining, 9);
}
