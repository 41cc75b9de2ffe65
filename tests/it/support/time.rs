//! Clocks, bounded waits, and bytes that look random.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Polls until `condition` holds, at most for `limit`; says `what` was waited for otherwise.
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < end, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The wall clock in microseconds.
pub(crate) fn epoch_micros() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(elapsed.as_micros()).unwrap()
}

/// The wall clock in seconds, rounded down.
pub(crate) fn epoch_seconds() -> u64 {
    epoch_micros() / 1_000_000
}

/// `length` bytes without a pattern, the same for the same seed.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(length)
    .collect()
}

/// Runs `work` once for each input, all at the same time, and returns what they return in order.
pub(crate) fn threads<I: Send, O: Send>(inputs: Vec<I>, work: impl Fn(I) -> O + Sync) -> Vec<O> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = inputs
            .into_iter()
            .map(|input| scope.spawn(move || work(input)))
            .collect();
        running
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}
