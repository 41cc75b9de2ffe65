//! One rule, checked.

use http::{Method, Request};
use ipnet::IpNet;

use super::pattern::{HostPattern, PathPattern};
use super::refund::RefundOn;
use crate::identity::{KeyPart, requested_host};
use crate::limit::{Policy, Spec};

/// A rule of the table: whom it counts, how, and what is given back.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique in its table; `[A-Za-z0-9._-]{1,64}`.
    pub name: String,
    /// Which requests it is for.
    pub matches: Match,
    /// The parts of the caller's key; none is one bucket for all.
    pub key: Vec<KeyPart>,
    /// What becomes of a request that lacks a part.
    pub missing: Missing,
    /// The algorithm and its numbers as written.
    pub spec: Spec,
    /// The limiter that `spec` describes.
    pub policy: Policy,
    /// The outcomes that give a charge back; none makes the rule non-refundable.
    pub refund: Vec<RefundOn>,
    /// Callers with numbers of their own; the first that fits counts.
    pub overrides: Vec<Override>,
    /// Where the rule is decided.
    pub scope: Scope,
    /// What decides while the store cannot.
    pub on_outage: OnOutage,
    /// Whether a rejection is only recorded.
    pub dry_run: bool,
    /// Whether the rule shows in the header fields.
    pub visible: bool,
}

impl Rule {
    /// What the rule's counts belong to beside its name: algorithm, window, precision and the recipe of the key. A rule
    /// whose fingerprint changes starts afresh.
    pub fn fingerprint(&self) -> String {
        let parts: Vec<&str> = self.key.iter().map(|part| part.text.as_str()).collect();
        format!("{} {}", self.spec.fingerprint(), parts.join(","))
    }
}

/// Which requests a rule is for: all that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The path fits.
    pub path: Option<PathPattern>,
    /// The method is one of these; empty means any.
    pub methods: Vec<Method>,
    /// The host fits.
    pub host: Option<HostPattern>,
    /// No path of these fits.
    pub not_path: Vec<PathPattern>,
    /// The method is none of these.
    pub not_methods: Vec<Method>,
}

/// The first condition of a [`Match`] that a request does not fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// `methods` does not have its method.
    Methods,
    /// `not_methods` has it.
    NotMethods,
    /// `path` does not fit.
    Path,
    /// `not_path` has a pattern that fits.
    NotPath,
    /// `host` does not fit.
    Host,
}

/// What becomes of a request that lacks a part of a rule's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Absence is a value of its own: all such requests share one bucket (as far as the other parts agree).
    Share,
    /// The rule does not apply.
    Skip,
    /// The request is refused with 400.
    Reject,
}

/// Where a rule is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the store, together with all gateways on it.
    Store,
    /// In this process, whatever the store is.
    Gateway,
}

/// What decides on a rule's behalf while the store cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOutage {
    /// A bucket in this process, with a share of the limit.
    Local(Share),
    /// Nothing: the rule does not apply.
    Allow,
    /// Nothing: the request is refused with 503.
    Deny,
}

/// A part of a limit, in millionths: more than none of it, at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

/// Numbers of their own for some callers.
#[derive(Clone, Debug)]
pub struct Override {
    /// What the parts of the key must be, as many as the rule has parts.
    pub key: Vec<Wanted>,
    /// What such a caller may do.
    pub allowance: Allowance,
}

/// What one key part must be for an [`Override`] to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Anything.
    Any,
    /// An address in this network.
    Net(IpNet),
    /// Exactly this text.
    Text(String),
}

/// What an [`Override`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Another limit.
    Limit(Policy),
    /// No limit: the rule does not apply.
    Unlimited,
    /// Nothing: the request is refused, unless the rule is a dry run.
    Blocked,
}

impl Default for OnOutage {
    fn default() -> Self {
        Self::Local(Share::HALF)
    }
}

impl Share {
    /// A half.
    pub const HALF: Self = Self(500_000);

    /// All there is.
    pub const ALL: Self = Self(1_000_000);

    /// So many millionths, if they are more than none and not more than all.
    pub fn millionths(millionths: u32) -> Option<Self> {
        (1..=Self::ALL.0)
            .contains(&millionths)
            .then_some(Self(millionths))
    }

    /// This part of so many units, rounded down, but at least one of them.
    pub fn of(self, units: u64) -> u64 {
        let part = u128::from(units) * u128::from(self.0) / u128::from(Self::ALL.0);
        u64::try_from(part).unwrap_or(u64::MAX).max(1)
    }
}

impl Rule {
    /// Whether clients may see it: it is visible, and no dry run.
    pub fn is_shown(&self) -> bool {
        self.visible && !self.dry_run
    }
}

impl Match {
    /// What keeps a request with this normal path from being one that the rule is for.
    pub fn mismatch<B>(&self, request: &Request<B>, path: &str) -> Option<Mismatch> {
        let method = request.method();
        if !self.methods.is_empty() && !self.methods.contains(method) {
            return Some(Mismatch::Methods);
        }
        if self.not_methods.contains(method) {
            return Some(Mismatch::NotMethods);
        }
        if self.path.as_ref().is_some_and(|pattern| !pattern.matches(path)) {
            return Some(Mismatch::Path);
        }
        if self.not_path.iter().any(|pattern| pattern.matches(path)) {
            return Some(Mismatch::NotPath);
        }
        let asked = || requested_host(request.uri(), request.headers());
        let other = |host: &HostPattern| !asked().is_some_and(|asked| host.matches(asked));
        self.host.as_ref().is_some_and(other).then_some(Mismatch::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::Share;

    #[test]
    fn a_share_is_at_least_one() {
        for (millionths, units, share) in [
            (500_000, 100, 50),
            (500_000, 3, 1),
            (500_000, 1, 1),
            (1, 100, 1),
            (1_000_000, u64::MAX, u64::MAX),
            (333_333, (1 << 42) - 1, 1_466_014_037_685),
        ] {
            assert_eq!(Share::millionths(millionths).unwrap().of(units), share);
        }
        assert_eq!(Share::millionths(0), None);
        assert_eq!(Share::millionths(1_000_001), None);
    }
}
