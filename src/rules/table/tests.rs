//! Which rules apply, and what their keys are.

use std::net::SocketAddr;

use http::Method;

use super::*;
use crate::clock::Micros;
use crate::identity::Peer;
use crate::limit::{Kind, Spec};
use crate::rules::{HostPattern, Match, OnOutage, PathPattern, Scope};

fn rule(name: &str, key: &[&str]) -> Rule {
    let spec = Spec {
        kind: Kind::FixedWindow,
        limit: 10,
        window: Some(Micros::from_secs(60)),
        precision: 1,
        blend: true,
        burst: None,
        queue: None,
        cost: 1,
    };
    Rule {
        name: name.to_owned(),
        matches: Match::default(),
        key: key.iter().map(|part| part.parse().unwrap()).collect(),
        missing: Missing::Share,
        policy: spec.policy().unwrap(),
        spec,
        refund: Vec::new(),
        overrides: Vec::new(),
        scope: Scope::Store,
        on_outage: OnOutage::default(),
        dry_run: false,
        visible: true,
    }
}

fn table(rules: Vec<Rule>) -> Arc<RuleTable> {
    let user = vec!["header:x-user".parse().unwrap()];
    let identity = Settings {
        user,
        ..Settings::default()
    };
    Arc::new(RuleTable::new(rules, identity, Secret::from_text("s")))
}

fn plan(table: &Arc<RuleTable>, peer: &str, request: http::request::Builder) -> Result<Plan, Denied> {
    let request = request
        .extension(Peer(SocketAddr::new(peer.parse().unwrap(), 1)))
        .body(())
        .unwrap();
    let caller = Caller::identify(&request, &table.identity);
    let route = request
        .extensions()
        .get::<RoutePattern>()
        .map(|RoutePattern(pattern)| pattern.as_ref());
    table.plan(&request, &caller, route)
}

fn names(table: &Arc<RuleTable>, request: http::request::Builder) -> Vec<String> {
    let plan = plan(table, "192.0.2.1", request).unwrap();
    plan.charges
        .iter()
        .map(|charge| table.rule(charge.rule).unwrap().name.clone())
        .collect()
}

fn key(table: &Arc<RuleTable>, peer: &str, request: http::request::Builder) -> LimitKey {
    plan(table, peer, request).unwrap().charges[0].key
}

#[test]
fn all_rules_that_match_apply_in_table_order() {
    let on = |path: &str| Some(PathPattern::parse(path).unwrap());
    let mut all = rule("all", &[]);
    all.matches.not_path = vec![PathPattern::parse("/healthz").unwrap()];
    all.matches.not_methods = vec![Method::OPTIONS];
    let mut users = rule("users", &[]);
    users.matches.path = on("/users/{id}");
    let mut posts = rule("posts", &[]);
    posts.matches.methods = vec![Method::POST];
    let mut host = rule("host", &[]);
    host.matches.host = Some(HostPattern::parse("*.example.com").unwrap());
    let table = table(vec![all, users, posts, host]);
    assert_eq!(names(&table, Request::get("/users/7")), ["all", "users"]);
    assert_eq!(names(&table, Request::get("//users/./7/")), ["all", "users"]);
    assert_eq!(names(&table, Request::post("/users/7/x")), ["all", "posts"]);
    assert_eq!(names(&table, Request::get("/healthz/")), [""; 0]);
    assert_eq!(names(&table, Request::options("/users/7")), ["users"]);
    assert_eq!(
        names(&table, Request::get("/").header("host", "A.example.com:80")),
        ["all", "host"]
    );
    assert_eq!(
        names(&table, Request::get("http://a.example.com/").header("host", "b")),
        ["all", "host"]
    );
}

#[test]
fn keys_tell_callers_apart_and_rules_too() {
    let table = table(vec![rule("ip", &["ip"]), rule("other", &["ip"])]);
    let plan = plan(&table, "192.0.2.1", Request::get("/")).unwrap();
    assert_ne!(plan.charges[0].key, plan.charges[1].key);
    let of = |peer| key(&table, peer, Request::get("/"));
    assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
}

#[test]
fn what_is_missing_is_a_value_of_its_own() {
    let table = table(vec![rule("user", &["user", "ip"])]);
    let ann = key(&table, "192.0.2.1", Request::get("/").header("x-user", "ann"));
    let empty = key(&table, "192.0.2.1", Request::get("/").header("x-user", ""));
    let absent = key(&table, "192.0.2.1", Request::get("/"));
    let absent_elsewhere = key(&table, "192.0.2.2", Request::get("/"));
    for (one, other) in [
        (ann, empty),
        (empty, absent),
        (absent, absent_elsewhere),
        (ann, absent),
    ] {
        assert_ne!(one, other);
    }
}

