//! The rules in force, made ready to be asked.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use http::Request;
use ipnet::Ipv6Net;
use smallvec::SmallVec;

use super::explain::{Denied, Exempt, Explained, Finding, Part, PartValue};
use super::pattern::{PathPattern, normal_path};
use super::plan::{Charge, Plan, RuleId};
use super::rule::{Allowance, Mismatch, Missing, Override, Rule, Wanted};
use crate::identity::{
    Ambiguous, Caller, KeyBuilder, LimitKey, Recent, Secret, Settings, Source, Subject, Value,
};
use crate::limit::Policy;

/// The pattern of the route that a request takes; a router puts it into the request's extensions, for keys that name
/// the endpoint.
#[derive(Clone, Debug)]
pub struct RoutePattern(pub Arc<str>);

/// The rules in force.
#[derive(Debug)]
pub struct RuleTable {
    rules: Vec<Prepared>,
    identity: Settings,
    secret: Secret,
    recent: Recent,
}

#[derive(Debug)]
struct Prepared {
    rule: Rule,
    /// What each part of the key reads, in order.
    sources: Vec<Vec<Source>>,
    name: KeyBuilder,
    label: String,
    overflow: LimitKey,
    overrides: Overrides,
}

/// The values of a rule's key parts: which alternative gave it, and the value; `None` is absent.
type Values<'r> = SmallVec<[Option<(u8, Value<'r>)>; 4]>;

impl RuleTable {
    /// Makes a table of checked rules with unique names.
    pub fn new(rules: Vec<Rule>, identity: Settings, secret: Secret) -> Self {
        let rules = rules
            .into_iter()
            .map(|rule| Prepared::new(rule, &identity, &secret))
            .collect();
        Self {
            rules,
            identity,
            secret,
            recent: Recent::default(),
        }
    }

    /// The rule of this table that `id` names.
    pub fn rule(&self, id: RuleId) -> Option<&Rule> {
        self.rules.get(id.0).map(|prepared| &prepared.rule)
    }

    /// What names a rule's limiters to people who read a store: its name, and a hash of its
    /// [fingerprint](Rule::fingerprint).
    pub fn label(&self, id: RuleId) -> &str {
        self.rules.get(id.0).map_or("", |prepared| &prepared.label)
    }

