//! Servers that do not let a gateway do all that it would.

use crate::support::{ALGORITHMS, Fault, Limits, Redis, Site, rule, three};

/// There is time: what is tested needs none.
const STORE: &str = "deadline = \"1s\"";

/// Calls go on with this user's rights, also after an outage.
#[track_caller]
fn serves(site: &Site) {
    for gone in 0..3 {
        assert_eq!(site.left("/deny"), 1_000 - gone);
    }
    site.proxy.set(Fault::Refuse);
    site.proxy.cut();
    for _ in 0..3 {
        assert_eq!(site.gateway.get("/deny").status, 503);
    }
    site.await_trouble();
    site.await_recovery();
    for gone in 3..6 {
        assert_eq!(site.left("/deny"), 1_000 - gone);
    }
}

#[test]
fn what_is_not_needed_may_be_denied() {
    for denied in ["-script", "-eval", "-client"] {
        let site = Site::with(STORE, &three());
        site.redis.ask::<()>(&["ACL", "SETUSER", "default", denied]);
        site.proxy.cut();
        serves(&site);
        let log = site.gateway.log();
        assert!(!log.contains("NOPERM"), "{denied}: {log}");
    }
}

#[test]
fn a_server_without_the_command_that_loads_scripts_serves() {
    for options in [
        ["--rename-command", "SCRIPT", ""],
        ["--rename-command", "CLIENT", ""],
    ] {
        let mut site = Site::on(Redis::with(&options), STORE, &three());
        serves(&site);
        site.redis.restart();
        site.await_decisions();
        assert_eq!(site.left("/deny"), 1_000, "its scripts were gone with its life");
    }
}

#[test]
fn the_rights_that_are_told_of_are_enough() {
    let readme = include_str!("../../README.md");
    let told = readme
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER tollgate "));
    let redis = Redis::start();
    let rights = told.unwrap().split(' ');
    let command: Vec<&str> = ["ACL", "SETUSER", "tollgate"].into_iter().chain(rights).collect();
    redis.ask::<()>(&command);
    let login = format!("{STORE}\nusername = \"tollgate\"\npassword = \"SECRET\"");
    let rules = ALGORITHMS.map(|name| {
        let lines = format!("match = {{ path = \"/{name}\" }}\nrefund = [503]");
        rule(name, name, 5, "1d", &lines)
    });
    let site = Site::on(redis, &login, &(rules.concat() + &three()));
    serves(&site);
    for name in ALGORITHMS {
        for left in [4, 3] {
            let limits = Limits::of(&site.gateway.get(&format!("/{name}")));
            assert_eq!((limits.resource.as_str(), limits.remaining), (name, left));
        }
    }
    let log = site.gateway.log();
    assert!(!log.contains("NOPERM"), "{log}");
}
