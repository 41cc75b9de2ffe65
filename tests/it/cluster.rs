//! Limits in a Redis Cluster: whatever happens to its slots, nobody is charged twice, and nobody more than the limit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{
    ALGORITHMS, Ask, Cluster, Config, Gateway, Limits, RECOVERY, Redis, Upstream, check, on_cluster, rule,
    tollgate, wait_until,
};

/// A gateway whose limits are in a cluster.
struct Site {
    gateway: Gateway,
    upstream: Upstream,
    cluster: Cluster,
}

/// Ends the load, also where the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The partitions of a cluster unless its config says another number.
const PARTITIONS: usize = 64;

impl Site {
    #[track_caller]
    fn new(cluster: Cluster, store: &str, tables: &str) -> Self {
        let upstream = Upstream::start();
        let config = Config::new(&upstream)
            .and(&on_cluster(&cluster.urls(), store))
            .and(tables);
        Self {
            gateway: Gateway::start(&config),
            upstream,
            cluster,
        }
    }

    /// Requests of many users until `end` says so: how many were admitted, of how many.
    fn load<T>(&self, users: usize, during: impl FnOnce(&AtomicUsize) -> T) -> (T, usize) {
        let (over, sent, admitted) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        let done = std::thread::scope(|scope| {
            for client in 0..4 {
                let (over, sent, admitted) = (&over, &sent, &admitted);
                scope.spawn(move || {
                    let mut link = self.gateway.client();
                    let mut user = client;
                    while !over.load(Relaxed) {
                        user = (user + 4) % users;
                        let answer = link.ask(&of(user));
                        assert!([200, 429].contains(&answer.status), "{answer:?}");
                        if answer.status == 200 {
                            assert_eq!(answer.must("x-ratelimit-resource"), "wide", "{answer:?}");
                            admitted.fetch_add(1, Relaxed);
                        }
                        sent.fetch_add(1, Relaxed);
                    }
                });
            }
            let _over = Over(&over);
            during(&sent)
        });
        (done, admitted.into_inner())
    }

    /// What all of these users have used.
    fn used(&self, users: usize) -> usize {
        (0..users)
            .map(|user| {
                let limits = Limits::of(&self.gateway.ask(&of(user).field("x-look", "1")));
                usize::try_from(limits.limit - limits.remaining).unwrap() - 1
            })
            .sum()
    }
}

fn of(user: usize) -> Ask {
    Ask::get("/").field("x-user", format!("user-{user}"))
}

/// One rule that has room for all that a test asks.
fn wide() -> String {
    rule(
        "wide",
        "fixed-window",
        1_000_000,
        "1d",
        "key = [\"header:x-user\"]",
    )
}

#[test]
fn two_gateways_on_a_cluster_admit_the_limit_by_each_algorithm() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start(3, 0));
    for algorithm in ALGORITHMS {
        let config = Config::new(&upstream)
            .and(&on_cluster(
                &cluster.urls(),
                &format!("deadline = \"2s\"\nprefix = {algorithm:?}"),
            ))
            .and(&rule("user", algorithm, 10, "1d", "key = [\"header:x-user\"]"));
        // Each knows one server, and finds the others.
        let gateways = [Gateway::start(&config), Gateway::start(&config)];
        for user in 0..30 {
            let admitted = (0..14)
                .filter(|turn| gateways[turn % 2].ask(&of(user)).status == 200)
                .count();
            assert_eq!(admitted, 10, "{algorithm}, user {user}");
        }
    }
    assert_eq!(cluster.keys(), 30 * ALGORITHMS.len());
    let each = cluster.nodes().iter().map(|node| node.ask::<usize>(&["DBSIZE"]));
    assert!(each.into_iter().all(|keys| keys > 10));
}

#[test]
fn one_seed_is_enough_and_may_die() {
    let mut cluster = Cluster::start(3, 0);
    let (upstream, seed) = (Upstream::start(), cluster.urls().split_off(2));
    let config = Config::new(&upstream).and(&on_cluster(&seed, "")).and(&wide());
    let gateway = Gateway::start(&config);
    for user in 0..60 {
        assert_eq!(Limits::of(&gateway.ask(&of(user))).used, 1, "user {user}");
    }
    cluster.nodes_mut()[2].kill();
    let decided = || {
        let used = (0..60).map(|user| {
            let answer = gateway.ask(&of(user));
            assert_eq!(answer.status, 200, "user {user}");
            answer.must("x-ratelimit-resource").ends_with("wide")
        });
        used.filter(|decided| *decided).count()
    };
    wait_until("two thirds are decided by the store again", RECOVERY, || {
        decided() > 30
    });
}

