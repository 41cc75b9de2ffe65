//! Whatever Redis does, requests go on: each kind of trouble, what clients see of it, and what is left behind.

use std::time::{Duration, Instant};

use crate::support::{
    Answer, Ask, DEADLINE, Fault, Limits, OWN_WORK, RECOVERY, Redis, Site, assert_no_limits, threads, three,
    timed, wait_until,
};

/// Checks a gateway while its store is in trouble: nobody waits, and each rule does what it says.
#[track_caller]
fn calm(site: &Site) {
    let mut took = Vec::new();
    let mut get = |target: &str| {
        let (answer, time) = timed(&site.gateway, target);
        took.push(time);
        answer
    };
    let local: Vec<Answer> = (0..12).map(|_| get("/local")).collect();
    let admitted = local.iter().filter(|answer| answer.status == 200).count();
    assert!(admitted <= 6, "{admitted} of a share of five");
    for answer in &local {
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        let limits = Limits::of(answer);
        assert_eq!((limits.resource.as_str(), limits.limit), ("local;fallback", 5));
    }
    for _ in 0..3 {
        let answer = get("/allow");
        assert_eq!(answer.status, 200);
        assert_no_limits(&answer);
        let answer = get("/deny");
        assert_eq!((answer.status, answer.must("retry-after")), (503, "2"));
        assert_eq!(answer.must("cache-control"), "no-store");
        let problem = answer.problem();
        assert!(
            problem["type"]
                .as_str()
                .unwrap()
                .ends_with("temporary-reduced-capacity"),
            "{problem}"
        );
        assert_eq!(problem["violated-policies"], serde_json::json!(["deny"]));
        assert_eq!(get("/free").status, 200);
    }
    took.sort();
    assert!(took[took.len() / 2] < Duration::from_millis(30), "{took:?}");
    assert!(took[took.len() - 1] < OWN_WORK, "{took:?}");
}

/// One kind of trouble from its begin to its end. `leak` says how much may stay charged of what was not decided. Returns why
/// it is, as operators are told.
#[track_caller]
fn outlast(mut site: Site, begin: impl FnOnce(&mut Site), end: impl FnOnce(&mut Site), leak: u64) -> String {
    // The connection is there when it matters: many servers may start at this moment.
    site.await_decisions();
    assert_eq!(site.left("/local"), 1_000);
    assert_eq!(site.left("/deny"), 1_000);
    begin(&mut site);
    for _ in 0..8 {
        for target in ["/allow", "/deny"] {
            let (answer, time) = timed(&site.gateway, target);
            let expected: &[u16] = if target == "/allow" { &[200] } else { &[200, 503] };
            assert!(expected.contains(&answer.status), "{target} {answer:?}");
            assert!(time < DEADLINE + OWN_WORK, "{target} took {time:?}");
        }
    }
    site.await_trouble();
    calm(&site);
    let ready = site.gateway.admin(&Ask::get("/readyz"));
    assert_eq!(ready.status, 200);
    let ready: serde_json::Value = serde_json::from_slice(&ready.body).unwrap();
    let reason = ready["store"]["shards"][0]["trouble"].as_str();
    let reason = reason.unwrap_or_else(|| panic!("{ready}")).to_owned();
    let (before, ended) = (site.proxy.calls(), Instant::now());
    end(&mut site);
    site.await_recovery();
    assert!(ended.elapsed() < RECOVERY, "{:?}", ended.elapsed());
    let tries = site.proxy.calls() - before;
    assert!(tries <= 10, "{tries} calls while nobody asks");
    for target in ["/local", "/deny"] {
        let left = site.left(target);
        assert!((999 - leak..=1_000).contains(&left), "{target}: {left} left");
        let next = site.left(target);
        assert_eq!(next, left - 1, "{target}");
    }
    site.gateway.await_log("store recovered");
    let log = site.gateway.log();
    let told = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(told("store in trouble"), 1);
    assert_eq!(told("store recovered"), 1);
    assert!(told("ERROR") == 1, "one alarm, not one a request");
    assert!(told(&format!("reason={reason}")) > 0, "{reason}");
    reason
}

/// Trouble that the proxy makes.
#[track_caller]
fn outlast_fault(site: Site, fault: Fault, leak: u64) {
    outlast(site, |site| site.proxy.set(fault), |_| {}, leak);
}

/// A gateway that has time: many of them are tested at once, and their servers answer, whatever they say.
fn patient() -> Site {
    Site::with("deadline = \"1s\"", &three())
}

#[test]
fn killed_and_back_empty() {
    let site = patient();
    outlast(site, |site| site.redis.kill(), |site| site.redis.revive(), 0);
}

