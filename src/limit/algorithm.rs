//! What the algorithms have in common: how a look at the state becomes a [`Verdict`].

use std::fmt::Debug;

use crate::clock::Micros;

use super::verdict::{Standing, Verdict};

/// State that says of itself when it can be forgotten.
pub trait Lasting {
    /// The instant from which on the state is the same as none.
    fn void(&self) -> Micros;
}

/// One algorithm with its numbers.
///
/// `T` is the clock, read once a call. An algorithm looks at [`State`](Self::State) from the later of `T` and the
/// newest instant stored in it. If that instant is more than a window ahead of `T`, the clock was set back: all stored
/// instants then move back so that the newest is `T`, and the usage stays.
pub trait Algorithm: Copy {
    /// What is kept of one caller. The default is a state that was never charged.
    type State: Lasting + Default + Debug;
    /// The state as time has made it, without changing it.
    type View: Debug;
    /// The proof of a charge.
    type Receipt: Copy + Debug;

    /// What `remaining` counts down from.
    fn quota(&self) -> u64;

    /// Looks at a state, or at none, with the clock at `clock`.
    fn advance(&self, state: Option<&Self::State>, clock: Micros) -> Self::View;

    /// The clock of a view.
    fn clock(view: &Self::View) -> Micros;

    /// The units in use.
    fn used(view: &Self::View) -> u64;

    /// When `cost` units have room, given that they have none now and that they are at most the quota; a hint where no
    /// instant can be told. `state` is what `view` is a look at.
    fn retry(&self, state: Option<&Self::State>, view: &Self::View, cost: u64) -> Micros;

    /// When nothing is in use any more, given that something is; `None` if no instant can be told.
    fn full(&self, state: Option<&Self::State>, view: &Self::View) -> Option<Micros>;

    /// Charges `cost` ≥ 1 to the `state` that `view` is a look at (a default state if there was none).
    fn charge(&self, state: &mut Self::State, view: &Self::View, cost: u64) -> Self::Receipt;

    /// Gives back what is still owed of a charge, as the clock stands at `clock`; changes nothing if nothing is.
    fn refund(&self, state: &mut Self::State, clock: Micros, receipt: &Self::Receipt);

    /// Stores what `view` found of a clock that was set back; changes nothing if it was not.
    fn repair(&self, state: &mut Self::State, view: &Self::View);

    /// The standing that an immediate refund of the charge just made would leave. `state` is left as it was.
    fn refunded(
        &self,
        state: &mut Self::State,
        clock: Micros,
        receipt: &Self::Receipt,
        cost: u64,
    ) -> Standing {
        self.refund(state, clock, receipt);
        let view = self.advance(Some(state), clock);
        let standing = self.standing(Some(state), &view);
        self.charge(state, &view, cost);
        standing
    }

    /// How long a request without room may be held until it has.
    fn queue(&self) -> Micros {
        Micros(0)
    }

    /// How long a request of `cost` is to be held until it has room: not at all if it has (cost 0 always has), `None`
    /// if that would be longer than the [queue](Self::queue).
    #[inline]
    fn hold(&self, state: Option<&Self::State>, view: &Self::View, cost: u64) -> Option<Micros> {
        if cost == 0 || Self::used(view).saturating_add(cost) <= self.quota() {
            return Some(Micros(0));
        }
        if self.queue() == Micros(0) || cost > self.quota() {
            return None;
        }
        let hold = self.retry(state, view, cost).since(Self::clock(view));
        (hold <= self.queue()).then_some(hold)
    }

    /// Whether a request of `cost` is admitted, at once or after a [hold](Self::hold).
    #[inline]
    fn admits(&self, state: Option<&Self::State>, view: &Self::View, cost: u64) -> bool {
        self.hold(state, view, cost).is_some()
    }

    /// Where the caller stands.
    #[inline]
    fn standing(&self, state: Option<&Self::State>, view: &Self::View) -> Standing {
        let (quota, used) = (self.quota(), Self::used(view));
        if used == 0 {
            return Standing {
                remaining: quota,
                next: None,
                full: Some(Self::clock(view)),
            };
        }
        let remaining = quota.saturating_sub(used);
        let next = self.retry(state, view, remaining.saturating_add(1));
        Standing {
            remaining,
            next: Some(next),
            full: self.full(state, view),
        }
    }

    /// The verdict on a request that is not charged: it was rejected here or elsewhere, or costs nothing.
    fn read(&self, state: Option<&Self::State>, view: &Self::View, cost: u64) -> Verdict<Self::Receipt> {
        let hold = self.hold(state, view, cost);
        let standing = self.standing(state, view);
        let retry = (hold.is_none() && cost <= self.quota())
            .then(|| self.retry(state, view, cost).minus(self.queue()));
        Verdict {
            admitted: hold.is_some(),
            hold: hold.unwrap_or_default(),
            limit: self.quota(),
            standing,
            refunded: standing,
            retry,
            receipt: None,
        }
    }

    /// Charges a request that [`admits`](Self::admits) has room for, and gives the verdict on it.
    fn take(&self, state: &mut Self::State, view: &Self::View, cost: u64) -> Verdict<Self::Receipt> {
        let clock = Self::clock(view);
        let hold = self.hold(Some(state), view, cost).unwrap_or_default();
        let receipt = self.charge(state, view, cost);
        let standing = self.standing(Some(state), &self.advance(Some(state), clock));
        let refunded = self.refunded(state, clock, &receipt, cost);
        let limit = self.quota();
        Verdict {
            admitted: true,
            hold,
            limit,
            standing,
            refunded,
            retry: None,
            receipt: Some(receipt),
        }
    }
}