#[test]
fn slots_move_with_their_keys_under_load_and_no_charge_is_lost_or_doubled() {
    let site = Site::new(Cluster::start(2, 0), "partitions = 4\ndeadline = \"2s\"", &wide());
    let cluster = &site.cluster;
    let users = 200;
    let ((), admitted) = site.load(users, |sent| {
        let some = |more: usize| {
            let now = sent.load(Relaxed);
            wait_until("some load", RECOVERY, || sent.load(Relaxed) > now + more);
        };
        some(400);
        for partition in 0..4 {
            let slot = cluster.slot(partition);
            let from = cluster.primary_of(slot);
            cluster.open_slot(slot, from, 1 - from);
            some(100);
            while cluster.move_keys(slot, from, 1 - from, 5) > 0 {
                some(20);
            }
            some(100);
            cluster.close_slot(slot, from, 1 - from);
            some(100);
        }
    });
    assert_eq!(site.used(users), admitted, "of {}", site.upstream.count());
}

#[test]
fn what_a_refused_request_was_charged_elsewhere_is_given_back_also_while_slots_move() {
    let tables = [
        rule("narrow", "fixed-window", 1, "1d", "key = [\"header:x-user\"]"),
        wide(),
    ];
    let site = Site::new(Cluster::start(2, 0), "deadline = \"2s\"", &tables.concat());
    let cluster = &site.cluster;
    let users = 60;
    for user in 0..users {
        assert_eq!(site.gateway.ask(&of(user)).status, 200);
    }
    // Every slot is on its way, and the keys of one half have arrived.
    for partition in 0..PARTITIONS {
        let slot = cluster.slot(partition);
        let from = cluster.primary_of(slot);
        cluster.open_slot(slot, from, 1 - from);
        if partition % 2 == 0 {
            cluster.move_keys(slot, from, 1 - from, 100);
        }
    }
    // Of each user, this is the first that is refused: both rules are asked. After it the narrow one is asked alone.
    for _ in 0..2 {
        for user in 0..users {
            assert_eq!(site.gateway.ask(&of(user)).status, 429);
        }
    }
    // Without the narrow rule, the wide one shows what it was charged.
    let config = Config::new(&site.upstream)
        .and(&on_cluster(&cluster.urls(), "deadline = \"2s\""))
        .and(&tables[1]);
    site.gateway.reload(&config);
    for user in 0..users {
        let used = Limits::of(&site.gateway.ask(&of(user))).used;
        assert_eq!(used, 2, "user {user}");
    }
    let calls = |command: &str| -> f64 {
        cluster
            .nodes()
            .iter()
            .map(|node| node.stat(command, "calls"))
            .sum()
    };
    assert!(calls("asking") > 30.0, "no key was asked for on its way");
}

#[test]
fn a_replica_that_is_asked_to_take_over_does_so_without_a_loss() {
    let site = Site::new(Cluster::start(3, 1), "deadline = \"2s\"", &wide());
    let users = 60;
    let ((), admitted) = site.load(users, |sent| {
        for primary in 0..3 {
            let now = sent.load(Relaxed);
            wait_until("some load", RECOVERY, || sent.load(Relaxed) > now + 200);
            let replica = site.cluster.replica_of(primary);
            let _: String = replica.ask(&["CLUSTER", "FAILOVER"]);
            wait_until("it is the primary", Duration::from_secs(10), || {
                replica
                    .ask::<String>(&["INFO", "replication"])
                    .contains("role:master")
            });
        }
        let now = sent.load(Relaxed);
        wait_until("some load", RECOVERY, || sent.load(Relaxed) > now + 200);
    });
    assert_eq!(site.used(users), admitted);
}

