//! The rule table: which limiters apply to a request, and what an outcome owes.
//!
//! [`RuleTable::plan`] turns a request and its [`Caller`](crate::identity::Caller) into a [`Plan`]. This module never
//! asks a store and never sees a response.

mod explain;
mod pattern;
mod plan;
mod refund;
mod rule;
mod table;

pub use explain::{Denied, Exempt, Explained, Finding, Part, PartValue};
pub use pattern::{HostError, HostPattern, PathPattern, PatternError, normal_path, spellings};
pub use plan::{Charge, Plan, RuleId};
pub use refund::{Outcome, REFUND_WORDS, RefundError, RefundOn};
pub use rule::{Allowance, Match, Mismatch, Missing, OnOutage, Override, Rule, Scope, Share, Wanted};
pub use table::{RoutePattern, RuleTable};
