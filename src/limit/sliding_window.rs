//! `sliding-window`: counts of `precision` sub-windows and of the one before them, which fades as it leaves the window.
//!
//! It estimates a rolling window as if the charges of the oldest sub-window had been spread evenly over it. Against a
//! client that packs them at its end, a rolling window can hold nearly twice the limit, for any precision; without
//! `blend` the oldest sub-window counts in full, and no rolling window ever holds more than the limit.

use smallvec::SmallVec;

use crate::clock::Micros;

use super::algorithm::{Algorithm, Lasting};
use super::arithmetic::{muldiv, up};
use super::written::Written;

/// The numbers of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Units a window.
    pub(crate) limit: u64,
    /// The window in microseconds, at most `precision` sub-windows long.
    pub(crate) window: u64,
    /// The number of sub-windows in a window.
    pub(crate) precision: usize,
    /// A sub-window in microseconds; sub-windows are numbered from the epoch.
    pub(crate) part: u64,
    /// Whether the oldest sub-window fades, or counts in full until it is gone.
    pub(crate) blend: bool,
}

/// The largest number of sub-windows.
pub const PRECISION_MAX: u64 = 60;

/// The counts of one caller.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The number of the newest sub-window.
    newest: u64,
    /// Units of the newest sub-window and of those before it, newest first.
    counts: SmallVec<[u64; 3]>,
    /// The instant in microseconds at which the newest count has left the window.
    expires: u64,
}

impl Lasting for State {
    fn void(&self) -> Micros {
        Micros(self.expires)
    }
}

impl Written for State {
    fn write(&self, put: &mut dyn FnMut(u64)) {
        put(self.newest);
        put(self.expires);
        put(u64::try_from(self.counts.len()).unwrap_or(u64::MAX));
        self.counts.iter().copied().for_each(put);
    }

    fn read(take: &mut dyn FnMut() -> Option<u64>) -> Option<Self> {
        let mut state = Self {
            newest: take()?,
            expires: take()?,
            counts: SmallVec::new(),
        };
        let count = take().filter(|&count| count <= PRECISION_MAX.saturating_add(1))?;
        for _ in 0..count {
            state.counts.push(take()?);
        }
        Some(state)
    }

    fn shift(&mut self, by: i64) {
        let parts = u64::try_from(self.counts.len()).unwrap_or(u64::MAX);
        // The newest has left when it and all before it are out of view: that gives a sub-window's length away.
        let Some(part) = self.expires.checked_div(self.newest.saturating_add(parts)) else {
            return;
        };
        let begins = self.newest.saturating_mul(part).saturating_add_signed(by);
        self.newest = begins.div_ceil(part.max(1));
        self.expires = self.newest.saturating_add(parts).saturating_mul(part);
    }
}

/// A look at a [`State`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    clock: u64,
    now: u64,
    /// The number of the sub-window of now.
    newest: u64,
    /// How many sub-windows that is after the state's.
    shift: usize,
    /// The units of all sub-windows in view but the oldest.
    recent: u64,
    /// What is in use, the oldest sub-window weighted.
    used: u64,
    set_back: bool,
}

/// Proof of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The number of the sub-window that was charged.
    pub(crate) part: u64,
    /// Units.
    pub(crate) cost: u64,
}

impl SlidingWindow {
    /// The count of the sub-window `age` before that of the view.
    fn count(state: Option<&State>, shift: usize, age: usize) -> u64 {
        let count = state.and_then(|state| state.counts.get(age.checked_sub(shift)?));
        count.copied().unwrap_or(0)
    }

    /// When the sub-window with this number begins.
    fn begins(&self, number: u64) -> u64 {
        number.saturating_mul(self.part)
    }

    /// When the sub-window with this number has left the window.
    fn leaves(&self, number: u64) -> u64 {
        let parts = u64::try_from(self.precision)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        self.begins(number.saturating_add(parts))
    }

    /// How far into its sub-window the oldest one must be for `oldest` units to weigh at most `room`.
    fn faded(&self, oldest: u64, room: u64) -> u64 {
        if room >= oldest {
            0
        } else if self.blend {
            self.part.saturating_sub(muldiv(self.part, room, oldest).0)
        } else {
            self.part
        }
    }

