//! Single callers with limits of their own, and callers that lack what a rule asks for.

use crate::support::{Ask, Config, Gateway, Limits, Upstream, assert_no_limits, rule};

/// Sends requests until one is refused and returns how many were admitted, 100 at most.
fn drain(gateway: &Gateway, ask: &Ask) -> usize {
    let mut client = gateway.client();
    (0..100).take_while(|_| client.ask(ask).status == 200).count()
}

#[test]
fn a_missing_part_is_shared_skipped_or_rejected() {
    let upstream = Upstream::start();
    let key = "key = [\"header:x-user\"]\n";
    let on = |path: &str, missing: &str| format!("{key}match = {{ path = \"{path}\" }}\n{missing}");
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("default", "fixed-window", 3, "1d", &on("/default", "")))
            .and(&rule(
                "share",
                "fixed-window",
                3,
                "1d",
                &on("/share", "missing = \"share\""),
            ))
            .and(&rule(
                "skip",
                "fixed-window",
                3,
                "1d",
                &on("/skip", "missing = \"skip\""),
            ))
            .and(&rule(
                "reject",
                "fixed-window",
                3,
                "1d",
                &on("/reject", "missing = \"reject\""),
            )),
    );
    for path in ["/default", "/share"] {
        assert_eq!(drain(&gateway, &Ask::get(path)), 3, "those without share one");
        assert_eq!(
            drain(&gateway, &Ask::get(path).field("X-User", "")),
            3,
            "an empty value is a value"
        );
        assert_eq!(drain(&gateway, &Ask::get(path).field("X-User", "a")), 3);
    }
    assert_eq!(drain(&gateway, &Ask::get("/skip")), 100);
    assert_no_limits(&gateway.get("/skip"));
    assert_eq!(drain(&gateway, &Ask::get("/skip").field("X-User", "a")), 3);
    let before = upstream.count();
    let rejected = gateway.get("/reject");
    assert_eq!(rejected.status, 400);
    rejected.problem();
    assert_eq!(upstream.count(), before);
    assert_eq!(drain(&gateway, &Ask::get("/reject").field("X-User", "a")), 3);
}

#[test]
fn overrides_give_single_callers_another_limit() {
    let upstream = Upstream::start();
    let user = "key = [\"header:x-user\"]\nmatch = { path = \"/user\" }\noverride = [{ key = \"big\", limit = 6 }, \
        { key = \"free\", limit = \"unlimited\" }]";
    let pair = "key = [\"header:x-user\", \"method\"]\nmatch = { path = \"/pair\" }\noverride = [\
        { key = [\"big\", \"GET\"], limit = 5 }, { key = [\"big\", \"*\"], limit = 4 }]";
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("user", "fixed-window", 2, "1d", user))
            .and(&rule("pair", "fixed-window", 2, "1d", pair)),
    );
    let user = |name: &str| Ask::get("/user").field("X-User", name);
    assert_eq!(drain(&gateway, &user("other")), 2);
    assert_eq!(drain(&gateway, &user("big")), 6);
    assert_eq!(Limits::of(&gateway.ask(&user("big"))).limit, 6);
    assert_eq!(drain(&gateway, &user("free")), 100);
    let pair = |name: &str, method: &str| Ask::new(method, "/pair").field("X-User", name);
    assert_eq!(drain(&gateway, &pair("big", "GET")), 5);
    assert_eq!(drain(&gateway, &pair("big", "DELETE")), 4);
    assert_eq!(drain(&gateway, &pair("small", "GET")), 2);
}

#[test]
fn an_override_of_a_bucket_has_a_burst_of_its_own() {
    let upstream = Upstream::start();
    let lines = "key = [\"header:x-user\"]\nburst = 2\noverride = [{ key = \"big\", limit = 50, burst = 5 }]";
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "token-bucket", 10, "30d", lines)));
    for (name, admitted) in [("other", 2), ("big", 5)] {
        assert_eq!(
            drain(&gateway, &Ask::get("/").field("X-User", name)),
            admitted,
            "{name}"
        );
    }
}

#[test]
fn overrides_take_address_ranges() {
    let upstream = Upstream::start();
    let lines = "key = [\"ip\"]\noverride = [{ key = \"10.1.2.3\", limit = 7 }, { key = \"10.0.0.0/8\", limit = 5 }, \
        { key = \"2001:db8::/32\", limit = 4 }, { key = \"192.0.2.0/24\", limit = \"unlimited\" }]";
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .server("workers = 1\ntrusted_proxies = [\"127.0.0.1/32\"]")
            .and(&rule("r", "fixed-window", 2, "1d", lines)),
    );
    for (address, admitted) in [
        ("10.1.2.3", 7),
        ("10.9.9.9", 5),
        ("2001:db8:7::1", 4),
        ("192.0.2.55", 100),
        ("198.51.100.1", 2),
    ] {
        assert_eq!(
            drain(&gateway, &Ask::get("/").field("X-Forwarded-For", address)),
            admitted,
            "{address}"
        );
    }
}
