//! `token-bucket` and `gcra`: a debt that drains at `limit` units a window and may reach `burst` units.
//!
//! The two differ in the burst that they have by default, and `gcra` may have a queue: a request without room is
//! admitted if it will have room soon, and held until then. The debt is `owed + fraction / window` units, exact.

use crate::clock::Micros;

use super::algorithm::{Algorithm, Lasting};
use super::arithmetic::{muldiv, up};
use super::verdict::{Standing, Verdict};
use super::written::Written;

/// The numbers of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Units that drain in a window.
    pub(crate) limit: u64,
    /// The largest debt.
    pub(crate) burst: u64,
    /// The window in microseconds.
    pub(crate) window: u64,
    /// Whether requests may be held, and for how many microseconds at most. With 0 none is held now, and those that
    /// were keep their slots.
    pub(crate) queue: Option<u64>,
}

/// The debt of one caller. Instants are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Units charged since `life`, refunds not taken off.
    charged: u64,
    /// Whole units owed at `at`.
    owed: u64,
    /// What is owed beyond them, in units of 1 / window.
    fraction: u64,
    /// The instant that the debt is told for.
    at: u64,
    /// The instant at which all that was ever charged would be paid, had nothing been refunded.
    void: u64,
    /// When this state began: a receipt of another life gives nothing back.
    life: u64,
}

impl Lasting for State {
    fn void(&self) -> Micros {
        Micros(self.void)
    }
}

impl Written for State {
    fn write(&self, put: &mut dyn FnMut(u64)) {
        let Self {
            charged,
            owed,
            fraction,
            at,
            void,
            life,
        } = *self;
        [charged, owed, fraction, at, void, life]
            .into_iter()
            .for_each(put);
    }

    fn read(take: &mut dyn FnMut() -> Option<u64>) -> Option<Self> {
        Some(Self {
            charged: take()?,
            owed: take()?,
            fraction: take()?,
            at: take()?,
            void: take()?,
            life: take()?,
        })
    }

    fn shift(&mut self, by: i64) {
        for instant in [&mut self.at, &mut self.void, &mut self.life] {
            *instant = instant.saturating_add_signed(by);
        }
    }
}

/// A look at a [`State`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    clock: u64,
    now: u64,
    /// The state with `at` = now; `None` if there is none or all is paid.
    debt: Option<State>,
    set_back: bool,
}

/// Proof of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Units charged in this life, with this charge.
    pub(crate) charged: u64,
    /// Units.
    pub(crate) cost: u64,
    /// When the debt that this charge left is paid.
    pub(crate) paid: u64,
    /// When it was charged.
    pub(crate) at: u64,
    /// The limit then in force.
    pub(crate) limit: u64,
    /// The life that it belongs to.
    pub(crate) life: u64,
}

/// From here on `charged` starts anew; receipts from before then give nothing back.
const CHARGED_MAX: u64 = 1 << 52;

impl Bucket {
    /// When a debt at `now` is paid down to nothing.
    #[inline]
    fn paid_off(&self, now: u64, owed: u64, fraction: u64) -> u64 {
        let parts = self.window.checked_mul(owed);
        if let Some(parts) = parts.and_then(|parts| parts.checked_add(fraction)) {
            return now.saturating_add(parts.div_ceil(self.limit.max(1)));
        }
        let (quotient, rest) = muldiv(self.window, owed, self.limit);
        now.saturating_add(quotient)
            .saturating_add((rest.saturating_add(fraction)).div_ceil(self.limit.max(1)))
    }

    /// The debt of `state` at `now` ≥ `at`.
    #[inline]
    fn drain(&self, state: &State, now: u64) -> State {
        let (quotient, rest) = muldiv(self.limit, now.saturating_sub(state.at), self.window);
        let (owed, fraction) = subtract((state.owed, state.fraction), (quotient, rest), self.window);
        State {
            owed,
            fraction,
            at: now,
            ..*state
        }
    }