    /// Moves the counts to where the view sees them.
    fn shift(&self, state: &mut State, view: &View) {
        state.newest = view.newest;
        state.expires = self.leaves(view.newest);
        let parts = self.precision.saturating_add(1);
        if state.counts.len() != parts {
            state.counts.resize(parts, 0);
        }
        if view.shift == 0 {
            return;
        }
        if view.shift >= parts {
            state.counts.fill(0);
        } else {
            state.counts.rotate_right(view.shift);
            state
                .counts
                .iter_mut()
                .take(view.shift)
                .for_each(|count| *count = 0);
        }
    }
}

impl Algorithm for SlidingWindow {
    type State = State;
    type View = View;
    type Receipt = Receipt;

    fn quota(&self) -> u64 {
        self.limit
    }

    fn advance(&self, state: Option<&State>, clock: Micros) -> View {
        let clock = clock.0;
        let current = clock / self.part.max(1);
        let mut view = View {
            clock,
            now: clock,
            newest: current,
            shift: 0,
            recent: 0,
            used: 0,
            set_back: false,
        };
        let Some(stored) = state else {
            return view;
        };
        view.set_back = self.begins(stored.newest).saturating_sub(clock) > self.window;
        if !view.set_back && stored.newest > current {
            view.newest = stored.newest;
            view.now = self.begins(stored.newest);
        } else if !view.set_back {
            view.shift = usize::try_from(current - stored.newest).unwrap_or(usize::MAX);
        }
        for age in 0..self.precision {
            view.recent = view.recent.saturating_add(Self::count(state, view.shift, age));
        }
        let oldest = Self::count(state, view.shift, self.precision);
        let elapsed = view.now.saturating_sub(self.begins(view.newest));
        let weighted = if self.blend && oldest > 0 {
            up(muldiv(self.part.saturating_sub(elapsed), oldest, self.part))
        } else {
            oldest
        };
        view.used = view.recent.saturating_add(weighted);
        view
    }

    fn clock(view: &View) -> Micros {
        Micros(view.clock)
    }

    fn used(view: &View) -> u64 {
        view.used
    }

    fn retry(&self, state: Option<&State>, view: &View, cost: u64) -> Micros {
        let mut newer = view.recent;
        let mut begin = self.begins(view.newest);
        for age in (0..=self.precision).rev() {
            // `age` is that of the sub-window that is the oldest in view once the window begins at `begin`.
            let taken = newer.saturating_add(cost);
            if taken <= self.limit {
                let oldest = Self::count(state, view.shift, age);
                let instant = begin.saturating_add(self.faded(oldest, self.limit - taken));
                return Micros(instant.max(view.now));
            }
            newer = newer.saturating_sub(Self::count(state, view.shift, age.saturating_sub(1)));
            begin = begin.saturating_add(self.part);
        }
        Micros(begin)
    }

    fn full(&self, state: Option<&State>, view: &View) -> Option<Micros> {
        let newest = (0..=self.precision).find(|age| Self::count(state, view.shift, *age) > 0);
        let age = newest.and_then(|age| u64::try_from(age).ok()).unwrap_or(0);
        Some(Micros(self.leaves(view.newest.saturating_sub(age))))
    }

    fn charge(&self, state: &mut State, view: &View, cost: u64) -> Receipt {
        self.shift(state, view);
        if let Some(count) = state.counts.first_mut() {
            *count = count.saturating_add(cost);
        }
        Receipt {
            part: view.newest,
            cost,
        }
    }

    fn refund(&self, state: &mut State, clock: Micros, receipt: &Receipt) {
        let view = self.advance(Some(state), clock);
        self.repair(state, &view);
        let age = view
            .newest
            .checked_sub(receipt.part)
            .and_then(|age| usize::try_from(age).ok());
        let Some(age) = age.filter(|age| receipt.part <= state.newest && *age <= self.precision) else {
            return;
        };
        self.shift(state, &view);
        if let Some(count) = state.counts.get_mut(age) {
            *count = count.saturating_sub(receipt.cost);
        }
    }