#[test]
fn missing_skips_or_rejects_where_the_rule_says_so() {
    let mut skip = rule("skip", &["user"]);
    skip.missing = Missing::Skip;
    assert_eq!(names(&table(vec![skip]), Request::get("/")), [""; 0]);
    let mut reject = rule("reject", &["user"]);
    reject.missing = Missing::Reject;
    let denied = plan(&table(vec![reject.clone()]), "192.0.2.1", Request::get("/")).unwrap_err();
    assert_eq!(denied, Denied::Missing("a user".to_owned()));
    reject.dry_run = true;
    assert_eq!(names(&table(vec![reject]), Request::get("/")), [""; 0]);
}

/// A rule for each way not to be for a request of `GET /x`.
fn mismatched() -> Vec<Rule> {
    let mut posts = rule("posts", &[]);
    posts.matches.methods = vec![Method::POST];
    posts.matches.path = Some(PathPattern::parse("/elsewhere").unwrap());
    let mut no_gets = rule("no-gets", &[]);
    no_gets.matches.not_methods = vec![Method::GET];
    let mut path = rule("path", &[]);
    path.matches.path = Some(PathPattern::parse("/elsewhere").unwrap());
    let mut not_path = rule("not-path", &[]);
    not_path.matches.not_path = vec![PathPattern::parse("/{*all}").unwrap()];
    let mut host = rule("host", &[]);
    host.matches.host = Some(HostPattern::parse("other.test").unwrap());
    vec![posts, no_gets, path, not_path, host]
}

#[test]
fn an_explanation_gives_the_first_reason_and_agrees_with_the_plan() {
    let mut rules = mismatched();
    let mut skip = rule("skip", &["ip", "header:x-none", "user"]);
    skip.missing = Missing::Skip;
    let mut unlimited = rule("unlimited", &["user"]);
    unlimited.overrides = vec![Override {
        key: vec![Wanted::Text("ann".to_owned())],
        allowance: Allowance::Unlimited,
    }];
    let charged = rule("charged", &["header:x-none|user", "header:x-none"]);
    let mut dry = rule("dry", &["header:x-none"]);
    (dry.missing, dry.dry_run) = (Missing::Reject, true);
    rules.extend([skip, unlimited, charged, dry]);
    let table = table(rules);
    let request = Request::get("/x")
        .header("x-user", "ann")
        .extension(Peer("[2001:db8::7]:1".parse().unwrap()))
        .body(())
        .unwrap();
    let caller = Caller::identify(&request, &table.identity);
    let told = table.explain(&request, &caller, None);
    let exempt: Vec<Exempt> = told
        .iter()
        .filter_map(|told| match told.finding {
            Finding::Exempt(exempt) => Some(exempt),
            _ => None,
        })
        .collect();
    let mismatches = [
        Mismatch::Methods,
        Mismatch::NotMethods,
        Mismatch::Path,
        Mismatch::NotPath,
        Mismatch::Host,
    ];
    assert_eq!(exempt[..5], mismatches.map(Exempt::Mismatch));
    assert_eq!(exempt[5..], [Exempt::Missing(1), Exempt::Unlimited(0)]);
    assert_eq!(told[5].parts[0].value.as_ref().unwrap().text, "2001:db8::/64");
    let value = told[7].parts[0].value.as_ref().unwrap();
    assert_eq!(
        (value.source.as_str(), value.text.as_str()),
        ("header:x-user", "ann")
    );
    assert_eq!(told[7].parts[1].value, None);
    assert!(matches!(told[8].finding, Finding::Deny(Denied::Missing(_))));
    let charges = told.iter().filter_map(|told| match &told.finding {
        Finding::Charge(charge) => Some((charge.rule, charge.key)),
        _ => None,
    });
    let planned = table.plan(&request, &caller, None).unwrap().charges;
    assert!(charges.eq(planned.iter().map(|charge| (charge.rule, charge.key))));
}

#[test]
fn two_values_of_one_part_are_refused() {
    let table = table(vec![rule("user", &["user"])]);
    let twice = Request::get("/").header("x-user", "a").header("x-user", "b");
    let denied = plan(&table, "192.0.2.1", twice).unwrap_err();
    assert_eq!(denied, Denied::Ambiguous("header:x-user".parse().unwrap()));
}

