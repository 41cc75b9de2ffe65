//! Finding expired keys, shard by shard.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Memory;
use crate::clock::Micros;

/// Goes round the shards, and remembers when it is worth to go round again.
#[derive(Debug)]
pub(super) struct Sweeper {
    tour: Mutex<Tour>,
    /// The earliest expiry that was seen in this round, keys that were added during it among them.
    seen: AtomicU64,
    /// The earliest expiry that the last whole round saw, keys added since among them: no key expires before it, because
    /// no expiry ever moves to an earlier instant while the clock does not.
    barren_until: AtomicU64,
}

#[derive(Debug, Default)]
struct Tour {
    /// The place of the next shard.
    next: usize,
    /// How many more keys requests may look at in vain, as of `at`.
    credit: u64,
    at: Micros,
}

/// Keys that one request looks at, at least one shard's.
const GLANCE: usize = 4_096;
/// What a shard counts for, however empty it is.
const SHARD: usize = 16;
/// Places that a request makes for others, beyond its own.
const SPARE: usize = 64;
/// Keys that requests together may look at in vain, a microsecond. A look takes 20 to 40 ns: when new callers flood a
/// full store, looking for expired keys takes less than a tenth of a core, and finds one of a million in half a second.
const RATE: u64 = 2;
/// Calls of the periodic sweep that make a round.
const PARTS: usize = 16;

impl Default for Sweeper {
    fn default() -> Self {
        Self {
            tour: Mutex::default(),
            seen: AtomicU64::new(u64::MAX),
            barren_until: AtomicU64::new(0),
        }
    }
}

impl Sweeper {
    /// Tells of a new key that expires at `void`.
    pub(super) fn added(&self, Micros(void): Micros) {
        // In this order: `turn` resets them in the other.
        for earliest in [&self.seen, &self.barren_until] {
            if void < earliest.load(Ordering::SeqCst) {
                earliest.fetch_min(void, Ordering::SeqCst);
            }
        }
    }

    /// Looks for expired keys, until there are enough places or it has looked at enough keys. No lock may be held.
    pub(super) fn make_room(&self, memory: &Memory, now: Micros, places: usize) {
        let mut tour = self.lock();
        tour.earn(now, memory);
        let (mut visited, mut removed) = (0_usize, 0_usize);
        for _ in 0..memory.shards.len() {
            let enough = visited >= GLANCE || removed >= places.saturating_add(SPARE);
            if enough || tour.credit == 0 || self.is_barren(now) {
                return;
            }
            let (looked, gone) = self.turn(memory, &mut tour, now);
            tour.spend(looked.saturating_sub(gone));
            visited = visited.saturating_add(looked).saturating_add(SHARD);
            removed = removed.saturating_add(gone);
        }
    }

    /// Goes on through a part of a round, and returns how many keys went.
    pub(super) fn sweep(&self, memory: &Memory, now: Micros) -> usize {
        let mut removed = 0_usize;
        for _ in 0..memory.shards.len().div_ceil(PARTS) {
            // The lock is given up between shards: requests wait for it when the store is full.
            let mut tour = self.lock();
            if self.is_barren(now) {
                break;
            }
            removed = removed.saturating_add(self.turn(memory, &mut tour, now).1);
        }
        removed
    }

    fn lock(&self) -> MutexGuard<'_, Tour> {
        self.tour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_barren(&self, Micros(now): Micros) -> bool {
        now < self.barren_until.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    pub(super) fn barren_until(&self) -> Micros {
        Micros(self.barren_until.load(Ordering::SeqCst))
    }

    #[cfg(test)]
    pub(super) fn next(&self) -> usize {
        self.lock().next
    }

    /// Purges the next shard: keys looked at, and keys removed.
    fn turn(&self, memory: &Memory, tour: &mut Tour, now: Micros) -> (usize, usize) {
        let Some(mut shard) = memory.shards.lock(tour.next) else {
            tour.next = 0;
            return (0, 0);
        };
        let purged = shard.purge(now);
        drop(shard);
        memory.release(purged.removed);
        self.seen.fetch_min(purged.earliest.0, Ordering::SeqCst);
        tour.next = tour.next.saturating_add(1);
        if tour.next >= memory.shards.len() {
            tour.next = 0;
            self.barren_until.store(u64::MAX, Ordering::SeqCst);
            let seen = self.seen.swap(u64::MAX, Ordering::SeqCst);
            self.barren_until.fetch_min(seen, Ordering::SeqCst);
        }
        (purged.visited, purged.removed)
    }
}

impl Tour {
    /// Adds what time allows; what is saved up is enough for one round.
    fn earn(&mut self, now: Micros, memory: &Memory) {
        let round = memory
            .len()
            .saturating_add(memory.shards.len().saturating_mul(SHARD));
        let most = u64::try_from(round).unwrap_or(u64::MAX);
        let earned = now.since(self.at).0.saturating_mul(RATE);
        self.credit = self.credit.saturating_add(earned).min(most);
        self.at = self.at.max(now);
    }

    /// Takes off a shard with so many keys.
    fn spend(&mut self, keys: usize) {
        let keys = u64::try_from(keys.saturating_add(SHARD)).unwrap_or(u64::MAX);
        self.credit = self.credit.saturating_sub(keys);
    }
}