    fn repair(&self, state: &mut State, view: &View) {
        if view.set_back {
            self.shift(state, view);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SlidingWindow;
    use crate::clock::Micros;
    use crate::limit::trial::{START, Trial, spec, standing};
    use crate::limit::{Kind, Spec};

    const SECOND: u64 = 1_000_000;

    fn trial(limit: u64, secs: u64, precision: u64, blend: bool) -> Trial<SlidingWindow> {
        Trial::new(Spec {
            precision,
            blend,
            ..spec(Kind::SlidingWindow, limit, secs * SECOND)
        })
    }

    #[test]
    fn what_is_shown_weights_the_last_window() {
        let mut trial = trial(100, 10, 1, true);
        assert_eq!(trial.at(9_900_000).burst(50), 50);
        // A tenth into the next window 45 of the 50 still count.
        let verdict = trial.at(11 * SECOND).ask(10);
        assert_eq!(verdict.standing, standing(45, Some(11_200_000), 30 * SECOND));
        assert_eq!(verdict.refunded, standing(55, Some(11_200_000), 20 * SECOND));
        assert_eq!(trial.burst(48), 45);
        assert_eq!(trial.ask(1).retry, Some(Micros(START + 11_200_000)));
    }

    #[test]
    fn the_last_window_counts_in_full_at_the_border() {
        let mut trial = trial(100, 10, 1, true);
        trial.at(10 * SECOND - 1).burst(50);
        assert_eq!(trial.at(10 * SECOND).burst(100), 50);
    }

    #[test]
    fn without_blend_the_oldest_part_counts_in_full() {
        let mut trial = trial(10, 10, 5, false);
        assert_eq!(trial.at(SECOND).burst(20), 10);
        let verdict = trial.at(11_999_999).ask(1);
        assert_eq!(
            (verdict.admitted, verdict.retry),
            (false, Some(Micros(START + 12 * SECOND)))
        );
        assert_eq!(trial.at(12 * SECOND).burst(20), 10);
    }

    #[test]
    fn parts_leave_one_by_one() {
        let mut trial = trial(10, 10, 2, true);
        assert!(trial.at(4 * SECOND).ask(4).admitted && trial.at(6 * SECOND).ask(6).admitted);
        // The 4 fade from 10 s to 15 s, the 6 from 15 s to 20 s.
        for (cost, retry) in [
            (1, 11_250_000),
            (4, 15_000_000),
            (5, 15_833_334),
            (10, 20_000_000),
        ] {
            assert_eq!(trial.ask(cost).retry, Some(Micros(START + retry)), "cost {cost}");
        }
        assert_eq!(trial.ask(0).standing, standing(0, Some(11_250_000), 20 * SECOND));
    }

    #[test]
    fn a_silence_revives_nothing() {
        for silence in [2, 3, 10, 1_000_000] {
            for precision in [1, 3] {
                let mut trial = trial(10, 5, precision, true);
                assert_eq!(trial.burst(20), 10);
                assert_eq!(
                    trial.at(silence * 5 * SECOND).burst(20),
                    10,
                    "after {silence} windows"
                );
            }
        }
    }

    #[test]
    fn a_refund_goes_to_the_part_that_was_charged() {
        let mut trial = trial(10, 5, 1, true);
        let receipt = trial.at(4_900_000).ask(5).receipt.unwrap();
        assert_eq!(
            trial.at(5_500_000).ask(4).standing.remaining,
            1,
            "5 × 0.9, rounded up, and 4"
        );
        trial.refund(&receipt);
        assert_eq!(
            trial.ask(0).standing,
            standing(6, Some(10_000_000 + 1_250_000), 15 * SECOND)
        );
        assert_eq!(trial.burst(12), 6, "never more than 10 in the new window");
        trial.at(15 * SECOND);
        trial.burst(3);
        trial.refund(&receipt);
        assert_eq!(trial.used(), 3);
    }

    #[test]
    fn one_part_needs_no_allocation() {
        let mut trial = trial(10, 5, 1, true);
        trial.ask(1);
        assert!(!trial.state.unwrap().counts.spilled());
        assert!(size_of::<super::State>() <= 48);
    }
}
