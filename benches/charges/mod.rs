//! Charges as benches make them, ready but for their keys.

use smallvec::SmallVec;
use tollgate::clock::Micros;
use tollgate::identity::LimitKey;
use tollgate::limit::{Kind, Policy, Spec};
use tollgate::rules::{Charge, RuleId};

/// Units a second, so many that none is ever refused.
pub(crate) const LIMIT: u32 = 1_000_000_000;

/// Numbers as if drawn by lot, the same in each run.
pub(crate) fn numbers() -> impl Iterator<Item = u64> {
    (0..).map(mixed)
}

/// The output function of SplitMix64: different for different numbers.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut n = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

pub(crate) fn limit_key(caller: u64, rule: u64) -> LimitKey {
    let low = caller * 4 + rule;
    LimitKey(u128::from(mixed(low)) << 64 | u128::from(mixed(!low)))
}

/// A bucket that has room for all.
pub(crate) fn spec() -> Spec {
    Spec {
        kind: Kind::TokenBucket,
        limit: LIMIT.into(),
        window: Some(Micros::SECOND),
        precision: 1,
        blend: true,
        burst: None,
        queue: None,
        cost: 1,
    }
}

fn charge(rule: usize, policy: Policy) -> Charge {
    Charge {
        rule: RuleId(rule),
        allowance: None,
        key: LimitKey(0),
        overflow: LimitKey(rule as u128),
        policy,
        own: policy,
        cost: 1,
        dry_run: false,
    }
}

/// The charges of a request by as many rules, ready but for their keys.
pub(crate) fn prepared(rules: usize, policy: Policy) -> SmallVec<[Charge; 2]> {
    (0..rules).map(|rule| charge(rule, policy)).collect()
}
