//! State as a row of numbers, for a store that outlives its process.

/// State that can be written down and read again.
///
/// What is read is a state that the algorithm can have, or none; numbers of another hand give a wrong count at most.
pub trait Written: Sized {
    /// Writes the state down, number by number.
    fn write(&self, put: &mut dyn FnMut(u64));

    /// Reads a state, taking as many numbers as it was written with; `None` where they end too soon or are none.
    fn read(take: &mut dyn FnMut() -> Option<u64>) -> Option<Self>;

    /// Moves every instant by so many microseconds, for another clock. Where state is bound to a grid it moves to the
    /// next line of it: later, so that nothing is forgotten too soon.
    fn shift(&mut self, by: i64);
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::Written;
    use crate::limit::{bucket, fixed_window, sliding_log, sliding_window};

    fn read<S: Written>(numbers: &[u64]) -> Option<S> {
        let mut numbers = numbers.iter().copied();
        S::read(&mut || numbers.next())
    }

    fn numbers<S: Written>(state: &S) -> Vec<u64> {
        let mut numbers = Vec::new();
        state.write(&mut |number| numbers.push(number));
        numbers
    }

    #[track_caller]
    fn shifted<S: Written + Debug>(before: &[u64], by: i64, after: &[u64]) {
        let mut state = read::<S>(before).unwrap();
        assert_eq!(numbers(&state), before);
        state.shift(by);
        assert_eq!(numbers(&state), after);
        let least = usize::from(before.len() > 1);
        assert!(
            read::<S>(&before[..before.len() - least]).is_none(),
            "numbers end too soon"
        );
    }

    #[test]
    fn instants_move_and_counts_stay() {
        shifted::<fixed_window::State>(&[100, 7], -30, &[70, 7]);
        shifted::<fixed_window::State>(&[100, 7], -300, &[0, 7]);
        shifted::<bucket::State>(&[9, 4, 3, 100, 200, 50], 25, &[9, 4, 3, 125, 225, 75]);
        shifted::<sliding_log::State>(&[200, 2, 100, 3, 110, 1], 5, &[205, 2, 105, 3, 115, 1]);
    }

    #[test]
    fn a_grid_is_kept_and_nothing_leaves_too_soon() {
        // Sub-windows of 10: the newest is number 7, two before it are counted.
        let before = [7, 100, 3, 1, 2, 4];
        shifted::<sliding_window::State>(&before, 20, &[9, 120, 3, 1, 2, 4]);
        shifted::<sliding_window::State>(&before, 1, &[8, 110, 3, 1, 2, 4]);
        shifted::<sliding_window::State>(&before, -1, &before);
        shifted::<sliding_window::State>(&before, -20, &[5, 80, 3, 1, 2, 4]);
    }

    #[test]
    fn numbers_that_no_state_has_are_refused() {
        for log in [
            &[200, 2, 110, 3, 100, 1][..],
            &[200, 2, 110, 3, 110, 1],
            &[200, 1, 100, 1 << 40],
            &[200, u64::MAX],
        ] {
            assert!(read::<sliding_log::State>(log).is_none(), "{log:?}");
        }
        assert!(read::<sliding_window::State>(&[7, 100, u64::MAX]).is_none());
    }
}