    /// What is still owed of a charge, if later charges are paid after it: what the debt holds beyond them.
    fn owed_before(debt: &State, receipt: &Receipt, after: u64) -> (u64, u64) {
        match debt.owed.checked_sub(after) {
            Some(left) if left >= receipt.cost => (receipt.cost, 0),
            Some(left) => (left, debt.fraction),
            None => (0, 0),
        }
    }

    /// What would still be owed of a charge, had it been alone: the least that it owes at an unchanged limit.
    fn owed_alone(&self, receipt: &Receipt, now: u64) -> (u64, u64) {
        if receipt.limit != self.limit || receipt.at > now {
            return (0, 0);
        }
        let drained = muldiv(self.limit, now.saturating_sub(receipt.at), self.window);
        subtract((receipt.cost, 0), drained, self.window)
    }
}

/// `a − b`, each as whole units and `1 / window` units, but at least nothing.
fn subtract(a: (u64, u64), b: (u64, u64), window: u64) -> (u64, u64) {
    let borrow = u64::from(a.1 < b.1);
    match a.0.checked_sub(b.0).and_then(|whole| whole.checked_sub(borrow)) {
        Some(whole) => (
            whole,
            a.1.saturating_add(borrow.saturating_mul(window))
                .saturating_sub(b.1),
        ),
        None => (0, 0),
    }
}

impl Algorithm for Bucket {
    type State = State;
    type View = View;
    type Receipt = Receipt;

