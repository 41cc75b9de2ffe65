//! What a server must be to keep limits on, who is told of trouble, and servers that come later.

use crate::support::{
    Ask, Config, DEADLINE, Fault, Gateway, Limits, OWN_WORK, RECOVERY, Redis, STORE, Site, Upstream,
    on_redis, three, timed, tollgate, unused_port, wait_until,
};

#[test]
fn a_server_that_comes_later() {
    let (upstream, port) = (Upstream::start(), unused_port().port());
    let config = Config::new(&upstream)
        .and(&on_redis(&[&format!("redis://127.0.0.1:{port}")], STORE))
        .and(&three());
    let gateway = Gateway::start(&config);
    let series = format!("tollgate_store_degraded{{shard=\"127.0.0.1:{port}\"}}");
    gateway.await_metric(&series, 1.0);
    assert_eq!(gateway.get("/deny").status, 503);
    assert_eq!(gateway.get("/allow").status, 200);
    assert_eq!(Limits::of(&gateway.get("/local")).resource, "local;fallback");
    assert_eq!(gateway.admin(&Ask::get("/readyz")).status, 200);
    let redis = Redis::at(port, &[]).expect("the port is free");
    gateway.await_metric(&series, 0.0);
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);
    drop(redis);
}

#[test]
fn who_is_not_let_in_at_the_start_is_when_that_is_mended() {
    let (upstream, redis) = (Upstream::start(), Redis::with(&["--requirepass", "right"]));
    let store = format!("{STORE}\npassword = \"wrong\"");
    let config = |store: &str| {
        Config::new(&upstream)
            .and(&on_redis(&[&redis.url()], store))
            .and(&three())
    };
    let gateway = Gateway::start(&config(&store));
    assert_eq!(gateway.get("/deny").status, 503);
    assert!(gateway.log().contains("WRONGPASS"), "{}", gateway.log());
    gateway.reload(&config(&store.replace("wrong", "right")));
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);
}

#[test]
fn a_server_that_is_none_for_limits_is_refused_at_the_start() {
    let primary = Redis::start();
    let port = primary.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    let upstream = Upstream::start();
    let config = |redis: &Redis, lines: &str| {
        let config = Config::new(&upstream).and(&on_redis(&[&redis.url()], lines));
        config.and(&three())
    };
    let refused = |config: &Config| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        std::fs::write(&path, config.text()).unwrap();
        let output = tollgate(&["run", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&config(&replica, ""));
    assert!(said.contains("name its primary"), "{said}");
    for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"] {
        let evicting = Redis::with(&["--maxmemory-policy", policy]);
        let said = refused(&config(&evicting, ""));
        assert!(said.contains(policy) && said.contains("noeviction"), "{said}");
        assert!(said.contains("logical database"), "{said}");
        let gateway = Gateway::start(&config(&evicting, "eviction = \"allow\""));
        assert!(gateway.log().contains("WARN"), "{}", gateway.log());
        assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);
    }
}

#[test]
fn a_policy_that_evicts_is_found_later_too() {
    let site = Site::new(&three());
    assert_eq!(site.left("/deny"), 1_000);
    let policy = site.series("tollgate_store_guard", "check=\"eviction\"");
    assert!(site.gateway.metric(&policy) < 0.5);
    site.redis
        .ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    site.proxy.cut();
    wait_until("the guard", RECOVERY, || {
        let _ = site.gateway.get("/deny");
        site.gateway.metric(&policy) > 0.5
    });
    assert_eq!(site.gateway.get("/deny").status, 200, "it still decides");
    let ready = site.gateway.admin(&Ask::get("/readyz")).text();
    assert!(ready.contains("eviction"), "{ready}");
}

#[test]
fn the_webhook_hears_once_of_trouble_and_once_of_its_end() {
    let hook = Upstream::start();
    let alarm = format!("[alarm]\nwebhook = \"http://{}/hook\"\n", hook.addr());
    let site = Site::new(&(alarm + &three()));
    site.proxy.set(Fault::error("READONLY no"));
    for _ in 0..20 {
        site.gateway.get("/deny");
    }
    hook.await_count(1);
    site.await_recovery();
    hook.await_count(2);
    for _ in 0..20 {
        assert_eq!(site.gateway.get("/deny").status, 200);
    }
    let posts: Vec<serde_json::Value> = hook
        .seen()
        .iter()
        .map(|post| {
            assert_eq!((post.method.as_str(), post.target.as_str()), ("POST", "/hook"));
            serde_json::from_slice(&post.body).unwrap()
        })
        .collect();
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0]["event"], "store_trouble");
    assert!(posts[0]["reason"].as_str().unwrap().contains("READONLY"));
    assert_eq!(posts[1]["event"], "store_recovered");
    assert!(posts[1]["undecided"].as_u64().unwrap() >= 3, "{}", posts[1]);
}

#[test]
fn nobody_waits_for_a_webhook_that_does_not_answer() {
    let hook = Upstream::start();
    let alarm = format!("[alarm]\nwebhook = \"http://{}/hang\"\n", hook.addr());
    let site = Site::new(&(alarm + &three()));
    site.proxy.set(Fault::error("READONLY no"));
    for _ in 0..5 {
        let (answer, time) = timed(&site.gateway, "/allow");
        assert_eq!(answer.status, 200);
        assert!(time < DEADLINE + OWN_WORK, "{time:?}");
    }
    hook.await_count(1);
    for _ in 0..20 {
        let (answer, time) = timed(&site.gateway, "/deny");
        assert_eq!(answer.status, 503);
        assert!(time < OWN_WORK, "{time:?}");
    }
    site.await_recovery();
    assert_eq!(site.left("/deny"), 1_000);
}