#[test]
fn endpoints_are_named_by_patterns() {
    let mut own = rule("own", &["endpoint"]);
    own.matches.path = Some(PathPattern::parse("/users/{id}").unwrap());
    let own = table(vec![own]);
    let of = |uri| key(&own, "192.0.2.1", Request::get(uri));
    assert_eq!(of("/users/1"), of("/users/2"));
    assert_ne!(of("/users/1"), key(&own, "192.0.2.1", Request::post("/users/1")));
    let routed = table(vec![rule("routed", &["endpoint"])]);
    let with = |pattern: &str| {
        key(
            &routed,
            "192.0.2.1",
            Request::get("/x").extension(RoutePattern(pattern.into())),
        )
    };
    assert_ne!(with("/a/{*rest}"), with("/b/{*rest}"));
    assert_eq!(with("*"), key(&routed, "192.0.2.1", Request::get("/y")));
}

#[test]
fn captured_segments_are_keys() {
    let mut tenants = rule("tenants", &["path:tenant"]);
    tenants.matches.path = Some(PathPattern::parse("/t/{tenant}/{*rest}").unwrap());
    let table = table(vec![tenants]);
    let of = |uri| key(&table, "192.0.2.1", Request::get(uri));
    assert_eq!(of("/t/a/x"), of("/t/%61"));
    assert_ne!(of("/t/a/x"), of("/t/b/x"));
}

#[test]
fn the_first_override_that_fits_counts() {
    let limit = |limit| {
        let policy = Spec {
            limit,
            ..rule("", &[]).spec
        }
        .policy()
        .unwrap();
        Allowance::Limit(policy)
    };
    let of = |text: &str, allowance| Override {
        key: vec![Wanted::Text(text.to_owned())],
        allowance,
    };
    let mut user = rule("user", &["user"]);
    user.overrides = vec![
        of("ann", limit(100)),
        of("ann", limit(200)),
        of("root", Allowance::Unlimited),
        Override {
            key: vec![Wanted::Any],
            allowance: limit(5),
        },
        of("late", limit(7)),
    ];
    let users = table(vec![user]);
    let quota = |name: &str| {
        let plan = plan(&users, "192.0.2.1", Request::get("/").header("x-user", name)).unwrap();
        plan.charges.first().map(|charge| charge.policy.quota())
    };
    assert_eq!(quota("ann"), Some(100));
    assert_eq!(quota("root"), None);
    assert_eq!(quota("late"), Some(5));
    assert_eq!(quota("bob"), Some(5));
    let net = |text: &str| Wanted::Net(text.parse().unwrap());
    let mut pair = rule("pair", &["ip", "user"]);
    pair.overrides = vec![
        Override {
            key: vec![net("192.0.2.0/24"), Wanted::Text("ann".to_owned())],
            allowance: limit(1),
        },
        Override {
            key: vec![net("192.0.2.1/32"), Wanted::Any],
            allowance: limit(2),
        },
    ];
    let pairs = table(vec![pair]);
    let quota = |peer, name: &str| {
        let plan = plan(&pairs, peer, Request::get("/").header("x-user", name)).unwrap();
        plan.charges[0].policy.quota()
    };
    assert_eq!(quota("192.0.2.9", "ann"), 1);
    assert_eq!(quota("192.0.2.1", "bob"), 2);
    assert_eq!(quota("192.0.2.2", "bob"), 10);
    assert_eq!(quota("198.51.100.1", "ann"), 10);
}

#[test]
fn a_blocked_caller_has_no_plan_unless_the_rule_is_a_dry_run() {
    let blocking = |name: &str, dry_run| {
        let mut user = rule(name, &["user"]);
        user.dry_run = dry_run;
        user.overrides = vec![Override {
            key: vec![Wanted::Text("mallory".to_owned())],
            allowance: Allowance::Blocked,
        }];
        user
    };
    let by = |name: &str| Request::get("/").header("x-user", name);
    let both = table(vec![
        rule("all", &[]),
        blocking("dry", true),
        blocking("block", false),
    ]);
    let of_ann = plan(&both, "192.0.2.1", by("ann")).unwrap();
    assert_eq!((of_ann.charges.len(), of_ann.spared.len()), (3, 0));
    let denied = plan(&both, "192.0.2.1", by("mallory")).unwrap_err();
    assert!(
        matches!(denied, Denied::Blocked { rule: RuleId(2), .. }),
        "{denied:?}"
    );
    let dry = table(vec![rule("all", &[]), blocking("dry", true)]);
    let spared = plan(&dry, "192.0.2.1", by("mallory")).unwrap();
    assert_eq!(spared.spared.as_slice(), [RuleId(1)]);
    assert_eq!(names(&dry, by("mallory")), ["all"]);
}