    fn quota(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn advance(&self, state: Option<&State>, clock: Micros) -> View {
        let clock = clock.0;
        let Some(state) = state else {
            return View {
                clock,
                now: clock,
                debt: None,
                set_back: false,
            };
        };
        let mut state = *state;
        let ahead = state.at.saturating_sub(clock);
        let set_back = ahead > self.window;
        if set_back {
            state = State {
                at: clock,
                void: state.void.saturating_sub(ahead),
                life: clock,
                ..state
            };
        }
        let now = clock.max(state.at);
        let debt = (now < state.void).then(|| self.drain(&state, now));
        View {
            clock,
            now,
            debt,
            set_back,
        }
    }

    fn clock(view: &View) -> Micros {
        Micros(view.clock)
    }

    fn used(view: &View) -> u64 {
        view.debt.map_or(0, |debt| up((debt.owed, debt.fraction)))
    }

    fn queue(&self) -> Micros {
        Micros(self.queue.unwrap_or(0))
    }

    #[inline]
    fn retry(&self, _: Option<&State>, view: &View, cost: u64) -> Micros {
        let Some(debt) = view.debt else {
            return Micros(view.now);
        };
        let excess = debt.owed.saturating_sub(self.burst.saturating_sub(cost));
        Micros(self.paid_off(view.now, excess, debt.fraction).min(debt.void))
    }

    fn full(&self, _: Option<&State>, view: &View) -> Option<Micros> {
        let Some(debt) = view.debt else {
            return Some(Micros(view.now));
        };
        let paid = self.paid_off(view.now, debt.owed, debt.fraction);
        Some(Micros(paid.min(debt.void)))
    }

    #[inline]
    fn charge(&self, state: &mut State, view: &View, cost: u64) -> Receipt {
        let mut debt = view.debt.unwrap_or(State {
            at: view.now,
            life: view.now,
            ..State::default()
        });
        if debt.charged >= CHARGED_MAX {
            debt.charged = 0;
        }
        debt.charged = debt.charged.saturating_add(cost);
        debt.owed = debt.owed.saturating_add(cost);
        let paid = self.paid_off(view.now, debt.owed, debt.fraction);
        debt.void = debt.void.max(paid);
        *state = debt;
        Receipt {
            charged: debt.charged,
            cost,
            paid,
            at: view.now,
            limit: self.limit,
            life: debt.life,
        }
    }

    fn refund(&self, state: &mut State, clock: Micros, receipt: &Receipt) {
        let view = self.advance(Some(state), clock);
        self.repair(state, &view);
        let Some(mut debt) = view
            .debt
            .filter(|debt| debt.life == receipt.life && view.now < receipt.paid)
        else {
            return;
        };
        let Some(after) = debt.charged.checked_sub(receipt.charged) else {
            return;
        };
        // The slots of those that came after it are told already: what is given back could only be a slot of theirs.
        if after > 0 && self.queue.is_some() {
            return;
        }
        let owed = Self::owed_before(&debt, receipt, after).max(self.owed_alone(receipt, view.now));
        (debt.owed, debt.fraction) = subtract((debt.owed, debt.fraction), owed, self.window);
        *state = debt;
    }

    fn repair(&self, state: &mut State, view: &View) {
        if let (true, Some(debt)) = (view.set_back, view.debt) {
            *state = debt;
        }
    }

    /// As the algorithm defines it, from what a charge just made leaves: the clock stands, nothing has drained, no later
    /// charge is owed, and the debt is paid when the receipt says.
    #[inline]
    fn take(&self, state: &mut State, view: &View, cost: u64) -> Verdict<Receipt> {
        let hold = self.hold(Some(state), view, cost).unwrap_or_default();
        let receipt = self.charge(state, view, cost);
        let debt = |owed| View {
            debt: Some(State { owed, ..*state }),
            set_back: false,
            ..*view
        };
        let charged = debt(state.owed);
        let remaining = self.burst.saturating_sub(Self::used(&charged));
        let next = self.retry(None, &charged, remaining.saturating_add(1));
        let standing = Standing {
            remaining,
            next: Some(next),
            full: Some(Micros(receipt.paid)),
        };
        Verdict {
            admitted: true,
            hold,
            limit: self.burst,
            standing,
            refunded: self.standing(None, &debt(state.owed.saturating_sub(cost))),
            retry: None,
            receipt: Some(receipt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, CHARGED_MAX, State};
    use crate::clock::Micros;
    use crate::limit::trial::{START, Trial, spec, standing};
    use crate::limit::{Kind, Spec};

    const SECOND: u64 = 1_000_000;

    fn trial(limit: u64, secs: u64, burst: u64) -> Trial<Bucket> {
        Trial::new(Spec {
            burst: Some(burst),
            ..spec(Kind::Gcra, limit, secs * SECOND)
        })
    }

    #[test]
    fn state_is_small() {
        assert_eq!(size_of::<State>(), 48);
    }

    #[test]
    fn numbers() {
        // A token each 15 s.
        let mut trial = trial(3, 45, 3);
        assert_eq!(trial.burst(4), 3);
        let verdict = trial.at(6 * SECOND).ask(1);
        assert_eq!(
            (verdict.admitted, verdict.retry),
            (false, Some(Micros(START + 15 * SECOND)))
        );
        assert_eq!(verdict.standing, standing(0, Some(15 * SECOND), 45 * SECOND));
        let verdict = trial.at(15_500_000).ask(1);
        assert_eq!(verdict.standing, standing(0, Some(30 * SECOND), 60 * SECOND));
        assert_eq!(verdict.refunded, standing(1, Some(30 * SECOND), 45 * SECOND));
        assert_eq!(trial.ask(1).retry, Some(Micros(START + 30 * SECOND)));
    }

    #[test]
    fn thirds_of_a_second_are_exact() {
        let mut trial = trial(3, 1, 1);
        let mut admitted = Vec::new();
        for micros in (0..2_000_002).step_by(3) {
            if trial.at(micros).ask(1).admitted {
                admitted.push(micros);
            }
        }
        assert_eq!(admitted, [0, 333_336, 666_672, 1_000_008, 1_333_344, 1_666_680]);
        assert_eq!(
            trial.ask(1).retry,
            Some(Micros(START + 2_000_014)),
            "333,333 1/3 µs each, rounded up once"
        );
    }

    #[test]
    fn it_refills_without_jumps() {
        let mut trial = trial(3, 1, 3);
        let mut admitted = 0;
        for tick in 0..200 {
            let verdict = trial.at(tick * 100_000).ask(1);
            admitted += u64::from(verdict.admitted);
            assert!(tick < 5 || verdict.standing.remaining < 2);
        }
        assert!((62..=63).contains(&admitted), "{admitted}");
    }

    #[test]
    fn a_wait_below_a_second_is_a_wait() {
        let mut trial = trial(4, 1, 1);
        for tick in 0..40 {
            let verdict = trial.at(tick * 50_000).ask(1);
            assert_eq!(verdict.admitted, tick % 5 == 0, "at {} ms", tick * 50);
            let next = START + (tick / 5 + 1) * 250_000;
            assert_eq!(verdict.retry, (!verdict.admitted).then_some(Micros(next)));
        }
    }

    #[test]
    fn a_wait_regards_burst_and_cost() {
        for (cost, wait) in [(1, 10), (3, 30), (6, 60)] {
            let mut trial = trial(6, 60, 6);
            assert_eq!(trial.burst(7), 6);
            assert_eq!(trial.ask(cost).retry, Some(Micros(START + wait * SECOND)));
            assert!(!trial.at(wait * SECOND - 1).ask(cost).admitted);
            assert!(trial.at(wait * SECOND).ask(cost).admitted);
        }
    }

    #[test]
    fn a_refund_is_what_is_still_owed() {
        let mut trial = trial(10, 10, 10);
        let first = trial.ask(5).receipt.unwrap();
        trial.ask(5);
        // One unit drained, and it was the first charge's.
        trial.at(SECOND).refund(&first);
        assert_eq!(trial.ask(0).standing, standing(5, Some(2 * SECOND), 6 * SECOND));
    }

    #[test]
    fn overlapping_refunds_lose_less_than_a_unit() {
        let mut trial = trial(10, 10, 10);
        let receipts = [0; 4].map(|_| trial.ask(2).receipt.unwrap());
        trial.at(SECOND / 2);
        for receipt in receipts.iter().rev() {
            trial.refund(receipt);
        }
        assert_eq!(
            trial.ask(0).standing,
            standing(9, Some(SECOND), SECOND),
            "half a unit"
        );
    }

    #[test]
    fn a_refund_never_fills_beyond_the_burst() {
        let mut trial = trial(5, 1, 5);
        let receipt = trial.ask(1).receipt.unwrap();
        trial.at(3 * SECOND).refund(&receipt);
        assert_eq!(trial.burst(20), 5);
    }

    #[test]
    fn a_receipt_of_another_life_gives_nothing() {
        let mut trial = trial(10, 10, 10);
        let receipt = trial.at(60 * SECOND).ask(8).receipt.unwrap();
        // A clock that is set back begins a new life with the old debt.
        trial.at(30 * SECOND).refund(&receipt);
        assert_eq!(trial.ask(0).standing, standing(2, Some(31 * SECOND), 38 * SECOND));
    }

    #[test]
    fn what_was_paid_at_the_old_limit_is_paid() {
        let mut trial = trial(10, 10, 10);
        trial.ask(10);
        trial.at(SECOND).spec.limit = 1;
        // 9 units at 1 in 10 s are 90 s, but 10 s were promised.
        assert_eq!(trial.ask(1).retry, Some(Micros(START + 10 * SECOND)));
        assert_eq!(trial.at(10 * SECOND).burst(20), 10);
    }

    #[test]
    fn the_sum_of_charges_starts_anew_before_it_is_too_large() {
        let mut trial = trial(10, 10, 10);
        trial.ask(2);
        trial.state.as_mut().unwrap().charged = CHARGED_MAX;
        let new = trial.ask(3).receipt.unwrap();
        assert_eq!(trial.state.unwrap().charged, 3);
        trial.refund(&new);
        assert_eq!(trial.ask(0).standing.remaining, 8);
    }
}