    /// The rules in table order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|prepared| &prepared.rule)
    }

    /// All limiters that apply to a request that takes the route with this pattern.
    ///
    /// # Errors
    /// A rule that applies, and is not a dry run, cannot tell who the caller is, or blocks it; the first such rule.
    pub fn plan<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        caller: &Caller,
        route: Option<&str>,
    ) -> Result<Plan, Denied> {
        let path = normal_path(request.uri().path());
        let (mut charges, mut spared) = (SmallVec::new(), SmallVec::new());
        let asked = (caller, route.unwrap_or("*"));
        for id in self.ids() {
            let dry_run = || self.rule(id).is_some_and(|rule| rule.dry_run);
            match self.judge(id, request, &path, asked, |_| ()) {
                Finding::Charge(charge) => charges.push(charge),
                Finding::Exempt(_) => {}
                Finding::Deny(Denied::Blocked { rule, .. }) if dry_run() => spared.push(rule),
                Finding::Deny(_) if dry_run() => {}
                Finding::Deny(denied) => return Err(denied),
            }
        }
        Ok(Plan {
            table: Arc::clone(self),
            charges,
            spared,
        })
    }

    /// What each rule makes of a request, in table order: what [`plan`](Self::plan) does, and why.
    pub fn explain<B>(&self, request: &Request<B>, caller: &Caller, route: Option<&str>) -> Vec<Explained> {
        let path = normal_path(request.uri().path());
        let asked = (caller, route.unwrap_or("*"));
        let explain = |(id, prepared): (RuleId, &Prepared)| {
            let mut parts = Vec::new();
            let finding = self.judge(id, request, &path, asked, |values| {
                let placed = values.iter().enumerate();
                parts = placed
                    .map(|(place, value)| self.part(prepared, place, value))
                    .collect();
            });
            Explained {
                rule: id,
                finding,
                parts,
            }
        };
        self.ids().zip(&self.rules).map(explain).collect()
    }

    /// The limiter that a charge of an `earlier` table has in this one; `None` if its rule is gone or counts otherwise. An
    /// override is found again by its key.
    pub fn successor(&self, earlier: &Self, charge: &Charge) -> Option<Policy> {
        let before = earlier.rule(charge.rule)?;
        let same = |rule: &&Rule| rule.name == before.name && rule.fingerprint() == before.fingerprint();
        let rule = self.rules().find(same)?;
        let own = charge.allowance.and_then(|place| before.overrides.get(place));
        let own = own.and_then(|own| rule.overrides.iter().find(|other| other.key == own.key));
        Some(match own.map(|own| own.allowance) {
            Some(Allowance::Limit(policy)) => policy,
            _ => rule.policy,
        })
    }

    fn ids(&self) -> impl Iterator<Item = RuleId> + use<> {
        (0..self.rules.len()).map(RuleId)
    }

    /// What a rule makes of a request; `see` is shown the values of its key, as far as they were read.
    fn judge<B>(
        &self,
        id: RuleId,
        request: &Request<B>,
        path: &str,
        (caller, endpoint): (&Caller, &str),
        see: impl FnOnce(&Values<'_>),
    ) -> Finding {
        let Some(prepared) = self.rules.get(id.0) else {
            return Finding::Exempt(Exempt::Mismatch(Mismatch::Path));
        };
        let rule = &prepared.rule;
        if let Some(mismatch) = rule.matches.mismatch(request, path) {
            return Finding::Exempt(Exempt::Mismatch(mismatch));
        }
        let pattern = rule.matches.path.as_ref();
        let subject = Subject {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            caller,
            endpoint: pattern.map_or(endpoint, PathPattern::text),
            capture: &|name| pattern?.capture(path, name),
        };
        let mut values = Values::new();
        let ended = Self::read(prepared, &subject, &mut values);
        see(&values);
        if let Some(end) = ended {
            return end;
        }
        let (policy, allowance) = match prepared.overrides.find(&values) {
            Some((place, Allowance::Unlimited)) => return Finding::Exempt(Exempt::Unlimited(place)),
            Some((_, Allowance::Blocked)) => {
                let key = self.key(&prepared.name, &values);
                return Finding::Deny(Denied::Blocked { rule: id, key });
            }
            Some((place, Allowance::Limit(policy))) => (policy, Some(place)),
            None => (rule.policy, None),
        };
        Finding::Charge(Charge {
            rule: id,
            allowance,
            key: self.key(&prepared.name, &values),
            overflow: prepared.overflow,
            policy,
            own: rule.policy,
            cost: rule.spec.cost,
            dry_run: rule.dry_run,
        })
    }

    /// Reads the values of a rule's key, up to one for want of which the rule does not apply or refuses.
    fn read<'r>(prepared: &Prepared, subject: &Subject<'r>, values: &mut Values<'r>) -> Option<Finding> {
        let parts = prepared.sources.iter().zip(&prepared.rule.key);
        for (place, (sources, part)) in parts.enumerate() {
            let mut value = None;
            for (alternative, source) in (0..).zip(sources) {
                match subject.read(source) {
                    Ok(Some(found)) => {
                        value = Some((alternative, found));
                        break;
                    }
                    Ok(None) => {}
                    Err(Ambiguous(source)) => return Some(Finding::Deny(Denied::Ambiguous(source))),
                }
            }
            let absent = value.is_none();
            values.push(value);
            match prepared.rule.missing {
                Missing::Skip if absent => return Some(Finding::Exempt(Exempt::Missing(place))),
                Missing::Reject if absent => {
                    return Some(Finding::Deny(Denied::Missing(part.to_string())));
                }
                Missing::Share | Missing::Skip | Missing::Reject => {}
            }
        }
        None
    }

    /// The part of a key at this place, as people read it.
    fn part(&self, prepared: &Prepared, place: usize, value: &Option<(u8, Value<'_>)>) -> Part {
        let sources = prepared.sources.get(place);
        let shown = |(alternative, value): &(u8, Value<'_>)| PartValue {
            source: sources
                .and_then(|sources| sources.get(usize::from(*alternative)))
                .map_or_else(String::new, Source::word),
            text: match value {
                Value::Bytes(bytes) => bytes.escape_ascii().to_string(),
                Value::Address(IpAddr::V6(address)) if self.identity.ipv6_prefix < 128 => {
                    let prefix = self.identity.ipv6_prefix;
                    format!("{}/{prefix}", cut(*address, prefix))
                }
                Value::Address(address) => address.to_string(),
            },
        };
        let part = prepared.rule.key.get(place);
        Part {
            text: part.map(|part| part.text.clone()).unwrap_or_default(),
            value: value.as_ref().map(shown),
        }
    }

    fn key(&self, name: &KeyBuilder, values: &Values<'_>) -> LimitKey {
        let mut key = name.clone();
        for value in values {
            match value {
                None => key.absent(),
                Some((alternative, Value::Bytes(bytes))) => key.part(*alternative, bytes),
                Some((alternative, Value::Address(IpAddr::V4(address)))) => {
                    key.part(*alternative, &address.octets());
                }
                Some((alternative, Value::Address(IpAddr::V6(address)))) => {
                    key.part(*alternative, &cut(*address, self.identity.ipv6_prefix).octets());
                }
            }
        }
        key.finish_by(&self.secret, &self.recent)
    }
}

