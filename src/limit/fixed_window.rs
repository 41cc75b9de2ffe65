//! `fixed-window`: a count that starts with the first request after the last window and ends a window later.

use crate::clock::Micros;

use super::algorithm::{Algorithm, Lasting};
use super::written::Written;

/// The numbers of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Units a window.
    pub(crate) limit: u64,
    /// The window in microseconds.
    pub(crate) window: u64,
}

/// The open window of one caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The instant in microseconds at which the window ends.
    reset: u64,
    /// Units charged in it.
    count: u64,
}

impl Lasting for State {
    fn void(&self) -> Micros {
        Micros(self.reset)
    }
}

impl Written for State {
    fn write(&self, put: &mut dyn FnMut(u64)) {
        [self.reset, self.count].into_iter().for_each(put);
    }

    fn read(take: &mut dyn FnMut() -> Option<u64>) -> Option<Self> {
        Some(Self {
            reset: take()?,
            count: take()?,
        })
    }

    fn shift(&mut self, by: i64) {
        self.reset = self.reset.saturating_add_signed(by);
    }
}

/// A look at a [`State`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    clock: u64,
    now: u64,
    /// The end of the window, if one is open.
    open: Option<u64>,
    count: u64,
    set_back: bool,
}

/// Proof of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The end of the window that was charged.
    pub(crate) reset: u64,
    /// Units.
    pub(crate) cost: u64,
}

impl Algorithm for FixedWindow {
    type State = State;
    type View = View;
    type Receipt = Receipt;

    fn quota(&self) -> u64 {
        self.limit
    }

    fn advance(&self, state: Option<&State>, clock: Micros) -> View {
        let clock = clock.0;
        let Some(&State { reset, count }) = state else {
            return View {
                clock,
                now: clock,
                open: None,
                count: 0,
                set_back: false,
            };
        };
        let opened = reset.saturating_sub(self.window);
        let set_back = opened.saturating_sub(clock) > self.window;
        let (opened, reset) = if set_back {
            (clock, clock.saturating_add(self.window))
        } else {
            (opened, reset)
        };
        let now = clock.max(opened);
        if now >= reset {
            return View {
                clock,
                now,
                open: None,
                count: 0,
                set_back,
            };
        }
        View {
            clock,
            now,
            open: Some(reset),
            count,
            set_back,
        }
    }

    fn clock(view: &View) -> Micros {
        Micros(view.clock)
    }

    fn used(view: &View) -> u64 {
        view.count
    }

    fn retry(&self, _: Option<&State>, view: &View, _: u64) -> Micros {
        Micros(view.open.unwrap_or(view.now))
    }

    fn full(&self, _: Option<&State>, view: &View) -> Option<Micros> {
        Some(Micros(view.open.unwrap_or(view.now)))
    }

    fn charge(&self, state: &mut State, view: &View, cost: u64) -> Receipt {
        let reset = view.open.unwrap_or(view.now.saturating_add(self.window));
        *state = State {
            reset,
            count: view.count.saturating_add(cost),
        };
        Receipt { reset, cost }
    }

    fn refund(&self, state: &mut State, clock: Micros, receipt: &Receipt) {
        let view = self.advance(Some(state), clock);
        self.repair(state, &view);
        if view.open == Some(receipt.reset) {
            state.count = view.count.saturating_sub(receipt.cost);
        }
    }

    fn repair(&self, state: &mut State, view: &View) {
        if let (true, Some(reset)) = (view.set_back, view.open) {
            *state = State {
                reset,
                count: view.count,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FixedWindow;
    use crate::clock::Micros;
    use crate::limit::Kind;
    use crate::limit::trial::{START, Trial, spec, standing};

    const SECOND: u64 = 1_000_000;

    fn trial() -> Trial<FixedWindow> {
        Trial::new(spec(Kind::FixedWindow, 10, 10 * SECOND))
    }

    #[test]
    fn state_is_small() {
        assert_eq!(size_of::<super::State>(), 16);
    }

    #[test]
    fn numbers() {
        let mut trial = trial();
        let first = trial.at(3 * SECOND).ask(3);
        assert_eq!(first.standing, standing(7, Some(13 * SECOND), 13 * SECOND));
        assert_eq!(first.refunded, standing(10, None, 3 * SECOND));
        let second = trial.at(5 * SECOND).ask(7);
        assert_eq!(second.standing, standing(0, Some(13 * SECOND), 13 * SECOND));
        assert_eq!(second.refunded, standing(7, Some(13 * SECOND), 13 * SECOND));
        let rejected = trial.at(13 * SECOND - 1).ask(2);
        assert_eq!(
            (rejected.admitted, rejected.retry),
            (false, Some(Micros(START + 13 * SECOND)))
        );
        assert_eq!(
            trial.at(13 * SECOND).ask(1).standing,
            standing(9, Some(23 * SECOND), 23 * SECOND)
        );
    }

    #[test]
    fn a_hit_does_not_move_the_end() {
        let mut trial = trial();
        let mut last = 0;
        for hit in 0..50 {
            let verdict = trial.at(hit * 1_200_000).ask(1);
            assert!(verdict.admitted);
            let reset = verdict.standing.full.unwrap().0;
            assert!(
                reset == last || trial.clock >= last,
                "the end moved within a window"
            );
            last = reset;
        }
    }

    #[test]
    fn a_window_stays_open_when_all_is_given_back() {
        let mut trial = trial();
        let receipt = trial.ask(1).receipt.unwrap();
        trial.at(4 * SECOND).refund(&receipt);
        assert_eq!(trial.ask(0).standing, standing(10, None, 4 * SECOND));
        assert_eq!(trial.ask(1).standing, standing(9, Some(10 * SECOND), 10 * SECOND));
    }

    #[test]
    fn a_refund_stays_in_its_window() {
        let mut trial = trial();
        let receipt = trial.at(0).ask(1).receipt.unwrap();
        trial.at(10 * SECOND).ask(4);
        trial.refund(&receipt);
        assert_eq!(trial.burst(20), 6);
    }

    #[test]
    fn a_clock_set_back_moves_the_window_and_voids_receipts() {
        let mut trial = trial();
        let receipt = trial.at(60 * SECOND).ask(4).receipt.unwrap();
        trial.at(50 * SECOND);
        assert_eq!(
            trial.ask(0).standing,
            standing(6, Some(70 * SECOND), 70 * SECOND),
            "no more than a window"
        );
        trial.at(20 * SECOND);
        assert_eq!(trial.ask(0).standing, standing(6, Some(30 * SECOND), 30 * SECOND));
        trial.refund(&receipt);
        assert_eq!(
            trial.at(21 * SECOND).ask(0).standing,
            standing(6, Some(30 * SECOND), 30 * SECOND)
        );
    }
}
