//! Reloads that change where limits are.

use crate::support::{
    Ask, Config, Gateway, Limits, RECOVERY, Redis, Upstream, on_redis, three, unused_port, wait_until,
};

/// There is time: what is tested needs none.
const STORE: &str = "deadline = \"1s\"";

/// The lines of `/metrics` that say how servers are.
fn gauges(gateway: &Gateway) -> Vec<String> {
    let text = gateway.admin(&Ask::get("/metrics")).text();
    let told = ["tollgate_store_degraded{", "tollgate_store_guard{"];
    let lines = text
        .lines()
        .filter(|line| told.iter().any(|name| line.starts_with(name)));
    lines.map(str::to_owned).collect()
}

fn degraded(redis: &Redis) -> String {
    format!("tollgate_store_degraded{{shard=\"127.0.0.1:{}\"}}", redis.port())
}

#[test]
fn a_server_that_is_left_behind_is_no_longer_told_of() {
    let (upstream, redis, absent) = (Upstream::start(), Redis::start(), unused_port());
    let config = |store: &str| Config::new(&upstream).and(store).and(&three());
    let dead = format!("redis://{absent}");
    let both = config(&on_redis(&[&redis.url(), &dead], STORE));
    let gateway = Gateway::start(&both);
    gateway.await_metric(&format!("tollgate_store_degraded{{shard=\"{absent}\"}}"), 1.0);
    assert_eq!(gauges(&gateway).len(), 8, "{:?}", gauges(&gateway));
    gateway.reload(&config(&on_redis(&[&redis.url()], STORE)));
    let left = gauges(&gateway);
    let other = left.iter().find(|line| !line.contains(&redis.port().to_string()));
    assert_eq!((left.len(), other), (4, None), "{left:?}");
    // A config that does not come into force leaves nothing either.
    gateway.reload_refused(&both.server("workers = 2"));
    assert_eq!(gauges(&gateway), left);
    gateway.reload(&config(""));
    assert_eq!(gauges(&gateway), [""; 0]);
    gateway.reload(&config(&on_redis(&[&redis.url()], STORE)));
    assert_eq!(gauges(&gateway), left);
}

#[test]
fn the_trouble_of_a_store_ends_with_it() {
    let (upstream, redis) = (Upstream::start(), Redis::with(&["--requirepass", "right"]));
    let config = |password: &str| {
        let store = on_redis(&[&redis.url()], &format!("{STORE}\npassword = \"{password}\""));
        Config::new(&upstream).and(&store).and(&three())
    };
    let gateway = Gateway::start(&config("wrong"));
    gateway.await_metric(&degraded(&redis), 1.0);
    gateway.reload(&config("right"));
    assert!(gateway.metric(&degraded(&redis)) < 0.5, "{:?}", gauges(&gateway));
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);
    gateway.reload(&config("old"));
    gateway.await_metric(&degraded(&redis), 1.0);
}

#[test]
fn a_password_that_a_server_wants_from_now_on_is_given_by_a_reload() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config = |lines: &str| {
        let store = on_redis(&[&redis.url()], &format!("{STORE}\n{lines}"));
        Config::new(&upstream).and(&store).and(&three())
    };
    let gateway = Gateway::start(&config(""));
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);
    redis.ask::<()>(&["CONFIG", "SET", "requirepass", "new"]);
    assert_eq!(
        Limits::of(&gateway.get("/deny")).remaining,
        998,
        "who is in stays in"
    );
    let mut operator = redis.connect_with("new");
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .exec(&mut operator)
        .unwrap();
    wait_until("trouble", RECOVERY, || {
        assert!([200, 503].contains(&gateway.get("/deny").status));
        assert_eq!(gateway.get("/allow").status, 200);
        gateway.metric(&degraded(&redis)) > 0.5
    });
    for told in [gateway.admin(&Ask::get("/readyz")).text(), gateway.log()] {
        assert!(told.contains("NOAUTH"), "{told}");
    }
    gateway.reload(&config("password = \"new\""));
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 997);
    assert!(gateway.metric(&degraded(&redis)) < 0.5);
}