impl Prepared {
    fn new(rule: Rule, identity: &Settings, secret: &Secret) -> Self {
        let fingerprint = rule.fingerprint();
        let name = KeyBuilder::new(&rule.name, &fingerprint);
        let hash = blake3::hash(fingerprint.as_bytes()).to_hex();
        let label = format!("{}:{}", rule.name, hash.get(..8).unwrap_or_default());
        let sources = rule.key.iter().map(|part| identity.sources(part)).collect();
        let mut overflow = name.clone();
        overflow.nobody();
        let overflow = overflow.finish(secret);
        let overrides = Overrides::new(&rule.overrides);
        Self {
            rule,
            sources,
            name,
            label,
            overflow,
            overrides,
        }
    }
}

fn cut(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    Ipv6Net::new(address, prefix).map_or(address, |network| network.network())
}

/// A rule's overrides; the first in the order of the file that fits counts.
#[derive(Debug)]
struct Overrides {
    /// Those whose key is one text.
    exact: HashMap<String, (usize, Allowance)>,
    /// The others, in order.
    scanned: Vec<(usize, Override)>,
}

impl Overrides {
    fn new(overrides: &[Override]) -> Self {
        let mut exact = HashMap::new();
        let mut scanned = Vec::new();
        for (order, entry) in overrides.iter().enumerate() {
            match entry.key.as_slice() {
                [Wanted::Text(text)] => {
                    exact.entry(text.clone()).or_insert((order, entry.allowance));
                }
                _ => scanned.push((order, entry.clone())),
            }
        }
        Self { exact, scanned }
    }

    /// The place and the allowance of the override that applies.
    fn find(&self, values: &Values<'_>) -> Option<(usize, Allowance)> {
        let exact = match values.as_slice() {
            [Some((_, Value::Bytes(bytes)))] if !self.exact.is_empty() => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| self.exact.get(text)),
            _ => None,
        };
        let scanned = self.scanned.iter().find(|(_, entry)| {
            entry
                .key
                .iter()
                .zip(values)
                .all(|(wanted, value)| wanted.is(value))
        });
        match (exact, scanned) {
            (Some((first, allowance)), Some((second, _))) if first < second => Some((*first, *allowance)),
            (_, Some((place, entry))) => Some((*place, entry.allowance)),
            (Some((place, allowance)), None) => Some((*place, *allowance)),
            (None, None) => None,
        }
    }
}

impl Wanted {
    fn is(&self, value: &Option<(u8, Value<'_>)>) -> bool {
        match (self, value) {
            (Self::Any, _) => true,
            (Self::Net(network), Some((_, Value::Address(address)))) => network.contains(address),
            (Self::Text(text), Some((_, Value::Bytes(bytes)))) => text.as_bytes() == bytes.as_ref(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