#[test]
fn frozen_and_thawed() {
    // What was asked in vain is not charged when the server wakes up: it is too late by its own clock.
    let site = Site::new(&three());
    outlast(site, |site| site.redis.freeze(), |site| site.redis.thaw(), 0);
}

#[test]
fn silent() {
    outlast_fault(Site::new(&three()), Fault::Silence, 0);
}

#[test]
fn slow() {
    // What comes late is given back.
    let site = Site::new(&three());
    let late = site.series("tollgate_store_calls_total", "end=\"late\"");
    let slow = |site: &mut Site| site.proxy.set(Fault::Delay(Duration::from_secs(2)));
    let quick = |site: &mut Site| {
        site.proxy.set(Fault::None);
        wait_until("late replies", RECOVERY, || site.gateway.metric(&late) > 1.5);
    };
    outlast(site, slow, quick, 0);
}

#[test]
fn replies_are_lost() {
    outlast_fault(Site::new(&three()), Fault::LoseReplies, 8);
}

#[test]
fn connections_are_refused() {
    let site = patient();
    outlast(
        site,
        |site| {
            site.proxy.set(Fault::Refuse);
            site.proxy.cut();
        },
        |_| {},
        0,
    );
}

#[test]
fn errors_instead_of_decisions() {
    let errors = vec![
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOSCRIPT No matching script. Please use EVAL.",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down",
        "ERR unknown command 'EVALSHA'",
        "no code at all",
    ];
    threads(errors, |error| outlast_fault(patient(), Fault::error(error), 0));
}

#[test]
fn replies_that_no_script_gives() {
    let replies = vec![
        "$-1\r\n",
        "*-1\r\n",
        ":7\r\n",
        "+OK\r\n",
        "*0\r\n",
        "*1\r\n$3\r\nabc\r\n",
        "*2\r\n:1\r\n*1\r\n:1\r\n",
        "$999999999999\r\n",
        "*999999999\r\n",
        "?what\r\n",
        "\r\n",
    ];
    threads(replies, |reply| outlast_fault(patient(), Fault::reply(reply), 0));
}

#[test]
fn a_server_that_turns_into_a_replica_is_trouble() {
    let primary = Redis::start();
    let port = primary.port().to_string();
    let site = patient();
    let follow = |site: &mut Site| site.redis.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    let lead = |site: &mut Site| site.redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    outlast(site, follow, lead, 0);
}

#[test]
fn a_server_without_memory_is_trouble() {
    let site = patient();
    let fill = |site: &mut Site| site.redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let free = |site: &mut Site| site.redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    outlast(site, fill, free, 0);
}

#[test]
fn a_primary_without_the_replicas_that_it_wants_is_trouble() {
    let site = patient();
    let want = |replicas: &'static str| {
        move |site: &mut Site| {
            site.redis
                .ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
        }
    };
    outlast(site, want("1"), want("0"), 0);
}

#[test]
fn a_server_that_wants_another_password_is_trouble() {
    let site = patient();
    let set = |site: &mut Site| {
        site.redis.ask::<()>(&["CONFIG", "SET", "requirepass", "secret"]);
        site.proxy.cut();
    };
    let unset = |site: &mut Site| {
        let mut link = site.redis.connect_with("secret");
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", ""])
            .exec(&mut link)
            .unwrap();
    };
    let reason = outlast(site, set, unset, 0);
    assert!(reason.contains("NOAUTH"), "{reason}");
}

#[test]
fn a_user_who_may_not_run_scripts_is_trouble() {
    let denied = vec![
        ("-@scripting", "+@scripting", "evalsha"),
        ("-evalsha", "+evalsha", "evalsha"),
        ("-info", "+info", "info"),
        ("-time", "+time", "time"),
        ("resetkeys", "~*", "key"),
    ];
    threads(denied, |(deny, allow, named)| {
        let rights = |rights: &'static str| {
            move |site: &mut Site| {
                site.redis.ask::<()>(&["ACL", "SETUSER", "default", rights]);
                site.proxy.cut();
            }
        };
        let reason = outlast(patient(), rights(deny), rights(allow), 0);
        assert!(reason.contains("NOPERM") && reason.contains(named), "{reason}");
    });
}

#[test]
fn a_server_without_the_command_that_runs_scripts_is_trouble() {
    let restart = |options: &'static [&'static str]| {
        move |site: &mut Site| {
            site.redis.kill();
            site.redis.revive_with(options);
        }
    };
    let renamed = restart(&["--rename-command", "EVALSHA", ""]);
    let reason = outlast(patient(), renamed, restart(&[]), 0);
    assert!(reason.contains("unknown command"), "{reason}");
}
