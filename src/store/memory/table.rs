//! Hash tables of limiter state, one for each kind of it.

use std::mem::size_of;

use hashbrown::HashTable;

use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::bucket::{self, Bucket};
use crate::limit::concurrency::{self, Concurrency};
use crate::limit::fixed_window::{self, FixedWindow};
use crate::limit::sliding_log::{self, SlidingLog};
use crate::limit::sliding_window::{self, SlidingWindow};
use crate::limit::{Algorithm, Lasting, Receipt};

/// Keys and their state. A key is a uniform hash already, so that its own bits place it.
#[derive(Debug)]
pub(super) struct Table<S>(HashTable<Entry<S>>);

#[derive(Debug)]
struct Entry<S> {
    key: LimitKey,
    state: S,
}

// What a key costs, a log's entries and more than three sub-windows aside.
const _: () = {
    assert!(size_of::<Entry<fixed_window::State>>() == 32);
    assert!(size_of::<Entry<concurrency::State>>() == 32);
    assert!(size_of::<Entry<bucket::State>>() == 64);
    assert!(size_of::<Entry<sliding_log::State>>() <= 64);
    assert!(size_of::<Entry<sliding_window::State>>() <= 64);
};

/// Entries below which a table keeps its memory.
const SMALL: usize = 64;

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}

impl<S: Lasting> Table<S> {
    pub(super) fn get(&self, key: LimitKey) -> Option<&S> {
        self.0
            .find(hash(key), |entry| entry.key == key)
            .map(|entry| &entry.state)
    }

    pub(super) fn get_mut(&mut self, key: LimitKey) -> Option<&mut S> {
        self.0
            .find_mut(hash(key), |entry| entry.key == key)
            .map(|entry| &mut entry.state)
    }

    /// Adds a key that is not in the table.
    pub(super) fn insert(&mut self, key: LimitKey, state: S) {
        self.0
            .insert_unique(hash(key), Entry { key, state }, |entry| hash(entry.key));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LimitKey, &S)> {
        self.0.iter().map(|entry| (entry.key, &entry.state))
    }

    /// Drops a key that has expired; says whether it did.
    pub(super) fn drop_expired(&mut self, key: LimitKey, now: Micros) -> bool {
        let expired = |entry: &Entry<S>| entry.key == key && entry.state.void() <= now;
        let found = self.0.find_entry(hash(key), expired);
        found.map(|entry| entry.remove()).is_ok()
    }

    /// Drops what has expired, and memory that is mostly empty then.
    fn purge(&mut self, now: Micros, purged: &mut Purged) {
        let before = self.0.len();
        self.0.retain(|entry| {
            let void = entry.state.void();
            if void > now {
                purged.earliest = purged.earliest.min(void);
            }
            void > now
        });
        let after = self.0.len();
        purged.visited = purged.visited.saturating_add(before);
        purged.removed = purged.removed.saturating_add(before.saturating_sub(after));
        if self.0.capacity() > SMALL && after < self.0.capacity() / 8 {
            self.0.shrink_to(after.saturating_mul(2), |entry| hash(entry.key));
        }
    }
}

/// The low half of a key; the high half chooses the shard.
fn hash(LimitKey(key): LimitKey) -> u64 {
    u64::try_from(key & u128::from(u64::MAX)).unwrap_or_default()
}

/// What a purge found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purged {
    /// Keys that were looked at.
    pub(super) visited: usize,
    /// Keys that had expired.
    pub(super) removed: usize,
    /// When the first of the others expires.
    pub(super) earliest: Micros,
}

/// One table for each kind of state.
#[derive(Debug, Default)]
pub(super) struct Tables {
    fixed_window: Table<fixed_window::State>,
    sliding_log: Table<sliding_log::State>,
    sliding_window: Table<sliding_window::State>,
    bucket: Table<bucket::State>,
    concurrency: Table<concurrency::State>,
}

impl Tables {
    pub(super) fn purge(&mut self, now: Micros) -> Purged {
        let mut purged = Purged {
            visited: 0,
            removed: 0,
            earliest: Micros(u64::MAX),
        };
        self.fixed_window.purge(now, &mut purged);
        self.sliding_log.purge(now, &mut purged);
        self.sliding_window.purge(now, &mut purged);
        self.bucket.purge(now, &mut purged);
        self.concurrency.purge(now, &mut purged);
        purged
    }

    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.fixed_window.0.allocation_size()
            + self.sliding_log.0.allocation_size()
            + self.sliding_window.0.allocation_size()
            + self.bucket.0.allocation_size()
            + self.concurrency.0.allocation_size()
    }
}

/// An algorithm whose state has a table.
pub(super) trait Kept: Algorithm {
    fn table(tables: &Tables) -> &Table<Self::State>;
    fn table_mut(tables: &mut Tables) -> &mut Table<Self::State>;
    /// The algorithm's own receipt, if this is one.
    fn receipt(receipt: &Receipt) -> Option<&Self::Receipt>;
}

macro_rules! kept {
    ($($algorithm:ident $table:ident)*) => {$(
        impl Kept for $algorithm {
            fn table(tables: &Tables) -> &Table<Self::State> {
                &tables.$table
            }

            fn table_mut(tables: &mut Tables) -> &mut Table<Self::State> {
                &mut tables.$table
            }

            fn receipt(receipt: &Receipt) -> Option<&Self::Receipt> {
                match receipt {
                    Receipt::$algorithm(receipt) => Some(receipt),
                    _ => None,
                }
            }
        }
    )*};
}

kept! {
    FixedWindow fixed_window
    SlidingLog sliding_log
    SlidingWindow sliding_window
    Bucket bucket
    Concurrency concurrency
}
