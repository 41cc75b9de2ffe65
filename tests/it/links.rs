//! The connections to Redis, and the ends that a call over them can have.

use std::time::{Duration, Instant};

use crate::support::{
    Ask, DEADLINE, Fault, Limits, OWN_WORK, RECOVERY, Redis, Site, rule, threads, three, timed, wait_until,
};

#[test]
fn one_connection_that_goes_dead_is_no_outage() {
    let site = Site::new(&three());
    assert_eq!(site.left("/local"), 1_000);
    site.proxy.cut_silently();
    let (answer, time) = timed(&site.gateway, "/allow");
    assert_eq!(answer.status, 200);
    assert!(time < DEADLINE + OWN_WORK, "{time:?}");
    site.await_decisions();
    assert_eq!(site.left("/deny"), 1_000);
    assert!(!site.gateway.log().contains("store in trouble"));
}

#[test]
fn an_ended_connection_costs_no_decision() {
    let site = Site::new(&three());
    for gone in 0..10 {
        assert_eq!(site.left("/deny"), 1_000 - gone);
        site.proxy.cut();
        // The gateway sees it before the next request does.
        wait_until("the new connection or none", RECOVERY, || {
            site.redis
                .ask::<String>(&["CLIENT", "LIST"])
                .matches("name=tollgate")
                .count()
                <= 1
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!site.gateway.log().contains("store in trouble"));
}

#[test]
fn a_flushed_script_cache_shows_nowhere() {
    let site = Site::new(&three());
    let flusher = site.redis.port();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut link = redis::Client::open(format!("redis://127.0.0.1:{flusher}"))
                .unwrap()
                .get_connection()
                .unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut link).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        threads((0..8).collect(), |_| {
            let mut client = site.gateway.client();
            for _ in 0..100 {
                assert_eq!(client.ask(&Ask::get("/deny")).status, 200);
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(site.left("/deny"), 200, "each is charged once");
    let whole = site.redis.stat("eval", "calls");
    assert!((1.0..400.0).contains(&whole), "{whole} scripts were sent whole");
}

#[test]
fn a_lost_reply_stays_charged_and_is_never_asked_again() {
    let site = Site::new(&three());
    assert_eq!(site.left("/deny"), 1_000);
    let before = site.redis.stat("evalsha", "calls");
    site.proxy.set(Fault::LoseReplies);
    assert_eq!(site.gateway.get("/deny").status, 503);
    assert_eq!(site.redis.stat("evalsha", "calls"), before + 1.0);
    let unknown = site.series("tollgate_store_calls_total", "end=\"unknown\"");
    site.gateway.await_metric(&unknown, 1.0);
    site.proxy.set(Fault::None);
    site.await_decisions();
    assert_eq!(site.left("/deny"), 998, "its charge stays");
    let late = site.series("tollgate_store_calls_total", "end=\"late\"");
    assert!(site.gateway.metric(&late) < 0.5);
}

#[test]
fn a_late_reply_is_given_back() {
    let site = Site::new(&three());
    assert_eq!(site.left("/deny"), 1_000);
    site.proxy.set(Fault::Delay(DEADLINE * 3 / 2));
    assert_eq!(site.gateway.get("/deny").status, 503);
    site.proxy.set(Fault::None);
    let late = site.series("tollgate_store_calls_total", "end=\"late\"");
    site.gateway.await_metric(&late, 1.0);
    assert_eq!(site.left("/deny"), 999, "only the first is charged");
    assert!(!site.gateway.log().contains("store in trouble"));
}

#[test]
fn what_an_earlier_life_of_the_server_is_owed_is_not_given_to_the_next() {
    let mut site = Site::new(&rule("r", "fixed-window", 1_000, "1d", "refund = [503]"));
    let mut owed = site.gateway.client();
    owed.send(Ask::get("/after/1500/503").bytes());
    site.upstream.await_count(1);
    site.redis.restart();
    wait_until("the next life", RECOVERY, || {
        Limits::of(&site.gateway.get("/")).resource == "r"
    });
    let before = site.left("/");
    assert_eq!(owed.answer().status, 503);
    assert_eq!(site.left("/"), before - 1);
    assert_eq!(site.left("/"), before - 2);
}

#[test]
fn a_demoted_primary_is_left_for_the_promoted_one() {
    let site = Site::new(&three());
    site.redis
        .ask::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let next = Redis::with(&["--replicaof", "127.0.0.1", &site.redis.port().to_string()]);
    for _ in 0..5 {
        site.left("/deny");
    }
    site.redis.ask::<()>(&["SET", "mark", "after"]);
    wait_until("the replica has followed", RECOVERY, || {
        next.ask::<Option<String>>(&["GET", "mark"]).is_some()
    });
    // The address leads elsewhere now; what is open stays so, and says READONLY.
    next.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    site.proxy.lead_to(next.port());
    site.redis
        .ask::<()>(&["REPLICAOF", "127.0.0.1", &next.port().to_string()]);
    site.await_decisions();
    assert_eq!(site.left("/deny"), 995);
}

#[test]
fn connects_are_few_whatever_the_requests() {
    let site = Site::new(&three());
    site.proxy.set(Fault::Refuse);
    site.proxy.cut();
    let before = site.proxy.connects();
    let began = Instant::now();
    threads((0..8).collect(), |_| {
        let mut client = site.gateway.client();
        while began.elapsed() < Duration::from_secs(4) {
            assert_eq!(client.ask(&Ask::get("/allow")).status, 200);
        }
    });
    let connects = site.proxy.connects() - before;
    // The first three, and tries at a half of 50 ms, 100 ms, 200 ms, … of pause at least.
    assert!(connects <= 15, "{connects} connections in 4 s");
}
