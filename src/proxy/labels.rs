//! What the header fields say of a limiter whatever the request: written once, when the rules come into force.

use http::HeaderValue;
use sfv::{Integer, ItemSerializer, KeyRef, RefBareItem, StringRef};

use crate::limit::Policy;
use crate::rules::{Allowance, Charge, OnOutage, Rule, RuleTable};

const QUOTA: &KeyRef = KeyRef::constant("q");
const UNIT: &KeyRef = KeyRef::constant("qu");
const WINDOW: &KeyRef = KeyRef::constant("w");

/// The labels of a rule table, by rule and by override.
#[derive(Debug)]
pub(super) struct Labels(Vec<RuleLabels>);

#[derive(Debug)]
struct RuleLabels {
    limiters: OneOrOverride,
    stand_ins: OneOrOverride,
}

/// The label of a rule's own limiter, and of those of its overrides.
#[derive(Debug)]
struct OneOrOverride {
    own: Option<Label>,
    overrides: Vec<Option<Label>>,
}

/// A limiter's unchanging parts of the header fields.
#[derive(Debug)]
pub(super) struct Label {
    rule: String,
    /// What remaining counts down from.
    pub quota: u64,
    /// The quota as a field value.
    pub limit: HeaderValue,
    /// The rule as a field value.
    pub resource: HeaderValue,
    /// The member of `RateLimit-Policy`.
    pub policy: HeaderValue,
    /// The name that begins the member of `RateLimit`.
    pub member: String,
}

impl Labels {
    pub(super) fn new(table: &RuleTable) -> Self {
        Self(table.rules().map(RuleLabels::new).collect())
    }

    /// The label of the limiter that a charge is for; `None` if clients may not see it.
    pub(super) fn of(&self, charge: &Charge) -> Option<&Label> {
        self.0.get(charge.rule.0)?.limiters.of(charge)
    }

    /// The label of the bucket that stands in for the limiter of a charge while the store cannot decide.
    pub(super) fn of_stand_in(&self, charge: &Charge) -> Option<&Label> {
        self.0.get(charge.rule.0)?.stand_ins.of(charge)
    }
}

impl RuleLabels {
    fn new(rule: &Rule) -> Self {
        let stand_in = |policy: &Policy| {
            let OnOutage::Local(share) = rule.on_outage else {
                return None;
            };
            let bucket = policy.stand_in(|units| share.of(units), rule.spec.cost);
            Label::new(&format!("{};fallback", rule.name), &bucket)
        };
        Self {
            limiters: OneOrOverride::new(rule, |policy| Label::new(&rule.name, policy)),
            stand_ins: OneOrOverride::new(rule, stand_in),
        }
    }
}

impl OneOrOverride {
    fn new(rule: &Rule, label: impl Fn(&Policy) -> Option<Label>) -> Self {
        let label = |policy: &Policy| label(policy).filter(|_| rule.is_shown());
        let overrides = rule.overrides.iter().map(|own| match &own.allowance {
            Allowance::Limit(policy) => label(policy),
            Allowance::Unlimited | Allowance::Blocked => None,
        });
        Self {
            own: label(&rule.policy),
            overrides: overrides.collect(),
        }
    }

    fn of(&self, charge: &Charge) -> Option<&Label> {
        match charge.allowance {
            None => self.own.as_ref(),
            Some(place) => self.overrides.get(place)?.as_ref(),
        }
    }
}

impl Label {
    /// `None` if the name cannot stand in a field, which no rule of a checked table has.
    pub(super) fn new(rule: &str, policy: &Policy) -> Option<Self> {
        let name = StringRef::from_str(rule).ok()?;
        let member = ItemSerializer::new()
            .bare_item(RefBareItem::String(name))
            .finish();
        let mut item = ItemSerializer::new().bare_item(RefBareItem::String(name));
        if let Ok(quota) = Integer::try_from(policy.quota()) {
            item = item.parameter(QUOTA, quota);
        }
        if let Policy::Concurrency(_) = policy {
            item = item.parameter(UNIT, StringRef::constant("concurrent-requests"));
        }
        if let Some(window) = policy.window_secs().and_then(|secs| Integer::try_from(secs).ok()) {
            item = item.parameter(WINDOW, window);
        }
        Some(Self {
            rule: rule.to_owned(),
            quota: policy.quota(),
            limit: policy.quota().into(),
            resource: HeaderValue::from_str(rule).ok()?,
            policy: HeaderValue::try_from(item.finish()).ok()?,
            member,
        })
    }

    pub(super) fn rule(&self) -> &str {
        &self.rule
    }
}
