//! `sliding-log`: every charge with its instant, each forgotten a window later. Exact, and as large as the limit.

use std::collections::VecDeque;

use crate::clock::Micros;

use super::algorithm::{Algorithm, Lasting};
use super::written::Written;

/// The numbers of a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// Units in any window.
    pub(crate) limit: u64,
    /// The window in microseconds.
    pub(crate) window: u64,
}

/// The charges of one caller.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Sorted by time, one entry an instant. Only the newest may have no units: no later charge joins an older one.
    entries: VecDeque<Entry>,
    /// The units of all entries.
    used: u64,
    /// When the newest entry ages out.
    expires: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The instant in microseconds.
    at: u64,
    /// Units; their sum in a window is at most a limit, and so at most [`LIMIT_MAX`].
    units: u32,
}

impl Lasting for State {
    fn void(&self) -> Micros {
        Micros(self.expires)
    }
}

impl Written for State {
    fn write(&self, put: &mut dyn FnMut(u64)) {
        put(self.expires);
        put(u64::try_from(self.entries.len()).unwrap_or(u64::MAX));
        for entry in &self.entries {
            put(entry.at);
            put(u64::from(entry.units));
        }
    }

    fn read(take: &mut dyn FnMut() -> Option<u64>) -> Option<Self> {
        let mut state = Self {
            expires: take()?,
            ..Self::default()
        };
        // One more than a limit's worth: the newest may have no units.
        let count = take().filter(|&count| count <= LIMIT_MAX.saturating_add(1))?;
        for _ in 0..count {
            let (at, units) = (take()?, u32::try_from(take()?).ok()?);
            if state.entries.back().is_some_and(|newest| newest.at >= at) {
                return None;
            }
            state.used = state.used.saturating_add(u64::from(units));
            state.entries.push_back(Entry { at, units });
        }
        Some(state)
    }

    fn shift(&mut self, by: i64) {
        for entry in &mut self.entries {
            entry.at = entry.at.saturating_add_signed(by);
        }
        self.expires = self.expires.saturating_add_signed(by);
    }
}

/// A look at a [`State`].
#[derive(Clone, Copy, Debug)]
pub struct View {
    clock: u64,
    now: u64,
    /// The number of entries that have aged out.
    gone: usize,
    /// The units of the others.
    used: u64,
    /// By how much all instants move back.
    back: u64,
}

/// Proof of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The instant of the charge.
    pub(crate) at: u64,
    /// Units.
    pub(crate) cost: u64,
}

/// The largest limit of a log: what a caller may cost in memory, and a walk through the entries in time.
pub const LIMIT_MAX: u64 = 10_000;

/// Entries below which a log keeps its memory.
const SMALL: usize = 64;

impl SlidingLog {
    /// Drops what has aged out, and moves the rest back if the clock was.
    fn trim(&self, state: &mut State, view: &View) {
        state.entries.drain(..view.gone.min(state.entries.len()));
        state.used = view.used;
        self.repair(state, &View { gone: 0, ..*view });
        let room = state.entries.capacity();
        if room > SMALL && state.entries.len() < room / 4 {
            state.entries.shrink_to(room / 2);
        }
    }
}

impl Algorithm for SlidingLog {
    type State = State;
    type View = View;
    type Receipt = Receipt;

    fn quota(&self) -> u64 {
        self.limit
    }

    fn advance(&self, state: Option<&State>, clock: Micros) -> View {
        let clock = clock.0;
        let fresh = View {
            clock,
            now: clock,
            gone: 0,
            used: 0,
            back: 0,
        };
        let Some((state, newest)) = state.and_then(|state| Some((state, state.entries.back()?.at))) else {
            return fresh;
        };
        let ahead = newest.saturating_sub(clock);
        let back = if ahead > self.window { ahead } else { 0 };
        let now = clock.max(newest.saturating_sub(back));
        if newest.saturating_sub(back).saturating_add(self.window) <= now {
            return View {
                now,
                gone: state.entries.len(),
                back,
                ..fresh
            };
        }
        let (mut gone, mut used) = (0, state.used);
        for entry in &state.entries {
            if entry.at.saturating_sub(back).saturating_add(self.window) > now {
                break;
            }
            gone += 1;
            used = used.saturating_sub(u64::from(entry.units));
        }
        View {
            clock,
            now,
            gone,
            used,
            back,
        }
    }

    fn clock(view: &View) -> Micros {
        Micros(view.clock)
    }

    fn used(view: &View) -> u64 {
        view.used
    }

    fn retry(&self, state: Option<&State>, view: &View, cost: u64) -> Micros {
        let ends = |entry: &Entry| Micros(entry.at.saturating_sub(view.back).saturating_add(self.window));
        let Some(state) = state else {
            return Micros(view.now);
        };
        // The first entry that, with all older ones, has the units that must go. Seen from the other end, the first
        // that, with all newer ones, has more than may stay.
        let go = view.used.saturating_add(cost).saturating_sub(self.limit);
        let stay = self.limit.saturating_sub(cost);
        let mut sum = 0;
        let mut reaches = |least: u64, entry: &&Entry| {
            sum += u64::from(entry.units);
            sum >= least
        };
        let last = if go <= stay {
            state
                .entries
                .iter()
                .skip(view.gone)
                .find(|entry| reaches(go, entry))
        } else {
            state
                .entries
                .iter()
                .rev()
                .find(|entry| reaches(stay.saturating_add(1), entry))
        };
        last.map_or(Micros(view.now), ends)
    }

