//! One caller of one limiter, for the tests: a state, and a clock that the test moves.

use crate::clock::Micros;

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::{Algorithm, Kind, Policy, Receipt, Spec, Standing, Verdict};

/// An algorithm that can be taken out of a [`Policy`].
pub(super) trait Tried: Algorithm<Receipt: Into<Receipt>> {
    fn of(policy: Policy) -> Self;
    fn receipt(receipt: &Receipt) -> &Self::Receipt;
}

macro_rules! tried {
    ($($algorithm:ident)*) => {$(
        impl Tried for $algorithm {
            fn of(policy: Policy) -> Self {
                let Policy::$algorithm(policy) = policy else { panic!("not for {policy:?}") };
                policy
            }

            fn receipt(receipt: &Receipt) -> &Self::Receipt {
                let Receipt::$algorithm(receipt) = receipt else { panic!("not for {receipt:?}") };
                receipt
            }
        }
    )*};
}

tried! { FixedWindow SlidingLog SlidingWindow Bucket Concurrency }

/// A caller alone with a limiter. Its clock starts at a multiple of every window that the tests use.
pub(super) struct Trial<A: Tried> {
    pub(super) spec: Spec,
    pub(super) clock: u64,
    pub(super) state: Option<A::State>,
}

/// Where the clocks start: a whole number of days.
pub(super) const START: u64 = 20_000 * 86_400_000_000;

/// A rule for the tables.
pub(super) fn spec(kind: Kind, limit: u64, window: u64) -> Spec {
    Spec {
        kind,
        limit,
        window: kind.has_window().then_some(Micros(window)),
        precision: 1,
        blend: true,
        burst: None,
        queue: None,
        cost: 0,
    }
}

impl<A: Tried> Trial<A> {
    pub(super) fn new(spec: Spec) -> Self {
        Self {
            spec,
            clock: START,
            state: None,
        }
    }

    pub(super) fn policy(&self) -> A {
        A::of(self.spec.policy().unwrap())
    }

    /// Moves the clock to `offset` after the start.
    pub(super) fn at(&mut self, offset: u64) -> &mut Self {
        self.clock = START + offset;
        self
    }

    pub(super) fn ask(&mut self, cost: u64) -> Verdict<Receipt> {
        let policy = self.policy();
        let view = policy.advance(self.state.as_ref(), Micros(self.clock));
        if cost > 0 && policy.admits(self.state.as_ref(), &view, cost) {
            return policy
                .take(self.state.get_or_insert_default(), &view, cost)
                .proven();
        }
        let verdict = policy.read(self.state.as_ref(), &view, cost);
        if let (Some(state), true) = (&mut self.state, cost > 0) {
            policy.repair(state, &view);
        }
        verdict.proven()
    }

    pub(super) fn refund(&mut self, receipt: &Receipt) {
        if let Some(state) = &mut self.state {
            A::of(self.spec.policy().unwrap()).refund(state, Micros(self.clock), A::receipt(receipt));
        }
    }

    /// Whether each of these costs is admitted, in order.
    pub(super) fn run(&mut self, costs: &[u64]) -> Vec<bool> {
        costs.iter().map(|cost| self.ask(*cost).admitted).collect()
    }

    /// How many of `tries` requests of cost 1 are admitted.
    pub(super) fn burst(&mut self, tries: u64) -> u64 {
        (0..tries).map(|_| u64::from(self.ask(1).admitted)).sum()
    }

    pub(super) fn standing_at(&self, clock: u64) -> Standing {
        let policy = self.policy();
        policy.standing(
            self.state.as_ref(),
            &policy.advance(self.state.as_ref(), Micros(clock)),
        )
    }

    pub(super) fn admits_at(&self, clock: u64, cost: u64) -> bool {
        let policy = self.policy();
        let view = policy.advance(self.state.as_ref(), Micros(clock));
        policy.admits(self.state.as_ref(), &view, cost)
    }

    pub(super) fn used(&self) -> u64 {
        A::used(&self.policy().advance(self.state.as_ref(), Micros(self.clock)))
    }
}

/// A standing with instants as offsets from the start.
pub(super) fn standing(remaining: u64, next: Option<u64>, full: u64) -> Standing {
    Standing {
        remaining,
        next: next.map(|next| Micros(START + next)),
        full: Some(Micros(START + full)),
    }
}
