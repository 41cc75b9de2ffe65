//! Who was just refused is refused again without asking Redis, and nobody is refused who has room.

use std::time::{Duration, Instant};

use crate::support::{
    Ask, Config, Fault, Faulty, Gateway, Limits, RECOVERY, Redis, Upstream, on_redis, rule, threads,
    wait_until,
};

/// A gateway some way from its Redis.
struct Site {
    gateway: Gateway,
    redis: Redis,
    proxy: Faulty,
    upstream: Upstream,
}

impl Site {
    #[track_caller]
    fn new(tables: &str) -> Self {
        let (upstream, redis) = (Upstream::start(), Redis::start());
        let proxy = Faulty::before(redis.port());
        proxy.set(Fault::Delay(Duration::from_millis(5)));
        let gateway = Gateway::start(&Self::config(&upstream, &proxy, tables));
        Self {
            gateway,
            redis,
            proxy,
            upstream,
        }
    }

    fn config(upstream: &Upstream, proxy: &Faulty, tables: &str) -> Config {
        Config::new(upstream)
            .and(&on_redis(&[&proxy.url()], "deadline = \"2s\""))
            .and(tables)
    }

    /// Another gateway on the same Redis.
    #[track_caller]
    fn other(&self, tables: &str) -> Gateway {
        Gateway::start(&Self::config(&self.upstream, &self.proxy, tables))
    }

    /// Script calls so far.
    fn calls(&self) -> f64 {
        self.redis.stat("evalsha", "calls")
    }

    /// Uses a limit of so many up.
    #[track_caller]
    fn exhaust(&self, ask: &Ask, limit: usize) {
        for _ in 0..limit {
            assert_eq!(self.gateway.ask(ask).status, 200);
        }
        assert_eq!(self.gateway.ask(ask).status, 429);
    }
}

fn per_user(limit: u64, window: &str, lines: &str) -> String {
    let lines = format!("key = [\"header:x-user\"]\n{lines}");
    rule("r", "fixed-window", limit, window, &lines)
}

fn of(user: &str) -> Ask {
    Ask::get("/").field("x-user", user)
}

const SHED: &str = "tollgate_decisions_total{rule=\"r\",verdict=\"shed\"}";

#[test]
fn a_key_over_its_limit_costs_one_call_each_quarter_of_a_second() {
    let site = Site::new(&per_user(5, "1d", ""));
    site.exhaust(&of("a"), 5);
    let (calls, began) = (site.calls(), Instant::now());
    threads((0..16).collect(), |_: usize| {
        let mut link = site.gateway.client();
        for _ in 0..312 {
            assert_eq!(link.ask(&of("a")).status, 429);
        }
    });
    let most = began.elapsed().as_secs_f64() / 0.25;
    let calls = site.calls() - calls;
    assert!(calls <= most + 1.0, "{calls} calls in {:?}", began.elapsed());
    let shed = site.gateway.metric(SHED);
    assert!(shed >= 4_900.0, "{shed} were shed");
}

