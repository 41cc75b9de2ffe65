//! What every store must do, as tests that are generic over the store.
//!
//! A store brings a [`Fixture`] and calls [`store_contract!`], which makes a test of each check here. The suite speaks
//! to the library by its name, so that tests outside of it can include these files as `crate::store::contract`, and
//! `src/limit/model.rs` as `crate::limit::model`.

mod agreement;
mod checks;
mod races;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::Micros;
use tollgate::identity::{LimitKey, Secret, Settings};
use tollgate::limit::{Kind, Spec};
use tollgate::rules::{Charge, RuleId, RuleTable};
use tollgate::store::{Refund, Reserved, Store};

pub(crate) use agreement::the_answers_are_those_of_the_model;
pub(crate) use checks::{
    a_changed_limit_acts_at_once, a_dry_run_rejects_nothing, a_queue_tells_each_request_its_slot,
    a_refund_gives_back_what_was_charged, a_refund_of_an_unknown_key_does_nothing, a_window_ends,
    cost_zero_reads, exactly_the_limit, one_key_asked_twice_is_asked_for_the_sum,
    rejected_here_is_charged_nowhere, what_is_in_flight_stays_until_it_is_released,
};
pub(crate) use races::{
    a_race_for_crossed_keys_admits_the_limit, a_race_for_one_key_admits_the_limit,
    a_race_with_refunds_admits_the_limit,
};

/// A store under test, empty and with room for all that a check stores, and its clock.
pub(crate) trait Fixture: Sync {
    type Store: Store;

    /// The algorithms that the store decides.
    const KINDS: &'static [Kind] = &Kind::ALL;

    fn store(&self) -> &Self::Store;

    /// The store's clock now.
    fn now(&self) -> Micros;

    /// Lets time pass on the store's clock.
    fn pass(&self, time: Micros);

    /// Waits for a future.
    fn wait<F: Future>(&self, future: F) -> F::Output;

    /// Waits until the refunds that were sent have acted.
    fn settle(&self);

    fn reserve(&self, charges: &[Charge]) -> Reserved {
        self.wait(self.store().reserve(table(), charges)).unwrap()
    }

    fn admits(&self, charges: &[Charge]) -> bool {
        self.reserve(charges).admitted
    }

    /// Gives everything back that was charged.
    fn give_back(&self, charges: &[Charge], reserved: &Reserved) {
        self.store().refund(table(), &refunds(charges, reserved));
        self.settle();
    }
}

/// A test for each check of the contract; `$fixture` makes an empty store.
macro_rules! store_contract {
    ($fixture:expr) => {
        store_contract! { $fixture =>
            exactly_the_limit
            rejected_here_is_charged_nowhere
            one_key_asked_twice_is_asked_for_the_sum
            a_dry_run_rejects_nothing
            cost_zero_reads
            a_refund_gives_back_what_was_charged
            a_refund_of_an_unknown_key_does_nothing
            a_window_ends
            what_is_in_flight_stays_until_it_is_released
            a_queue_tells_each_request_its_slot
            a_changed_limit_acts_at_once
            a_race_for_one_key_admits_the_limit
            a_race_for_crossed_keys_admits_the_limit
            a_race_with_refunds_admits_the_limit
            the_answers_are_those_of_the_model
        }
    };
    ($fixture:expr => $($check:ident)*) => {
        mod contract {
            use super::*;

            $(
                #[test]
                fn $check() {
                    crate::store::contract::$check(&$fixture);
                }
            )*
        }
    };
}
pub(crate) use store_contract;

/// When a request was decided, on the clock of who decided first.
pub(crate) fn ruled(reserved: &Reserved) -> Micros {
    reserved.rulings[0].now
}

/// The algorithms whose quota time gives back.
pub(crate) fn timed() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.has_window())
}

/// A table without rules: limiters are told apart by their keys.
pub(crate) fn table() -> &'static RuleTable {
    static TABLE: LazyLock<RuleTable> =
        LazyLock::new(|| RuleTable::new(Vec::new(), Settings::default(), Secret::from_text("contract")));
    &TABLE
}

/// A key that no other call returns.
pub(crate) fn new_key() -> LimitKey {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let hash = blake3::hash(&number.to_be_bytes());
    LimitKey(
        hash.as_bytes()
            .iter()
            .take(16)
            .fold(0, |key, byte| key << 8 | u128::from(*byte)),
    )
}

/// A rule whose quota is `limit`.
pub(crate) fn rule(kind: Kind, limit: u64) -> Spec {
    let burst = kind.is_bucket().then_some(limit);
    Spec {
        kind,
        limit,
        window: kind.has_window().then_some(Micros::from_secs(60)),
        precision: 1,
        blend: true,
        burst,
        queue: None,
        cost: 1,
    }
}

pub(crate) fn charge(spec: &Spec, key: LimitKey) -> Charge {
    let policy = spec.policy().unwrap();
    Charge {
        allowance: None,
        rule: RuleId(0),
        key,
        overflow: new_key(),
        policy,
        own: policy,
        cost: spec.cost,
        dry_run: false,
    }
}

/// The refund of everything that was charged.
pub(crate) fn refunds(charges: &[Charge], reserved: &Reserved) -> Vec<Refund> {
    let charged = charges
        .iter()
        .zip(&reserved.rulings)
        .filter_map(|(charge, ruling)| {
            let receipt = ruling.verdict.receipt.clone()?;
            Some(Refund {
                rule: charge.rule,
                key: ruling.key,
                policy: charge.policy,
                receipt,
                by: ruling.by,
            })
        });
    charged.collect()
}
