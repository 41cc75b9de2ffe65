//! The user and the password that Redis wants: rotated by a reload, and wrong ones.

use std::collections::BTreeSet;

use crate::support::{
    Config, Gateway, Limits, RECOVERY, Redis, Upstream, on_redis, threads, three, wait_until,
};

/// A server with a user for the gateway, and two workers, which have connections of their own.
struct Site {
    redis: Redis,
    upstream: Upstream,
}

impl Site {
    fn new() -> Self {
        let redis = Redis::start();
        redis.ask::<()>(&["ACL", "SETUSER", "gate", "on", ">old", "~tollgate:*", "+@all"]);
        Self {
            redis,
            upstream: Upstream::start(),
        }
    }

    /// A config whose `password` is written like that.
    fn config(&self, password: &str) -> Config {
        let lines = format!("deadline = \"1s\"\nusername = \"gate\"\npassword = {password:?}");
        let store = on_redis(&[&self.redis.url()], &lines);
        let config = Config::new(&self.upstream).server("workers = 2");
        config.and(&store).and(&three())
    }

    /// The password becomes another one; whoever is logged in stays so.
    fn rotate(&self, from: &str, to: &str) {
        let (from, to) = (format!("<{from}"), format!(">{to}"));
        self.redis.ask::<()>(&["ACL", "SETUSER", "gate", &to, &from]);
    }

    /// The numbers of the connections that are logged in as the gateway.
    fn connections(&self) -> BTreeSet<u64> {
        let list: String = self.redis.ask(&["CLIENT", "LIST"]);
        let ours = list.lines().filter(|line| line.contains(" user=gate "));
        let number = |line: &str| line.strip_prefix("id=")?.split(' ').next()?.parse().ok();
        ours.map(|line| number(line).unwrap()).collect()
    }
}

/// What so many requests on connections of their own are answered, so that both workers have some.
#[track_caller]
fn statuses(gateway: &Gateway) -> BTreeSet<u16> {
    let answers = threads((0..8).collect(), |_: usize| {
        (0..5).map(|_| gateway.get("/deny").status).collect::<Vec<u16>>()
    });
    answers.into_iter().flatten().collect()
}

/// Rotates the password from `old` to `new` under load, with what the config says before and after.
fn rotate(site: &Site, gateway: &Gateway, after: &Config) {
    assert_eq!(statuses(gateway), BTreeSet::from([200]));
    let before = site.connections();
    assert!(!before.is_empty());
    site.rotate("old", "new");
    gateway.reload(after);
    assert_eq!(statuses(gateway), BTreeSet::from([200]));
    wait_until("the old connections are gone", RECOVERY, || {
        site.connections().is_disjoint(&before)
    });
    assert!(!site.connections().is_empty());
    let used = 1_000 - Limits::of(&gateway.get("/deny")).remaining;
    assert_eq!(used, 81, "the counts are those from before");
    assert!(!gateway.log().contains("store in trouble"), "{}", gateway.log());
}

#[test]
fn a_literal_password_is_rotated() {
    let site = Site::new();
    let gateway = Gateway::start(&site.config("old"));
    rotate(&site, &gateway, &site.config("new"));
}

#[test]
fn a_password_in_a_file_is_rotated_under_the_same_name() {
    let (site, folder) = (Site::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("password");
    std::fs::write(&path, "old\n").unwrap();
    let config = site.config(&format!("file:{}", path.display()));
    let gateway = Gateway::start(&config);
    std::fs::write(&path, "new\n").unwrap();
    rotate(&site, &gateway, &config);
}

#[test]
fn a_password_in_a_variable_is_rotated_to_another_variable() {
    let site = Site::new();
    let variables = [("OLD", "old"), ("NEW", "new")];
    let gateway = Gateway::start_text(&site.config("env:OLD").text(), &variables);
    rotate(&site, &gateway, &site.config("env:NEW"));
}

#[test]
fn wrong_credentials_always_fail() {
    let site = Site::new();
    let gateway = Gateway::start(&site.config("old"));
    assert_eq!(statuses(&gateway), BTreeSet::from([200]));
    let series = format!(
        "tollgate_store_degraded{{shard=\"127.0.0.1:{}\"}}",
        site.redis.port()
    );
    for wrong in ["wrong", "Old", "old "] {
        gateway.reload(&site.config(wrong));
        for _ in 0..3 {
            assert_eq!(statuses(&gateway), BTreeSet::from([503]), "{wrong:?}");
        }
        wait_until("nobody is logged in", RECOVERY, || site.connections().is_empty());
        gateway.await_metric(&series, 1.0);
    }
    let log = gateway.log();
    assert!(log.contains("WRONGPASS"), "{log}");
    assert!(
        !log.contains("wrong") && !log.contains("Old"),
        "a secret in {log}"
    );
    // The server learns the password instead.
    site.rotate("old", "old ");
    gateway.await_metric(&series, 0.0);
    assert_eq!(statuses(&gateway), BTreeSet::from([200]));
    // What was right once is wrong now.
    gateway.reload(&site.config("old"));
    assert_eq!(statuses(&gateway), BTreeSet::from([503]));
}

#[test]
fn a_user_who_may_not_run_scripts_or_is_no_more_decides_nothing() {
    let site = Site::new();
    let gateway = Gateway::start(&site.config("old"));
    assert_eq!(statuses(&gateway), BTreeSet::from([200]));
    let series = format!(
        "tollgate_store_degraded{{shard=\"127.0.0.1:{}\"}}",
        site.redis.port()
    );
    let set = |rules: &[&str]| {
        site.redis
            .ask::<()>(&[&["ACL", "SETUSER", "gate"], rules].concat())
    };
    for (taken, given, why) in [
        (&["-@scripting"][..], &["+@all"][..], "NOPERM"),
        (&["resetkeys", "~other:*"], &["~tollgate:*"], "NOPERM"),
        (&["off"], &["on"], "WRONGPASS"),
    ] {
        set(taken);
        site.redis.ask::<i64>(&["CLIENT", "KILL", "USER", "gate"]);
        wait_until("trouble", RECOVERY, || {
            gateway.get("/deny");
            gateway.metric(&series) > 0.5
        });
        assert_eq!(statuses(&gateway), BTreeSet::from([503]), "{taken:?}");
        assert!(gateway.log().contains(why), "{why} in {}", gateway.log());
        set(given);
        gateway.await_metric(&series, 0.0);
        assert_eq!(statuses(&gateway), BTreeSet::from([200]), "{given:?}");
    }
}
