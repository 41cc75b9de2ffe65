//! What a rule makes of a request, and why: what a plan is made of, and what an explanation tells.

use super::plan::{Charge, RuleId};
use super::rule::Mismatch;
use crate::identity::{LimitKey, Source};

/// What a rule makes of a request.
#[derive(Clone, Debug)]
pub enum Finding {
    /// It charges it.
    Charge(Charge),
    /// It does not apply.
    Exempt(Exempt),
    /// It cannot tell who the caller is, or blocks it. A dry run then does not apply; another rule refuses the request.
    Deny(Denied),
}

/// Why a rule does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exempt {
    /// The request is not one that it is for.
    Mismatch(Mismatch),
    /// The request lacks the part of the key at this place, and `missing` is `skip`.
    Missing(usize),
    /// The override at this place gives the caller no limit.
    Unlimited(usize),
}

/// Why a request may not be planned. It is charged nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A rule with `missing = "reject"` needs a key part that the request lacks.
    #[error("the request needs {0}")]
    Missing(String),
    /// What a key is read from has two values in one request.
    #[error("the request has more than one value for {0}")]
    Ambiguous(Source),
    /// An override of a rule blocks the caller.
    #[error("this caller is blocked")]
    Blocked {
        /// The rule.
        rule: RuleId,
        /// The caller's key with it.
        key: LimitKey,
    },
}

/// What a rule makes of a request, told in full.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The rule.
    pub rule: RuleId,
    /// What it makes of the request.
    pub finding: Finding,
    /// The parts of the caller's key, as far as they were read.
    pub parts: Vec<Part>,
}

/// A part of a key as a request has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// As the rule writes it.
    pub text: String,
    /// What the request has of it; `None` is absent.
    pub value: Option<PartValue>,
}

/// The value of a key part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartValue {
    /// Where it was read, as the rule table writes it.
    pub source: String,
    /// As it counts: an address cut to its network, bytes that are not printable ASCII escaped.
    pub text: String,
}
