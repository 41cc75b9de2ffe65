//! What a config comes to.

use std::time::Duration;

use super::{parse_snippet, parse_text, rule};
use crate::clock::Micros;
use crate::config::Settings;
use crate::identity::Source;
use crate::limit::Kind;
use crate::proxy::Profile;
use crate::rules::{Allowance, Missing, RefundOn, Scope, Wanted};
use crate::telemetry::{Format, Level};

fn settings(snippet: &str) -> Settings {
    parse_snippet(snippet).unwrap().settings
}

#[test]
fn everything_has_a_default() {
    let settings = settings("");
    let server = &settings.server;
    assert_eq!(server.listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(
        (server.header, server.idle, server.drain),
        (secs(10), secs(75), secs(30))
    );
    assert_eq!((server.header_bytes, server.header_count), (65_536, 100));
    assert_eq!((server.connections, server.connections_per_ip), (10_000, 0));
    assert!(server.workers >= 1);
    let proxy = &settings.proxy;
    assert_eq!(
        (proxy.body, proxy.body_bytes, proxy.uri_bytes),
        (secs(30), 0, 16_384)
    );
    assert_eq!(proxy.profiles, [Profile::Github, Profile::Draft]);
    assert_eq!((proxy.routes.len(), proxy.routes[0].path.text()), (1, "/{*rest}"));
    assert_eq!(proxy.routes[0].upstream, "api");
    let upstream = &settings.upstreams[0];
    assert_eq!(
        (upstream.connect, upstream.response, upstream.connections),
        (secs(2), secs(30), 1_024)
    );
    assert_eq!(settings.admin.listen, Some("127.0.0.1:9901".parse().unwrap()));
    assert_eq!(
        (settings.log.level, settings.log.format),
        (Level::Info, Format::Text)
    );
    assert_eq!(
        (settings.store.max_keys, settings.identity.ipv6_prefix),
        (1_000_000, 64)
    );
    assert!(settings.secret.is_none() && settings.rules.is_empty());
    assert!(settings.identity.user.is_empty() && settings.identity.trusted_proxies.is_empty());
}

#[test]
fn what_is_written_counts() {
    let settings = settings(
        "\
[server]
listen = [\"[::1]:80\", \"0.0.0.0:0\"]
trusted_proxies = [\"10.1.2.3/8\", \"::ffff:192.0.2.0/120\", \"::1\"]
timeouts = { connect = \"5s\", drain = \"0s\" }
limits = { body_bytes = \"2MiB\", header_bytes = 8192 }
[admin]
listen = \"\"
[upstream.z]
targets = [\"http://h\", \"http://[::1]:80\"]
[upstream.a]
targets = [\"http://h\"]
timeouts = { response = \"1m\" }
[[route]]
host = \"*.example.com\"
upstream = \"a\"
[headers]
send = []
",
    );
    assert_eq!(settings.server.listen.len(), 2);
    let networks: Vec<String> = settings
        .identity
        .trusted_proxies
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.0.2.0/24", "::1/128"]);
    assert_eq!(settings.server.drain, Duration::ZERO);
    assert_eq!(
        (settings.proxy.body_bytes, settings.server.header_bytes),
        (2 << 20, 8_192)
    );
    assert_eq!(settings.admin.listen, None);
    let names: Vec<&str> = settings
        .upstreams
        .iter()
        .map(|upstream| upstream.name.as_str())
        .collect();
    assert_eq!(names, ["z", "a"]);
    let times = |index: usize| {
        (
            settings.upstreams[index].connect,
            settings.upstreams[index].response,
        )
    };
    assert_eq!((times(0), times(1)), ((secs(5), secs(30)), (secs(5), secs(60))));
    assert!(
        settings.proxy.routes[0]
            .host
            .as_ref()
            .unwrap()
            .matches("x.example.com")
    );
    assert!(settings.proxy.profiles.is_empty());
}

#[test]
fn a_rule_has_defaults() {
    let settings = settings(&rule(""));
    let rule = &settings.rules[0];
    assert_eq!(
        (rule.spec.kind, rule.spec.precision, rule.spec.blend),
        (Kind::SlidingWindow, 1, true)
    );
    assert_eq!((rule.spec.cost, rule.spec.burst), (1, None));
    assert_eq!((rule.missing, rule.scope), (Missing::Share, Scope::Store));
    assert_eq!(rule.refund, [RefundOn::UpstreamError]);
    assert!(rule.visible && !rule.dry_run && rule.overrides.is_empty());
    assert!(rule.matches.path.is_none() && rule.matches.methods.is_empty());
}

#[test]
fn a_rule_is_what_is_written() {
    let text = "\
[identity]
user = [\"header:x-user\", \"ip\"]
[[rule]]
name = \"a\"
match = { path = \"/u/{id}\", methods = [\"GET\"], not_methods = [\"PURGE\"] }
key = [\"user|ip\", \"path:id\", \"ip\"]
missing = \"reject\"
algorithm = \"token-bucket\"
limit = 10
window = \"1s\"
burst = 5
cost = 0
refund = [304, \"4xx\"]
scope = \"gateway\"
dry_run = true
visible = false
override = [
  { key = [\"acme\", \"*\", \"10.1.2.3/8\"], limit = 3 },
  { key = [\"10.0.0.1\", \"7\", \"2001:db8::1\"], limit = 3, burst = 9 },
  { key = [\"*\", \"*\", \"*\"], limit = \"unlimited\" },
]
";
    let settings = settings(text);
    let rule = &settings.rules[0];
    assert_eq!(rule.key[0].alternatives, [Source::User, Source::Ip]);
    assert_eq!(
        rule.refund,
        [RefundOn::Status(304.try_into().unwrap()), RefundOn::Class(4)]
    );
    assert_eq!((rule.missing, rule.scope), (Missing::Reject, Scope::Gateway));
    assert!(rule.dry_run && !rule.visible);
    let net = |text: &str| Wanted::Net(text.parse().unwrap());
    let text = |text: &str| Wanted::Text(text.to_owned());
    assert_eq!(
        rule.overrides[0].key,
        [text("acme"), Wanted::Any, net("10.0.0.0/8")]
    );
    assert_eq!(
        rule.overrides[1].key,
        [net("10.0.0.1/32"), text("7"), net("2001:db8::1/128")]
    );
    // An override without a burst has the rule's.
    let quota = |index: usize| match rule.overrides[index].allowance {
        Allowance::Limit(policy) => Some(policy.quota()),
        Allowance::Unlimited | Allowance::Blocked => None,
    };
    assert_eq!([quota(0), quota(1), quota(2)], [Some(5), Some(9), None]);
}

#[test]
fn a_limit_in_flight_has_no_window_and_gives_nothing_back() {
    let settings = settings(
        "[[rule]]\nname = \"a\"\nkey = [\"ip\"]\nalgorithm = \"concurrency\"\nlimit = 5\ncost = 2\n\
         override = [{ key = \"10.0.0.1\", limit = 9 }, { key = \"10.0.0.2\", limit = \"blocked\" }]\n",
    );
    let rule = &settings.rules[0];
    assert_eq!((rule.spec.kind, rule.spec.window), (Kind::Concurrency, None));
    assert!(rule.refund.is_empty());
    assert_eq!((rule.policy.quota(), rule.spec.cost), (5, 2));
    assert!(matches!(rule.overrides[0].allowance, Allowance::Limit(policy) if policy.quota() == 9));
    assert!(matches!(rule.overrides[1].allowance, Allowance::Blocked));
}

#[test]
fn a_queue_is_the_rules_and_its_overrides() {
    let settings = settings(&rule(
        "algorithm = \"gcra\"\nqueue = \"500ms\"\noverride = [{ key = [], limit = 9 }]",
    ));
    let rule = &settings.rules[0];
    let queue = Micros::from_millis(500);
    assert_eq!((rule.spec.queue, rule.policy.queue()), (Some(queue), queue));
    assert!(matches!(rule.overrides[0].allowance, Allowance::Limit(policy) if policy.queue() == queue));
}

#[test]
fn a_summary_counts() {
    let loaded = parse_text(&format!("{}{}", rule(""), super::REST)).unwrap();
    assert_eq!(
        loaded.summary(),
        "g.toml: 1 rule, 1 route, 1 upstream; no warnings"
    );
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
