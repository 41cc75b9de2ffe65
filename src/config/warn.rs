//! What is allowed and probably not meant.

use ipnet::IpNet;

use super::notes::Notes;
use super::overlap::{covers, disjoint, hosts_meet};
use super::rule::ReadRule;
use super::words::quoted;
use crate::identity::Source;
use crate::limit::Kind;
use crate::proxy::Route;
use crate::rules::{Allowance, RefundOn, Wanted};

/// Bytes that a sliding log keeps for each unit of its limit.
const LOG_ENTRY: u64 = 16;
/// A log of fewer bytes is not worth a word.
const LOG_NOTABLE: u64 = 16_000;
/// What a rule is seen against.
pub(super) struct Scene<'a> {
    /// `None` where something else routes.
    pub(super) routes: Option<&'a [Route]>,
    pub(super) max_keys: usize,
    pub(super) ipv6_prefix: u8,
    /// Whether hashes of keys leave the process, and whoever has read this source could have made them.
    pub(super) tells_hashes: bool,
    /// What `user` is.
    pub(super) user: &'a [Source],
}

/// Looks at every rule.
pub(super) fn rules(rules: &[ReadRule], scene: &Scene<'_>, notes: &Notes<'_>) {
    for rule in rules {
        never_matches(rule, notes);
        if let Some(routes) = scene.routes {
            unrouted(rule, routes, notes);
            one_endpoint(rule, routes, notes);
        }
        large_log(rule, scene, notes);
        finer_than_keys(rule, scene, notes);
        free_aborts(rule, notes);
        guessable(rule, scene, notes);
    }
}

fn never_matches(read: &ReadRule, notes: &Notes<'_>) {
    let matches = &read.rule.matches;
    let excluded = |method| matches.not_methods.contains(method);
    if !matches.methods.is_empty() && matches.methods.iter().all(excluded) {
        let problem = "the rule never applies: `not_methods` excludes all of its `methods`";
        notes.warn(read.matches.methods, problem, "take them out of one of the two");
    }
    for (not_path, span) in matches.not_path.iter().zip(&read.matches.not_path) {
        let every = match &matches.path {
            Some(path) => covers(not_path, path),
            None => not_path.shape() == "/{*}",
        };
        if every {
            let problem = "the rule never applies: this pattern excludes every path of the rule";
            notes.warn(*span, problem, "a narrower pattern in `not_path`");
        }
    }
}

fn unrouted(read: &ReadRule, routes: &[Route], notes: &Notes<'_>) {
    let matches = &read.rule.matches;
    let host_meets = |route: &Route| match (&matches.host, &route.host) {
        (Some(rule), Some(route)) => hosts_meet(rule, route),
        _ => true,
    };
    let path_meets = |route: &Route| {
        let path = matches.path.as_ref();
        path.is_none_or(|path| !disjoint(path, &route.path))
    };
    if !routes.iter().any(host_meets) {
        let problem = "the rule never applies: no route serves this host";
        notes.warn(read.matches.host, problem, "a host that a `[[route]]` has");
    } else if !routes.iter().any(|route| host_meets(route) && path_meets(route)) {
        let problem = "the rule never applies: no route serves this path";
        notes.warn(read.matches.path, problem, "a path below that of a `[[route]]`");
    }
}

fn one_endpoint(read: &ReadRule, routes: &[Route], notes: &Notes<'_>) {
    if read.rule.matches.path.is_some() || routes.iter().any(|route| route.path.shape() != "/{*}") {
        return;
    }
    for (part, span) in read.rule.key.iter().zip(&read.key) {
        if part.alternatives.contains(&Source::Endpoint) {
            let problem = "`endpoint` is the same for every path: neither the rule nor a route has a pattern";
            notes.warn(
                *span,
                problem,
                "`match = { path = \"…\" }` in the rule, or routes with a `path`",
            );
        }
    }
}

fn large_log(read: &ReadRule, scene: &Scene<'_>, notes: &Notes<'_>) {
    let rule = &read.rule;
    let own = rule.overrides.iter().filter_map(|own| match own.allowance {
        Allowance::Limit(policy) => Some(policy.quota()),
        Allowance::Unlimited | Allowance::Blocked => None,
    });
    let limit = own.fold(rule.spec.limit, u64::max);
    let key = limit.saturating_mul(LOG_ENTRY);
    if rule.spec.kind != Kind::SlidingLog || key < LOG_NOTABLE {
        return;
    }
    let all = u128::from(key) * scene.max_keys as u128;
    let problem = format!(
        "a sliding-log of {limit} takes {} a key, {} for {} keys",
        bytes(u128::from(key)),
        bytes(all),
        scene.max_keys
    );
    notes.warn(
        read.limit,
        problem,
        "`algorithm = \"sliding-window\"`, whose size does not grow",
    );
}

/// An override for less than the addresses that share a key: its caller spends from the same count as its neighbours.
fn finer_than_keys(read: &ReadRule, scene: &Scene<'_>, notes: &Notes<'_>) {
    for own in &read.rule.overrides {
        for (wanted, span) in own.key.iter().zip(&read.key) {
            if let (Wanted::Net(IpNet::V6(net)), Allowance::Limit(_)) = (wanted, own.allowance)
                && net.prefix_len() > scene.ipv6_prefix
            {
                let problem = format!(
                    "the override for {net} shares its count with the whole /{}",
                    scene.ipv6_prefix
                );
                notes.warn(
                    *span,
                    problem,
                    format!("a network of /{} or wider", scene.ipv6_prefix),
                );
            }
        }
    }
}

/// Decimal, to three digits or more.
fn bytes(count: u128) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut count, mut unit) = (count, 0);
    while count >= 10_000 && unit + 1 < UNITS.len() {
        (count, unit) = (count / 1_000, unit + 1);
    }
    format!("{count} {}", UNITS[unit])
}

fn free_aborts(read: &ReadRule, notes: &Notes<'_>) {
    for (on, span) in read.rule.refund.iter().zip(&read.refund) {
        if *on == RefundOn::ClientAbort {
            let problem =
                "a client that leaves before its answer is not charged, though the upstream may do the work";
            let hint = format!("`refund` without {}", quoted(&on.to_string()));
            notes.warn(*span, problem, hint);
        }
    }
}

/// Keys that hold credentials, in a store that others can read, under hashes that others can make.
fn guessable(read: &ReadRule, scene: &Scene<'_>, notes: &Notes<'_>) {
    if !scene.tells_hashes {
        return;
    }
    for (part, span) in read.rule.key.iter().zip(&read.key) {
        let held = part.alternatives.iter().find(|source| match source {
            Source::User => scene.user.iter().any(is_credential),
            source => is_credential(source),
        });
        if let Some(held) = held {
            let problem = format!(
                "{} may be a credential, and without `hash_key` whoever reads the store can test guesses of it",
                quoted(&held.word())
            );
            let hint = "`hash_key = \"env:TOLLGATE_HASH_KEY\"` in [store], the same for all gateways";
            notes.warn(*span, problem, hint);
        }
    }
}

/// Whether a part of a request is made to be kept secret, as far as its name tells.
fn is_credential(source: &Source) -> bool {
    const SECRETIVE: [&str; 7] = ["auth", "bearer", "key", "password", "secret", "session", "token"];
    let name = match source {
        Source::Cookie(_) => return true,
        Source::Header(name) => name.as_str(),
        Source::Query(name) => name,
        _ => return false,
    };
    let name = name.to_ascii_lowercase();
    name == "cookie" || SECRETIVE.iter().any(|word| name.contains(word))
}
