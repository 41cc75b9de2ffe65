//! `concurrency`: units in flight. Each is held until it is released; time has no part in it.

use crate::clock::Micros;

use super::algorithm::{Algorithm, Lasting};
use super::verdict::Standing;

/// The numbers of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Units in flight at once.
    pub(crate) limit: u64,
}

/// The units that one caller holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    held: u64,
}

impl Lasting for State {
    /// Never while anything is held, and at once when nothing is.
    fn void(&self) -> Micros {
        Micros(if self.held == 0 { 0 } else { u64::MAX })
    }
}

/// A look at a [`State`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    clock: Micros,
    held: u64,
}

/// Proof of units that are held. Giving it back is how they are released, whatever became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Units.
    pub(crate) cost: u64,
}

/// After how long a request that found no room may try again. Nobody knows when another one ends.
const HINT: Micros = Micros::SECOND;

impl Algorithm for Concurrency {
    type State = State;
    type View = View;
    type Receipt = Receipt;

    fn quota(&self) -> u64 {
        self.limit
    }

    fn advance(&self, state: Option<&State>, clock: Micros) -> View {
        View {
            clock,
            held: state.map_or(0, |state| state.held),
        }
    }

    fn clock(view: &View) -> Micros {
        view.clock
    }

    fn used(view: &View) -> u64 {
        view.held
    }

    fn retry(&self, _: Option<&State>, view: &View, _: u64) -> Micros {
        view.clock.plus(HINT)
    }

    fn full(&self, _: Option<&State>, _: &View) -> Option<Micros> {
        None
    }

    fn charge(&self, state: &mut State, _: &View, cost: u64) -> Receipt {
        state.held = state.held.saturating_add(cost);
        Receipt { cost }
    }

    fn refund(&self, state: &mut State, _: Micros, receipt: &Receipt) {
        state.held = state.held.saturating_sub(receipt.cost);
    }

    fn repair(&self, _: &mut State, _: &View) {}

    fn standing(&self, _: Option<&State>, view: &View) -> Standing {
        Standing {
            remaining: self.limit.saturating_sub(view.held),
            next: None,
            full: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Concurrency;
    use crate::clock::Micros;
    use crate::limit::trial::{START, Trial, spec};
    use crate::limit::{Kind, Lasting, Standing};

    fn trial(limit: u64) -> Trial<Concurrency> {
        Trial::new(spec(Kind::Concurrency, limit, 0))
    }

    fn left(remaining: u64) -> Standing {
        Standing {
            remaining,
            next: None,
            full: None,
        }
    }

    #[test]
    fn state_is_small() {
        assert_eq!(size_of::<super::State>(), 8);
    }

    #[test]
    fn units_are_held_until_they_are_released() {
        let mut trial = trial(3);
        let first = trial.ask(2);
        assert_eq!((first.standing, first.refunded), (left(1), left(3)));
        let rejected = trial.at(86_400_000_000).ask(2);
        assert!(!rejected.admitted, "time releases nothing");
        assert_eq!(rejected.standing, left(1));
        assert_eq!(
            rejected.retry,
            Some(Micros(START + 86_401_000_000)),
            "in a second, as a hint"
        );
        let second = trial.ask(1);
        assert_eq!(second.standing, left(0));
        trial.refund(&first.receipt.unwrap());
        assert_eq!(trial.run(&[2, 1]), [true, false]);
    }

    #[test]
    fn a_state_that_holds_nothing_is_over() {
        let mut trial = trial(3);
        let receipt = trial.ask(1).receipt.unwrap();
        assert_eq!(trial.state.unwrap().void(), Micros(u64::MAX));
        trial.refund(&receipt);
        assert_eq!(trial.state.unwrap().void(), Micros(0));
        assert_eq!(trial.ask(0).standing, left(3));
    }

    #[test]
    fn a_lowered_limit_waits_for_releases() {
        let mut trial = trial(5);
        let receipts = [0; 5].map(|_| trial.ask(1).receipt.unwrap());
        trial.spec.limit = 2;
        assert_eq!(trial.ask(0).standing, left(0));
        for (released, receipt) in receipts.iter().enumerate() {
            assert!(released >= 4 || !trial.ask(1).admitted);
            trial.refund(receipt);
        }
        assert_eq!(trial.burst(5), 2);
    }
}
