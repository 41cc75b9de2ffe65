//! Limits on several primaries that share the keys.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{
    ALGORITHMS, Answer, Ask, Config, Fault, Faulty, Gateway, Limits, OWN_WORK, RECOVERY, Redis, Upstream,
    on_redis, rule, threads, wait_until,
};

/// A gateway whose limits are on three primaries.
struct Site {
    gateway: Gateway,
    shards: Vec<Redis>,
    upstream: Upstream,
}

impl Site {
    #[track_caller]
    fn new(store: &str, tables: &str) -> Self {
        let shards: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
        let upstream = Upstream::start();
        let config = config(&upstream, &shards, store, tables);
        Self {
            gateway: Gateway::start(&config),
            shards,
            upstream,
        }
    }

    /// The place of the shard that this request's key is at home on, which it is the first to ask for.
    #[track_caller]
    fn home(&self, ask: &Ask) -> usize {
        let before = sizes(&self.shards);
        assert_eq!(Limits::of(&self.gateway.ask(ask)).used, 1);
        let after = sizes(&self.shards);
        (0..3).find(|place| after[*place] > before[*place]).unwrap()
    }

    fn ready(&self) -> serde_json::Value {
        let answer = self.gateway.admin(&Ask::get("/readyz"));
        serde_json::from_str(&answer.text()).unwrap()
    }
}