#[test]
fn where_nothing_is_given_back_nobody_asks_until_there_is_room() {
    let site = Site::new(&per_user(2, "2s", "refund = []"));
    let asked = Instant::now();
    site.exhaust(&of("a"), 2);
    let calls = site.calls();
    while asked.elapsed() < Duration::from_millis(1_600) {
        let answer = site.gateway.ask(&of("a"));
        assert_eq!(answer.status, 429);
        let left = Duration::from_secs(2).saturating_sub(asked.elapsed());
        let wait = Duration::from_secs(Limits::of(&answer).retry_after.unwrap());
        assert!(
            wait + Duration::from_millis(50) >= left && wait <= left + Duration::from_millis(1_100),
            "{wait:?} of {left:?}"
        );
    }
    assert_eq!(site.calls(), calls);
    wait_until("there is room", RECOVERY, || {
        site.gateway.ask(&of("a")).status == 200
    });
    assert!(
        asked.elapsed() < Duration::from_millis(2_300),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn a_refusal_is_told_again_as_the_store_told_it() {
    for algorithm in [
        "fixed-window",
        "sliding-window",
        "sliding-log",
        "token-bucket",
        "gcra",
    ] {
        let tables = rule("r", algorithm, 2, "1h", "key = [\"header:x-user\"]\nburst = 2");
        let tables = match algorithm {
            "token-bucket" | "gcra" => tables,
            _ => tables.replace("\nburst = 2", ""),
        };
        let site = Site::new(&tables);
        site.exhaust(&of("a"), 2);
        let first = Limits::of(&site.gateway.ask(&of("a")));
        for _ in 0..20 {
            let again = Limits::of(&site.gateway.ask(&of("a")));
            assert_eq!(
                (again.limit, again.remaining, again.reset),
                (first.limit, 0, first.reset),
                "{algorithm}"
            );
            assert!(
                again.retry_after <= first.retry_after
                    && again.retry_after.unwrap() + 1 >= first.retry_after.unwrap()
            );
        }
        assert!(site.gateway.metric(SHED) > 10.0, "{algorithm}");
    }
}

#[test]
fn a_smaller_cost_and_another_limit_are_asked_for() {
    let tables = |limit: u64, lines: &str| {
        let of = |name: &str, path: &str, cost: u64| {
            rule(
                name,
                "fixed-window",
                limit,
                "1d",
                &format!(
                    "match = {{ path = \"{path}\" }}\nkey = [\"header:x-user\"]\ncost = {cost}\n{lines}"
                ),
            )
        };
        of("r", "/{x}", 4)
    };
    let site = Site::new(&tables(10, "refund = []"));
    let ask = Ask::get("/a").field("x-user", "a");
    site.exhaust(&ask, 2);
    // Of ten, two are left: the cost is halved by a reload, and then the limit raised, and then it is somebody's own.
    let config = |tables: &str| Site::config(&site.upstream, &site.proxy, tables);
    site.gateway.reload(&config(
        &tables(10, "refund = []").replace("cost = 4", "cost = 2"),
    ));
    assert_eq!(site.gateway.ask(&ask).status, 200);
    assert_eq!(site.gateway.ask(&ask).status, 429);
    site.gateway.reload(&config(
        &tables(14, "refund = []").replace("cost = 4", "cost = 2"),
    ));
    assert_eq!(site.gateway.ask(&ask).status, 200);
    assert_eq!(site.gateway.ask(&ask).status, 200);
    assert_eq!(site.gateway.ask(&ask).status, 429);
    let own = "refund = []\noverride = [{ key = \"a\", limit = 16 }]";
    site.gateway
        .reload(&config(&tables(14, own).replace("cost = 4", "cost = 2")));
    assert_eq!(site.gateway.ask(&ask).status, 200);
    assert_eq!(site.gateway.ask(&ask).status, 429);
}

#[test]
fn a_refund_made_here_is_known_at_once_and_one_made_elsewhere_soon() {
    let tables = per_user(1, "1d", "refund = [503]");
    let site = Site::new(&tables);
    let other = site.other(&tables);
    for user in ["a", "b", "c"] {
        let mut first = site.gateway.client();
        first.send(Ask::get("/after/600/503").field("x-user", user).bytes());
        let before = site.upstream.count();
        wait_until("it is on its way", RECOVERY, || {
            site.upstream.count() > before || site.upstream.count() > 0
        });
        wait_until("both refuse", RECOVERY, || {
            site.gateway.ask(&of(user)).status == 429 && other.ask(&of(user)).status == 429
        });
        assert_eq!(site.gateway.ask(&of(user)).status, 429);
        assert_eq!(first.answer().status, 503);
        let answered = Instant::now();
        if user == "b" {
            wait_until("the other gateway knows", RECOVERY, || {
                other.ask(&of(user)).status == 200
            });
            assert!(
                answered.elapsed() < Duration::from_millis(700),
                "{:?}",
                answered.elapsed()
            );
        } else {
            assert_eq!(
                site.gateway.ask(&of(user)).status,
                200,
                "of the same worker or another, a round trip later"
            );
        }
    }
}

#[test]
fn it_can_be_turned_off() {
    let site = Site::new(&format!(
        "[edge]\nmax_staleness = \"0ms\"\n{}",
        per_user(2, "1d", "")
    ));
    site.exhaust(&of("a"), 2);
    let calls = site.calls();
    for _ in 0..10 {
        assert_eq!(site.gateway.ask(&of("a")).status, 429);
    }
    assert!(site.calls() >= calls + 10.0);
    assert!(site.gateway.metric(SHED) < 1.0);
}

#[test]
fn a_dry_run_is_never_shed_and_what_is_refused_here_burns_nothing() {
    let tables = [
        per_user(1, "1d", "dry_run = true"),
        rule(
            "cut",
            "fixed-window",
            3,
            "1d",
            "key = [\"header:x-user\"]\nscope = \"gateway\"",
        ),
        rule(
            "late",
            "fixed-window",
            5,
            "1d",
            "key = [\"header:x-user\"]\nmatch = { path = \"/late\" }",
        ),
    ];
    let site = Site::new(&tables.concat());
    let statuses: Vec<u16> = (0..5).map(|_| site.gateway.ask(&of("a")).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert!(site.gateway.metric(SHED) < 1.0);
    // Refused by the edge, a request leaves no charge with the rule that is decided here.
    for _ in 0..3 {
        assert_eq!(
            site.gateway.ask(&Ask::get("/late").field("x-user", "b")).status,
            200
        );
    }
    let answer = site.gateway.ask(&Ask::get("/late").field("x-user", "b"));
    assert_eq!(
        (answer.status, Limits::of(&answer).resource.as_str()),
        (429, "cut")
    );
}
