//! Limits on a primary that Sentinels name: another one takes over, and within seconds it decides.

use std::time::{Duration, Instant};

use crate::support::{
    Config, Gateway, Limits, OWN_WORK, RECOVERY, Upstream, Watched, on_sentinel, rule, tollgate, wait_until,
};

/// How long it takes until Sentinels have another primary, and the gateway is there.
const TAKE_OVER: Duration = Duration::from_secs(15);

struct Site {
    gateway: Gateway,
    watched: Watched,
    _upstream: Upstream,
}

impl Site {
    #[track_caller]
    fn new() -> Self {
        let (upstream, watched) = (Upstream::start(), Watched::start(2));
        let gateway = Gateway::start(&config(&upstream, &watched.store("deadline = \"100ms\"")));
        Self {
            gateway,
            watched,
            _upstream: upstream,
        }
    }

    /// What the store says is used, with this request; `None` if it did not decide.
    #[track_caller]
    fn used(&self) -> Option<u64> {
        let began = Instant::now();
        let answer = self.gateway.get("/");
        assert_eq!(answer.status, 200);
        assert!(began.elapsed() < Duration::from_millis(100) + OWN_WORK);
        let limits = Limits::of(&answer);
        (limits.resource == "r").then_some(limits.used)
    }

    /// Waits until the store decides; what is asked meanwhile goes on without it. How long it took.
    #[track_caller]
    fn await_decision(&self) -> u64 {
        let mut used = None;
        wait_until("a decision by the new primary", TAKE_OVER, || {
            used = self.used();
            used.is_some()
        });
        used.unwrap()
    }

    /// Waits until what was charged is also at the replicas.
    #[track_caller]
    fn await_replicas(&self) {
        let primary = &self.watched.servers[0];
        let _: i64 = primary.ask(&["WAIT", "2", "5000"]);
        for replica in &self.watched.servers[1..] {
            let keys = || replica.ask::<usize>(&["DBSIZE"]) == primary.ask::<usize>(&["DBSIZE"]);
            wait_until("the replica is in step", RECOVERY, keys);
        }
    }
}

fn config(upstream: &Upstream, store: &str) -> Config {
    Config::new(upstream)
        .and(store)
        .and(&rule("r", "fixed-window", 1_000_000, "1d", ""))
}

#[test]
fn the_primary_dies_and_the_promoted_one_goes_on_counting() {
    let mut site = Site::new();
    for turn in 1..=5 {
        assert_eq!(site.used(), Some(turn));
    }
    site.await_replicas();
    site.watched.servers[0].kill();
    assert_eq!(site.await_decision(), 6);
    assert_eq!(site.used(), Some(7));
    let ready = site.gateway.admin(&crate::support::Ask::get("/readyz")).text();
    assert!(
        ready.contains("\"mymaster\"") && ready.contains("127.0.0.1:"),
        "{ready}"
    );
}

#[test]
fn a_demoted_primary_is_left_although_its_connections_stay_open() {
    let site = Site::new();
    for turn in 1..=5 {
        assert_eq!(site.used(), Some(turn));
    }
    site.await_replicas();
    let _: String = site.watched.sentinels[0].ask(&["SENTINEL", "FAILOVER", "mymaster"]);
    let old = &site.watched.servers[0];
    let mut decided = 5;
    wait_until("the old primary is a replica", TAKE_OVER, || {
        if site.used().is_some() {
            decided += 1;
        }
        old.ask::<String>(&["INFO", "replication"]).contains("role:slave")
    });
    let used = site.await_decision();
    // What was charged to the old one while the other took over may be lost; nothing is doubled.
    assert!(used <= decided + 1 && used >= 6, "{used} of {decided}");
    assert_eq!(site.used(), Some(used + 1));
}

#[test]
fn a_frozen_primary_is_left_and_its_thaw_changes_nothing() {
    let site = Site::new();
    assert_eq!(site.used(), Some(1));
    site.await_replicas();
    site.watched.servers[0].freeze();
    let used = site.await_decision();
    assert_eq!(used, 2);
    site.watched.servers[0].thaw();
    wait_until("it is a replica", TAKE_OVER, || {
        site.watched.servers[0]
            .ask::<String>(&["INFO", "replication"])
            .contains("role:slave")
    });
    assert_eq!(site.used(), Some(used + 1));
    assert_eq!(site.used(), Some(used + 2));
}

#[test]
fn sentinels_come_and_go() {
    let (upstream, mut watched) = (Upstream::start(), Watched::start(1));
    // One is listed; the others it names.
    let store = on_sentinel(&[watched.sentinels[0].url()], "deadline = \"100ms\"");
    let gateway = Gateway::start(&config(&upstream, &store));
    let used = || {
        let limits = Limits::of(&gateway.get("/"));
        (limits.resource == "r").then_some(limits.used)
    };
    assert_eq!(used(), Some(1));
    let _: i64 = watched.servers[0].ask(&["WAIT", "1", "5000"]);
    // It asks every second: a little later it has heard of the others.
    std::thread::sleep(Duration::from_millis(2_500));
    watched.sentinels[0].kill();
    assert_eq!(used(), Some(2));
    let _: i64 = watched.servers[0].ask(&["WAIT", "1", "5000"]);
    watched.servers[0].kill();
    wait_until("a decision by the new primary", TAKE_OVER, || {
        used().is_some_and(|used| used >= 3)
    });
    // Nobody is left to say where the primary is: it stays where it was.
    for sentinel in &mut watched.sentinels[1..] {
        sentinel.kill();
    }
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(used().is_some());
    watched.sentinels[1].revive();
    assert!(used().is_some());
}

#[test]
fn no_sentinel_at_the_start_is_an_outage_and_a_wrong_name_an_error() {
    let (upstream, mut watched) = (Upstream::start(), Watched::start(0));
    let store = watched.store("");
    let wrong = config(&upstream, &store.replace("mymaster", "other")).text();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, wrong).unwrap();
    let ran = tollgate(&["run", "--config", path.to_str().unwrap()]);
    let error = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{error}");
    assert!(error.contains("knows no master \"other\""), "{error}");

    for sentinel in &mut watched.sentinels {
        sentinel.kill();
    }
    let gateway = Gateway::start(&config(&upstream, &store));
    assert_eq!(Limits::of(&gateway.get("/")).resource, "r;fallback");
    watched.sentinels[2].revive();
    wait_until("a decision by the store", RECOVERY, || {
        Limits::of(&gateway.get("/")).resource == "r"
    });
}