#[test]
fn a_frozen_primary_is_left_for_the_replica_that_takes_over_and_the_others_notice_nothing() {
    let site = Site::new(Cluster::start(3, 1), "deadline = \"100ms\"", &wide());
    let users: Vec<usize> = (0..60).collect();
    let home = |user: &usize| {
        let counts = |site: &Site| -> Vec<usize> {
            let primaries = &site.cluster.nodes()[..3];
            primaries
                .iter()
                .map(|node| node.ask::<usize>(&["DBSIZE"]))
                .collect()
        };
        let before = counts(&site);
        assert_eq!(Limits::of(&site.gateway.ask(&of(*user))).used, 1);
        let after = counts(&site);
        (0..3).find(|place| after[*place] > before[*place]).unwrap()
    };
    let (on_frozen, on_others): (Vec<usize>, Vec<usize>) = users.iter().partition(|user| home(user) == 1);
    assert!(on_frozen.len() > 5 && on_others.len() > 20);
    wait_until("the replica is in step", RECOVERY, || {
        site.cluster.replica_of(1).ask::<usize>(&["DBSIZE"]) == on_frozen.len()
    });
    site.cluster.nodes()[1].freeze();
    let frozen = Instant::now();
    let mut turns = 1;
    loop {
        turns += 1;
        for user in &on_others {
            let answer = site.gateway.ask(&of(*user));
            assert_eq!(Limits::of(&answer).used, turns, "a key on a server that is well");
        }
        let decided = on_frozen.iter().filter(|user| {
            let answer = site.gateway.ask(&of(**user));
            assert_eq!(answer.status, 200);
            answer.must("x-ratelimit-limit") == "1000000"
        });
        if decided.count() == on_frozen.len() {
            break;
        }
        assert!(frozen.elapsed() < Duration::from_secs(15), "no recovery");
    }
    let used = |user: usize| Limits::of(&site.gateway.ask(&of(user))).used;
    let before: Vec<u64> = on_frozen.iter().map(|user| used(*user)).collect();
    site.cluster.nodes()[1].thaw();
    wait_until("the old primary follows", Duration::from_secs(10), || {
        site.cluster.nodes()[1]
            .ask::<String>(&["INFO", "replication"])
            .contains("role:slave")
    });
    for (user, before) in on_frozen.iter().zip(before) {
        assert_eq!(used(*user), before + 1);
    }
}

#[test]
fn each_server_that_froze_for_a_moment_decides_again() {
    let site = Site::new(Cluster::start(3, 0), "deadline = \"100ms\"", &wide());
    let decided = || {
        let answers = (0..40).map(|user| site.gateway.ask(&of(user)));
        answers
            .filter(|answer| {
                assert_eq!(answer.status, 200);
                answer.must("x-ratelimit-resource") == "wide"
            })
            .count()
    };
    assert_eq!(decided(), 40);
    for node in site.cluster.nodes() {
        // Shorter than what the cluster calls a failure: it stays the primary.
        node.freeze();
        let series = format!("tollgate_store_degraded{{shard=\"127.0.0.1:{}\"}}", node.port());
        let frozen = Instant::now();
        wait_until("it is known to be in trouble", RECOVERY, || {
            decided();
            site.gateway.metric(&series) > 0.0
        });
        node.thaw();
        assert!(frozen.elapsed() < Duration::from_secs(5));
        wait_until("all decide again", RECOVERY, || decided() == 40);
        assert!(site.gateway.metric(&series) < 1.0);
    }
}

#[test]
fn a_call_names_keys_of_one_slot_and_users_do_not_choose_it() {
    let site = Site::new(Cluster::start(3, 0), "deadline = \"2s\"", &wide());
    for text in ["{1}", "}{2}", "{user}:1", "{}", "a}b{c"] {
        let ask = Ask::get("/").field("x-user", text);
        assert_eq!(Limits::of(&site.gateway.ask(&ask)).used, 1, "{text}");
        assert_eq!(Limits::of(&site.gateway.ask(&ask)).used, 2, "{text}");
    }
    for node in site.cluster.nodes() {
        for key in node.ask::<Vec<String>>(&["KEYS", "*"]) {
            let tag = key.split(['{', '}']).nth(1).unwrap();
            assert!(tag.parse::<usize>().unwrap() < PARTITIONS, "{key}");
        }
    }
}

#[test]
fn a_list_of_the_wrong_kind_says_so() {
    let (alone, cluster, upstream) = (Redis::start(), Cluster::start(1, 0), Upstream::start());
    let refused = |store: &str| {
        let config = Config::new(&upstream).and(store).and(&wide()).text();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        std::fs::write(&path, config).unwrap();
        let ran = tollgate(&["run", "--config", path.to_str().unwrap()]);
        assert_eq!(ran.status.code(), Some(1));
        String::from_utf8(ran.stderr).unwrap()
    };
    let error = refused(&on_cluster(&[alone.url()], ""));
    assert!(
        error.contains("it belongs to no cluster: list it under `shards`"),
        "{error}"
    );
    let shards = format!("[store]\nkind = \"redis\"\nshards = {:?}\n", cluster.urls());
    let error = refused(&shards);
    assert!(
        error.contains("it belongs to a cluster: list it under `cluster`"),
        "{error}"
    );
    let (code, error) = check(&on_cluster(&cluster.urls(), "database = 1"));
    assert_eq!(code, 1);
    assert!(error.contains("`database`"), "{error}");
}