fn config(upstream: &Upstream, shards: &[Redis], store: &str, tables: &str) -> Config {
    let urls: Vec<String> = shards.iter().map(Redis::url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    Config::new(upstream).and(&on_redis(&urls, store)).and(tables)
}

fn sizes(shards: &[Redis]) -> Vec<usize> {
    shards.iter().map(|shard| shard.ask(&["DBSIZE"])).collect()
}

fn of(user: usize) -> Ask {
    Ask::get("/").field("x-user", format!("user-{user}"))
}

fn per_user(name: &str, limit: u64, lines: &str) -> String {
    let lines = format!("key = [\"header:x-user\"]\n{lines}");
    rule(name, "fixed-window", limit, "1d", &lines)
}

/// Calls that decide, on one shard.
fn decisions(shard: &Redis) -> f64 {
    shard.stat("evalsha", "calls")
}

#[test]
fn keys_are_spread_and_two_gateways_admit_the_limit_by_each_algorithm() {
    for algorithm in ALGORITHMS {
        let tables = rule("user", algorithm, 10, "1d", "key = [\"header:x-user\"]");
        let site = Site::new("deadline = \"2s\"", &tables);
        let other = Gateway::start(&config(
            &site.upstream,
            &site.shards,
            "deadline = \"2s\"",
            &tables,
        ));
        for user in 0..30 {
            let gateways = [&site.gateway, &other];
            let admitted = (0..14)
                .filter(|turn| gateways[turn % 2].ask(&of(user)).status == 200)
                .count();
            assert_eq!(admitted, 10, "{algorithm}, user {user}");
        }
        let sizes = sizes(&site.shards);
        assert_eq!(sizes.iter().sum::<usize>(), 30, "{algorithm}");
        assert!(sizes.iter().all(|size| *size > 0), "{algorithm}: {sizes:?}");
    }
}

#[test]
fn a_flood_over_limiters_on_several_shards_admits_no_more_than_the_narrowest_and_burns_nothing_else() {
    // Four limiters, whose keys are wherever they fall; the narrowest is not the first in the table.
    let tables = [
        per_user("a", 60, ""),
        per_user("b", 25, ""),
        per_user("c", 40, ""),
        per_user("d", 50, ""),
    ];
    let site = Site::new("deadline = \"2s\"", &tables.concat());
    let other = Gateway::start(&config(
        &site.upstream,
        &site.shards,
        "deadline = \"2s\"",
        &tables.concat(),
    ));
    for user in 0..6 {
        let admitted = threads((0..8).collect(), |client: usize| {
            let mut link = [&site.gateway, &other][client % 2].client();
            (0..10).filter(|_| link.ask(&of(user)).status == 200).count()
        });
        let admitted: usize = admitted.into_iter().sum();
        // While a charge is held that will be given back, another request may be refused early; none is admitted too many.
        assert!((20..=25).contains(&admitted), "{admitted}");
        let mut more = 0;
        wait_until("all that was given back is there again", RECOVERY, || {
            let answer = site.gateway.ask(&of(user));
            more += usize::from(answer.status == 200);
            answer.status == 429
        });
        assert_eq!(admitted + more, 25);
        for table in [&tables[0], &tables[2], &tables[3]] {
            site.gateway
                .reload(&config(&site.upstream, &site.shards, "deadline = \"2s\"", table));
            let used = Limits::of(&site.gateway.ask(&of(user))).used;
            assert_eq!(used, 26, "user {user}: {table}");
        }
        site.gateway.reload(&config(
            &site.upstream,
            &site.shards,
            "deadline = \"2s\"",
            &tables.concat(),
        ));
    }
}

#[test]
fn the_limiter_that_refused_last_is_asked_first_and_alone() {
    // Without the edge, which would not ask at all.
    let edge = "[edge]\nmax_staleness = \"0ms\"\n".to_owned();
    let tables = [edge, per_user("wide", 1_000, ""), per_user("narrow", 1, "")].concat();
    let site = Site::new("deadline = \"2s\"", &tables);
    let split = (0..20).find(|user| {
        let before = sizes(&site.shards);
        assert_eq!(site.gateway.ask(&of(*user)).status, 200);
        let after = sizes(&site.shards);
        after
            .iter()
            .zip(before)
            .filter(|(after, before)| *after > before)
            .count()
            == 2
    });
    let user = split.expect("a user whose keys are on two shards");
    assert_eq!(site.gateway.ask(&of(user)).status, 429);
    let before: Vec<f64> = site.shards.iter().map(decisions).collect();
    for _ in 0..20 {
        let answer = site.gateway.ask(&of(user));
        assert_eq!(answer.status, 429);
        let limits = Limits::of(&answer);
        assert_eq!((limits.resource.as_str(), limits.remaining), ("narrow", 0));
    }
    let after: Vec<f64> = site.shards.iter().map(decisions).collect();
    let more: Vec<f64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    // The first refusal is settled by the other shard.
    assert_eq!(more.iter().filter(|calls| **calls >= 20.0).count(), 1, "{more:?}");
    assert!(more.iter().sum::<f64>() <= 21.0, "{more:?}");
}

#[test]
fn the_latest_of_all_waits_is_told_and_it_is_honest() {
    let tables = [
        rule("short", "fixed-window", 1, "2s", "key = [\"header:x-user\"]"),
        rule("long", "fixed-window", 1, "4s", "key = [\"header:x-user\"]"),
    ];
    let site = Site::new("deadline = \"2s\"", &tables.concat());
    let users: Vec<usize> = (0..8).collect();
    threads(users, |user| {
        let mut link = site.gateway.client();
        assert_eq!(link.ask(&of(user)).status, 200);
        // Both refuse at first; later only one of them is asked, and it is the one that refuses longer.
        let mut waits = Vec::new();
        for _ in 0..3 {
            let answer = link.ask(&of(user));
            assert_eq!(answer.status, 429);
            waits.push(Limits::of(&answer).retry_after.unwrap());
        }
        assert!(waits.iter().all(|wait| (3..=4).contains(wait)), "{waits:?}");
        std::thread::sleep(Duration::from_secs(*waits.last().unwrap()));
        assert_eq!(link.ask(&of(user)).status, 200);
    });
}

/// Whether a store decided, and not what stands in for it.
fn is_decided(answer: &Answer) -> bool {
    answer
        .field("x-ratelimit-resource")
        .is_some_and(|resource| !resource.ends_with(";fallback"))
}

#[test]
fn one_of_three_is_down_and_the_others_decide_as_ever() {
    let mut site = Site::new(
        "deadline = \"100ms\"",
        &per_user("user", 1_000, "outage_share = 0.005"),
    );
    let mut homes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for user in 0..60 {
        homes.entry(site.home(&of(user))).or_default().push(user);
    }
    site.shards[1].kill();
    let dead = site.shards[1].url();
    let dead = dead.trim_start_matches("redis://");
    let live: Vec<usize> = [&homes[&0][..], &homes[&2][..]].concat();
    let mut slowest = Duration::ZERO;
    for turn in 2..=4 {
        for user in &homes[&1] {
            let answer = site.gateway.ask(&of(*user));
            assert_eq!(answer.status, 200, "user {user}");
            assert!(!is_decided(&answer), "{answer:?}");
        }
        for user in &live {
            let began = Instant::now();
            let answer = site.gateway.ask(&of(*user));
            slowest = slowest.max(began.elapsed());
            assert!(is_decided(&answer), "{answer:?}");
            assert_eq!(Limits::of(&answer).used, turn, "user {user}");
        }
    }
    assert!(slowest < OWN_WORK, "{slowest:?}");
    let series = format!("tollgate_store_degraded{{shard=\"{dead}\"}}");
    site.gateway.await_metric(&series, 1.0);
    let ready = site.ready();
    let troubled = ready["store"]["shards"].as_array().unwrap();
    let troubled = troubled.iter().filter(|shard| !shard["trouble"].is_null());
    assert_eq!(troubled.count(), 1, "{ready}");
    // No key of the dead one went to another.
    assert_eq!(sizes(&[site.shards.remove(0)]), [homes[&0].len()]);
}

#[test]
fn a_request_on_a_dead_and_a_live_shard_leaves_no_charge_where_it_is_refused() {
    let tables = |outage: &str| [per_user("one", 1_000, outage), per_user("two", 1_000, outage)].concat();
    let mut site = Site::new("deadline = \"100ms\"", &tables("on_outage = \"deny\""));
    // A user whose two keys are on two shards, of which one dies.
    let mut split = None;
    for user in 0..40 {
        let before = sizes(&site.shards);
        assert_eq!(site.gateway.ask(&of(user)).status, 200);
        let after = sizes(&site.shards);
        let grown: Vec<usize> = (0..3).filter(|place| after[*place] > before[*place]).collect();
        if let [one, other] = grown[..] {
            split = Some((user, one, other));
            break;
        }
    }
    let (user, dead, live) = split.unwrap();
    site.shards[dead].kill();
    let url = site.shards[dead].url();
    let series = format!(
        "tollgate_store_degraded{{shard=\"{}\"}}",
        url.trim_start_matches("redis://")
    );
    wait_until("the dead one is known", RECOVERY, || {
        let answer = site.gateway.ask(&of(user));
        assert_eq!(answer.status, 503);
        site.gateway.metric(&series) > 0.0
    });
    let calls = decisions(&site.shards[live]);
    for _ in 0..20 {
        let answer = site.gateway.ask(&of(user));
        assert_eq!(answer.status, 503);
        assert!(answer.field("retry-after").is_some());
    }
    assert!(
        decisions(&site.shards[live]) >= calls + 20.0,
        "the live one is asked"
    );
    // What the live one was charged was given back each time.
    site.gateway.reload(&config(
        &site.upstream,
        &site.shards,
        "deadline = \"100ms\"",
        &tables("on_outage = \"allow\""),
    ));
    let answer = site.gateway.ask(&of(user));
    assert_eq!(answer.status, 200);
    assert_eq!(Limits::of(&answer).used, 2, "{answer:?}");
    // And it comes back as it was never away.
    site.shards[dead].revive();
    wait_until("both decide", RECOVERY, || {
        let answer = site.gateway.ask(&of(user));
        answer.must("ratelimit").contains("\"one\"") && answer.must("ratelimit").contains("\"two\"")
    });
}

#[test]
fn a_further_shard_takes_its_share_and_the_others_keep_theirs() {
    let tables = per_user("user", 1_000, "");
    let mut site = Site::new("deadline = \"2s\"", &tables);
    let users = 120;
    let homes: Vec<usize> = (0..users).map(|user| site.home(&of(user))).collect();
    let hash = site.ready()["store"]["shards_hash"].clone();
    site.shards.push(Redis::start());
    site.gateway.reload(&config(
        &site.upstream,
        &site.shards,
        "deadline = \"2s\"",
        &tables,
    ));
    assert_ne!(site.ready()["store"]["shards_hash"], hash);
    let moved = (0..users).filter(|user| match Limits::of(&site.gateway.ask(&of(*user))).used {
        1 => true,
        2 => false,
        used => panic!("user {user} has used {used}"),
    });
    let moved = moved.count();
    assert!((10..=60).contains(&moved), "{moved} of {users}");
    let sizes = sizes(&site.shards);
    let before: Vec<usize> = (0..3)
        .map(|place| homes.iter().filter(|home| **home == place).count())
        .collect();
    assert_eq!(sizes[..3], before, "only the new one has new keys");
    assert_eq!(sizes[3], moved);
    // The order of the list does not matter.
    site.shards.reverse();
    let hash = site.ready()["store"]["shards_hash"].clone();
    site.gateway.reload(&config(
        &site.upstream,
        &site.shards,
        "deadline = \"2s\"",
        &tables,
    ));
    assert_eq!(site.ready()["store"]["shards_hash"], hash);
    for user in 0..users {
        assert!(Limits::of(&site.gateway.ask(&of(user))).used >= 2, "user {user}");
    }
}

#[test]
fn failing_calls_open_no_more_connections_than_one_a_worker_and_shard() {
    let shards: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    let proxies: Vec<Faulty> = shards.iter().map(|shard| Faulty::before(shard.port())).collect();
    let urls: Vec<String> = proxies.iter().map(Faulty::url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let upstream = Upstream::start();
    let config = Config::new(&upstream)
        .server("workers = 2")
        .and(&on_redis(&urls, "deadline = \"2s\""))
        .and(&per_user("user", 1_000_000, ""));
    let gateway = Gateway::start(&config);
    let looks: Vec<usize> = proxies.iter().map(Faulty::connects).collect();
    let fault = Fault::Answer {
        text: "-ERR now and then\r\n".to_owned(),
        of: 5,
    };
    proxies.iter().for_each(|proxy| proxy.set(fault.clone()));
    let decided = threads((0..8).collect(), |client: usize| {
        let mut link = gateway.client();
        let turns = 0..500;
        turns
            .filter(|turn| {
                let answer = link.ask(&of(client * 1_000 + turn % 50));
                assert_eq!(answer.status, 200);
                is_decided(&answer)
            })
            .count()
    });
    let decided: usize = decided.into_iter().sum();
    assert!(
        (2_000..3_900).contains(&decided),
        "{decided} of 4000 were decided"
    );
    for (proxy, looks) in proxies.iter().zip(looks) {
        assert!(proxy.connects() - looks <= 2, "{} connections", proxy.connects());
    }
}
