//! The store in this process: bounded, exact, and shared by all workers.
//!
//! State lies in hash tables, one for each kind of it, in shards with a lock each. A call locks the shards of all its
//! keys in ascending order, decides, and unlocks them: nothing is seen half done. Expired keys make room for new ones;
//! when none has expired, a new caller is decided on its rule's overflow key. A key of `concurrency` is there as long as
//! anything is in flight for it.
//!
//! It never gives a live limiter up, never refuses a caller for being new, and never waits for anything but a lock.

mod decide;
mod records;
mod shard;
mod sweep;
mod table;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Partial, Refund, Reserved, Store};
use crate::clock::{Clock, Micros};
use crate::rules::{Charge, RuleTable};

pub use records::Recalled;
use shard::Shards;
use sweep::Sweeper;

/// What the memory store is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most keys that it holds; the overflow keys of rules come on top.
    pub max_keys: usize,
}

/// The store in this process.
#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    shards: Shards,
    sweeper: Sweeper,
    /// The most that `keys` may be when a key is added.
    max_keys: AtomicUsize,
    /// Keys that are stored or about to be, overflow keys aside.
    keys: AtomicUsize,
    overflows: AtomicU64,
}

impl Memory {
    /// An empty store on this clock.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        Self {
            clock,
            shards: Shards::new(settings.max_keys),
            sweeper: Sweeper::default(),
            max_keys: AtomicUsize::new(settings.max_keys),
            keys: AtomicUsize::new(0),
            overflows: AtomicU64::new(0),
        }
    }

    /// The instant now on the store's clock.
    pub fn clock(&self) -> Micros {
        self.clock.now()
    }

    /// The number of keys that are held, expired ones that were not yet swept among them, overflow keys aside.
    pub fn len(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many rulings were made on an overflow key since the start.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// Changes the bound. Where more keys are held already, they stay until they expire.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys, Ordering::Relaxed);
    }

    /// Drops expired keys from the next sixteenth of the store, gives memory back, and returns how many keys went.
    /// Called about once a second, it lets the store shrink when it falls idle. Holds one shard's lock at a time.
    pub fn sweep(&self) -> usize {
        self.sweeper.sweep(self, self.clock.now())
    }

    /// Gives charges back, now.
    pub fn give_back(&self, refunds: &[Refund]) {
        let now = self.clock.now();
        let gone = refunds.iter().filter(|refund| self.shards.refund(refund, now));
        self.release(gone.count());
    }

    /// Takes a place for one more key, if there is one.
    fn claim(&self) -> bool {
        let max = self.max_keys.load(Ordering::Relaxed);
        let more = |keys: usize| (keys < max).then(|| keys.saturating_add(1));
        self.keys
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Gives places back.
    fn release(&self, places: usize) {
        if places > 0 {
            self.keys.fetch_sub(places, Ordering::Relaxed);
        }
    }
}

impl Store for Memory {
    async fn reserve(&self, _: &RuleTable, charges: &[Charge]) -> Result<Reserved, Box<Partial>> {
        Ok(self.decide(charges))
    }

    fn refund(&self, _: &RuleTable, refunds: &[Refund]) {
        self.give_back(refunds);
    }
}

#[cfg(test)]
mod recall;
#[cfg(test)]
mod tests;