    fn full(&self, state: Option<&State>, view: &View) -> Option<Micros> {
        let newest = state.and_then(|state| state.entries.iter().rev().find(|entry| entry.units > 0));
        let leaves = |at: u64| at.saturating_sub(view.back).saturating_add(self.window);
        Some(Micros(newest.map_or(view.now, |entry| leaves(entry.at))))
    }

    fn charge(&self, state: &mut State, view: &View, cost: u64) -> Receipt {
        self.trim(state, view);
        let units = u32::try_from(cost).unwrap_or(u32::MAX);
        match state.entries.back_mut() {
            Some(newest) if newest.at == view.now => newest.units = newest.units.saturating_add(units),
            newest => {
                if newest.is_some_and(|entry| entry.units == 0) {
                    state.entries.pop_back();
                }
                state.entries.push_back(Entry { at: view.now, units });
            }
        }
        state.used = state.used.saturating_add(u64::from(units));
        state.expires = view.now.saturating_add(self.window);
        Receipt { at: view.now, cost }
    }

    fn refund(&self, state: &mut State, clock: Micros, receipt: &Receipt) {
        let view = self.advance(Some(state), clock);
        self.repair(state, &view);
        let Ok(place) = state.entries.binary_search_by_key(&receipt.at, |entry| entry.at) else {
            return;
        };
        let Some(place) = place.checked_sub(view.gone) else {
            return;
        };
        self.trim(state, &View { back: 0, ..view });
        let newest = place.saturating_add(1) == state.entries.len();
        let Some(entry) = state.entries.get_mut(place) else {
            return;
        };
        let given = u32::try_from(receipt.cost).unwrap_or(u32::MAX).min(entry.units);
        entry.units -= given;
        let left = entry.units;
        state.used = state.used.saturating_sub(u64::from(given));
        if left == 0 && !newest {
            state.entries.remove(place);
        }
    }

    fn repair(&self, state: &mut State, view: &View) {
        if view.back == 0 {
            return;
        }
        for entry in &mut state.entries {
            entry.at = entry.at.saturating_sub(view.back);
        }
        state.expires = state.expires.saturating_sub(view.back);
    }
}

#[cfg(test)]
mod tests {
    use super::SlidingLog;
    use crate::clock::Micros;
    use crate::limit::Kind;
    use crate::limit::trial::{START, Trial, spec, standing};

    const SECOND: u64 = 1_000_000;

    fn trial(limit: u64, secs: u64) -> Trial<SlidingLog> {
        Trial::new(spec(Kind::SlidingLog, limit, secs * SECOND))
    }

    fn entries(trial: &Trial<SlidingLog>) -> usize {
        trial.state.as_ref().map_or(0, |state| state.entries.len())
    }

    #[test]
    fn numbers() {
        let mut trial = trial(10, 10);
        assert_eq!(trial.ask(4).standing, standing(6, Some(10 * SECOND), 10 * SECOND));
        let second = trial.at(SECOND).ask(6);
        assert_eq!(second.standing, standing(0, Some(10 * SECOND), 11 * SECOND));
        assert_eq!(second.refunded, standing(6, Some(10 * SECOND), 10 * SECOND));
        for (cost, retry) in [(1, 10), (4, 10), (5, 11), (10, 11)] {
            assert_eq!(
                trial.ask(cost).retry,
                Some(Micros(START + retry * SECOND)),
                "cost {cost}"
            );
        }
    }

    #[test]
    fn what_has_aged_out_does_not_count() {
        let mut trial = trial(3, 2);
        for (offset, admitted) in [
            (0, true),
            (100, true),
            (200, true),
            (1_999, false),
            (2_050, true),
            (2_150, true),
            (2_250, true),
        ] {
            assert_eq!(
                trial.at(offset * 1_000).ask(1).admitted,
                admitted,
                "at {offset} ms"
            );
        }
    }

    #[test]
    fn one_instant_is_one_entry() {
        let mut trial = trial(20, 5);
        assert_eq!(trial.burst(500), 20);
        assert_eq!(entries(&trial), 1);
        assert_eq!(
            trial.at(5 * SECOND).run(&[5; 6]),
            [true, true, true, true, false, false]
        );
    }

    #[test]
    fn retry_is_the_end_of_the_oldest() {
        let mut trial = trial(3, 30);
        for offset in [0, 10, 20] {
            assert!(trial.at(offset * SECOND).ask(1).admitted);
        }
        assert_eq!(
            trial.at(21 * SECOND).ask(1).retry,
            Some(Micros(START + 30 * SECOND))
        );
    }

    #[test]
    fn a_log_of_refunds_stays_small() {
        let mut trial = trial(10, 60);
        let mut last = None;
        for offset in 0..1_000 {
            let receipt = trial.at(offset).ask(1).receipt.unwrap();
            if let Some(last) = last.replace(receipt) {
                trial.refund(&last);
            }
        }
        assert!(entries(&trial) <= 2);
        trial.refund(&last.unwrap());
        assert_eq!(trial.ask(0).standing, standing(10, None, 999));
        for offset in 1_000..2_000 {
            let receipt = trial.at(offset).ask(1).receipt.unwrap();
            trial.refund(&receipt);
        }
        assert_eq!(entries(&trial), 1);
    }

    #[test]
    fn a_log_gives_its_memory_back() {
        let mut trial = trial(10_000, 1);
        for offset in 0..10_000 {
            assert!(trial.at(offset).ask(1).admitted);
        }
        trial.at(10 * SECOND).ask(1);
        for offset in 0..10 {
            trial.at((11 + offset) * SECOND).ask(1);
        }
        assert!(trial.state.unwrap().entries.capacity() <= 2 * super::SMALL);
    }
}
