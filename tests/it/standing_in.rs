//! What decides while the store cannot.

use crate::support::{Ask, Fault, Limits, Site, rule};

#[test]
fn several_rules_in_one_outage() {
    let on = |name: &str, limit: u64, lines: &str| rule(name, "fixed-window", limit, "1d", lines);
    let at = |path: &str, lines: &str| format!("match = {{ path = \"{path}\" }}\n{lines}");
    let tables = [
        on("allow", 1_000, &at("/{*rest}", "on_outage = \"allow\"")),
        on("local", 2, &at("/local/{*rest}", "outage_share = 1.0")),
        on("deny", 1_000, &at("/local/deny", "on_outage = \"deny\"")),
        on(
            "dry",
            1_000,
            &at("/local/dry", "on_outage = \"deny\"\ndry_run = true"),
        ),
        on("here", 3, "match = { path = \"/here\" }\nscope = \"gateway\""),
    ]
    .concat();
    let site = Site::new(&tables);
    site.proxy.set(Fault::error("READONLY no"));
    for _ in 0..3 {
        assert_eq!(site.gateway.get("/").status, 200, "all that apply allow it");
    }
    site.await_trouble();
    for _ in 0..5 {
        let answer = site.gateway.get("/local/deny");
        assert_eq!(answer.status, 503, "a denial outweighs an admission");
    }
    let answer = site.gateway.get("/local/dry");
    assert_eq!(answer.status, 200, "what is only tried denies nobody");
    let limits = Limits::of(&answer);
    assert_eq!(
        (limits.resource.as_str(), limits.remaining),
        ("local;fallback", 1),
        "the denied paid nothing"
    );
    assert_eq!(site.gateway.get("/local/x").status, 200);
    assert_eq!(
        site.gateway.get("/local/deny").status,
        429,
        "a rejection outweighs a denial"
    );
    assert_eq!(site.gateway.get("/local/x").status, 429);
    let numbers: Vec<u64> = (0..3)
        .map(|_| Limits::of(&site.gateway.get("/here")).remaining)
        .collect();
    assert_eq!(numbers, [2, 1, 0], "what is decided here needs no store");
    assert_eq!(site.gateway.get("/here").status, 429);
}

#[test]
fn flaps_hand_out_the_local_share_once() {
    // Each request asks the store, also those of who was just refused.
    let site = Site::new(&format!(
        "[edge]\nmax_staleness = \"0ms\"\n{}",
        rule("r", "fixed-window", 20, "1d", "outage_share = 0.25")
    ));
    for _ in 0..20 {
        assert_eq!(site.gateway.get("/").status, 200);
    }
    let mut extra = 0;
    for _ in 0..4 {
        site.proxy.set(Fault::Refuse);
        site.proxy.cut();
        for _ in 0..20 {
            extra += u64::from(site.gateway.get("/").status == 200);
        }
        site.await_trouble();
        site.await_recovery();
        for _ in 0..3 {
            let answer = site.gateway.get("/");
            assert_eq!(answer.status, 429, "back at the store nothing is new");
            assert_eq!(Limits::of(&answer).resource, "r");
        }
    }
    assert!(extra <= 6, "{extra} of a share of five");
}

#[test]
fn a_rejection_of_the_store_is_final() {
    let site = Site::new(&rule("r", "fixed-window", 2, "1d", "outage_share = 1.0"));
    let statuses: Vec<u16> = (0..10).map(|_| site.gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429, 429, 429, 429, 429]);
    let stood_in = site.gateway.admin(&Ask::get("/metrics")).text();
    assert!(
        !stood_in.contains("tollgate_fallback_decisions_total{"),
        "{stood_in}"
    );
}
