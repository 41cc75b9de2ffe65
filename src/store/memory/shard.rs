//! A part of the store under one lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::table::{Kept, Purged, Tables};
use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::{Algorithm, Lasting, Policy, Receipt, Verdict};
use crate::store::Refund;

/// All parts of the store: a power of two of them.
#[derive(Debug)]
pub(super) struct Shards(Box<[Mutex<Shard>]>);

/// A part of the store.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// The keys of callers, which count towards the bound.
    pub(super) callers: Tables,
    /// The overflow keys of rules, which do not.
    pub(super) shared: Tables,
}

/// The fewest shards: enough that workers rarely meet.
const FEWEST: usize = 64;
/// The most shards: an empty one takes about 300 bytes.
const MOST: usize = 4_096;
/// Keys that a shard has when the store is full, so that looking through one is quick.
const KEYS: usize = 2_048;

/// Evaluates `$body` with the algorithm of `$policy` as `$algorithm`.
macro_rules! with_algorithm {
    ($policy:expr, $algorithm:ident => $body:expr) => {
        match $policy {
            Policy::FixedWindow($algorithm) => $body,
            Policy::SlidingLog($algorithm) => $body,
            Policy::SlidingWindow($algorithm) => $body,
            Policy::Bucket($algorithm) => $body,
            Policy::Concurrency($algorithm) => $body,
        }
    };
}

impl Shards {
    /// Shards for so many keys.
    pub(super) fn new(max_keys: usize) -> Self {
        let count = (max_keys / KEYS).clamp(FEWEST, MOST).next_power_of_two();
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The place of a key's shard. The low half of a key places it within.
    #[inline]
    pub(super) fn place(&self, LimitKey(key): LimitKey) -> usize {
        let high = usize::try_from(key >> 64 & u128::from(u32::MAX)).unwrap_or_default();
        high & self.0.len().saturating_sub(1)
    }

    /// Locks a shard. Nobody leaves one half changed, so a lock that a panic has poisoned is taken as it is.
    #[inline]
    pub(super) fn lock(&self, place: usize) -> Option<MutexGuard<'_, Shard>> {
        self.0
            .get(place)
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives one charge back, wherever its key is; says whether that was the end of a caller's key.
    pub(super) fn refund(&self, refund: &Refund, now: Micros) -> bool {
        self.lock(self.place(refund.key)).is_some_and(
            |mut shard| with_algorithm!(&refund.policy, algorithm => shard.refund(algorithm, refund, now)),
        )
    }
}

impl Shard {
    fn refund<A: Kept>(&mut self, algorithm: &A, refund: &Refund, now: Micros) -> bool {
        let Some(receipt) = A::receipt(&refund.receipt) else {
            return false;
        };
        let Self { callers, shared } = self;
        for (tables, counts) in [(callers, true), (shared, false)] {
            let table = A::table_mut(tables);
            if let Some(state) = table.get_mut(refund.key) {
                algorithm.refund(state, now, receipt);
                return table.drop_expired(refund.key, now) && counts;
            }
        }
        false
    }

    /// Drops what has expired; overflow keys are dropped, but not counted as removed.
    pub(super) fn purge(&mut self, now: Micros) -> Purged {
        let (callers, shared) = (self.callers.purge(now), self.shared.purge(now));
        Purged {
            visited: callers.visited.saturating_add(shared.visited),
            removed: callers.removed,
            earliest: callers.earliest.min(shared.earliest),
        }
    }
}

impl Tables {
    /// Whether a key is there, and whether its limiter has room for `cost`.
    pub(super) fn look(&self, policy: &Policy, key: LimitKey, cost: u64, now: Micros) -> (bool, bool) {
        with_algorithm!(policy, algorithm => self.look_with(algorithm, key, cost, now))
    }

    /// Charges a key if there is room and `charge` is given, else reads it. If that adds the key, `charge` is told when
    /// it expires.
    pub(super) fn rule(
        &mut self,
        policy: &Policy,
        (key, cost): (LimitKey, u64),
        now: Micros,
        charge: Option<&mut Option<Micros>>,
    ) -> Verdict<Receipt> {
        with_algorithm!(policy, algorithm => self.rule_with(algorithm, (key, cost), now, charge).proven())
    }

    /// Decides a charge that is alone in its request, if its key is there: charges it if there is room, else reads it.
    #[inline]
    pub(super) fn rule_alone(
        &mut self,
        policy: &Policy,
        (key, cost): (LimitKey, u64),
        now: Micros,
    ) -> Option<Verdict<Receipt>> {
        with_algorithm!(policy, algorithm => {
            let state = stored(algorithm, self, key)?;
            Some(judge(algorithm, state, (cost, now), cost > 0).proven())
        })
    }

    #[inline]
    fn look_with<A: Kept>(&self, algorithm: &A, key: LimitKey, cost: u64, now: Micros) -> (bool, bool) {
        let state = A::table(self).get(key);
        (
            state.is_some(),
            algorithm.admits(state, &algorithm.advance(state, now), cost),
        )
    }

    #[inline]
    fn rule_with<A: Kept>(
        &mut self,
        algorithm: &A,
        (key, cost): (LimitKey, u64),
        now: Micros,
        charge: Option<&mut Option<Micros>>,
    ) -> Verdict<A::Receipt> {
        let table = A::table_mut(self);
        let Some(state) = table.get_mut(key) else {
            let view = algorithm.advance(None, now);
            let Some(added) = charge.filter(|_| algorithm.admits(None, &view, cost)) else {
                return algorithm.read(None, &view, cost);
            };
            let mut state = A::State::default();
            let verdict = algorithm.take(&mut state, &view, cost);
            *added = Some(state.void());
            table.insert(key, state);
            return verdict;
        };
        judge(algorithm, state, (cost, now), charge.is_some())
    }
}

#[inline]
fn stored<'a, A: Kept>(_: &A, tables: &'a mut Tables, key: LimitKey) -> Option<&'a mut A::State> {
    A::table_mut(tables).get_mut(key)
}

/// Charges a state if there is room and `charge` is given, else reads it.
#[inline]
fn judge<A: Algorithm>(
    algorithm: &A,
    state: &mut A::State,
    (cost, now): (u64, Micros),
    charge: bool,
) -> Verdict<A::Receipt> {
    let view = algorithm.advance(Some(state), now);
    if charge && algorithm.admits(Some(state), &view, cost) {
        return algorithm.take(state, &view, cost);
    }
    let verdict = algorithm.read(Some(state), &view, cost);
    if cost > 0 {
        algorithm.repair(state, &view);
    }
    verdict
}
