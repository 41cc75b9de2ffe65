//! One call: lock, find every charge's seat, judge all, then charge all or none.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Memory;
use super::shard::Shard;
use super::table::Tables;
use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::rules::Charge;
use crate::store::{By, Reserved, Ruling};

/// Where one charge is decided.
struct Seat {
    /// The place of the shard.
    place: usize,
    key: LimitKey,
    /// Whether that is the overflow key.
    overflowed: bool,
    /// Whether the limiter has room.
    room: bool,
}

/// The locked shards of one call, and the places for new keys that it has claimed.
struct Hold<'a> {
    memory: &'a Memory,
    now: Micros,
    /// By place, ascending: all calls lock in one order.
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
    claimed: usize,
}

impl Memory {
    /// Decides all charges of one request, as [`Store::reserve`](crate::store::Store::reserve) does, without a wait.
    #[inline]
    pub fn decide(&self, charges: &[Charge]) -> Reserved {
        let now = self.clock.now();
        let mut reserved = Reserved {
            now,
            admitted: false,
            rulings: SmallVec::new(),
        };
        if let [charge] = charges {
            self.decide_alone(charge, &mut reserved);
        }
        if reserved.rulings.is_empty() {
            self.decide_together(charges, &mut reserved);
        }
        reserved
    }

    /// Decides one charge, if its key is there: one look at it is enough.
    #[inline]
    fn decide_alone(&self, charge: &Charge, reserved: &mut Reserved) {
        let (key, now) = (charge.key, reserved.now);
        let Some(mut shard) = self.shards.lock(self.shards.place(key)) else {
            return;
        };
        let ruled = shard.callers.rule_alone(&charge.policy, (key, charge.cost), now);
        if let Some(verdict) = ruled {
            reserved.admitted = charge.dry_run || verdict.admitted;
            reserved.rulings.push(Ruling {
                key,
                by: By::Memory,
                now,
                verdict,
            });
        }
    }

    fn decide_together(&self, charges: &[Charge], reserved: &mut Reserved) {
        reserved.rulings.reserve_exact(charges.len());
        if !self.attempt(charges, false, reserved) {
            self.sweeper.make_room(self, reserved.now, charges.len());
            self.attempt(charges, true, reserved);
        }
    }

    /// Decides, unless a new key has no place and `overflow` keys may not answer for it: then nothing is changed.
    fn attempt(&self, charges: &[Charge], overflow: bool, reserved: &mut Reserved) -> bool {
        let mut hold = Hold {
            memory: self,
            now: reserved.now,
            shards: SmallVec::new(),
            claimed: 0,
        };
        hold.lock(charges, overflow);
        let mut seats = SmallVec::new();
        if !hold.seat(charges, overflow, &mut seats) {
            return false;
        }
        reserved.admitted = charges
            .iter()
            .zip(&seats)
            .all(|(charge, seat)| charge.dry_run || seat.room);
        for (charge, seat) in charges.iter().zip(&seats) {
            hold.rule(charge, seat, reserved);
        }
        true
    }
}

impl Hold<'_> {
    /// Locks the shards of all keys, with `overflow` those of the overflow keys as well.
    fn lock(&mut self, charges: &[Charge], overflow: bool) {
        let memory = self.memory;
        let mut places: SmallVec<[usize; 8]> = SmallVec::new();
        for charge in charges {
            places.push(memory.shards.place(charge.key));
            if overflow {
                places.push(memory.shards.place(charge.overflow));
            }
        }
        if places.len() > 1 {
            places.sort_unstable();
            places.dedup();
        }
        for place in places {
            if let Some(shard) = memory.shards.lock(place) {
                self.shards.push((place, shard));
            }
        }
    }

    /// Finds where each charge is decided, and whether there is room for it. A key that is not there claims a place; if
    /// there is none, the overflow key is decided on, or if that may not be, the answer is `false`.
    fn seat(&mut self, charges: &[Charge], overflow: bool, seats: &mut SmallVec<[Seat; 4]>) -> bool {
        for charge in charges {
            let before = already_asked(charges, seats, charge.key);
            let (mut seat, present) = self.look(charge, charge.key, before, false);
            if !present {
                if self.memory.claim() {
                    self.claimed = self.claimed.saturating_add(1);
                } else if overflow {
                    (seat, _) = self.look(charge, charge.overflow, 0, true);
                } else {
                    return false;
                }
            }
            seats.push(seat);
        }
        true
    }

    fn look(&mut self, charge: &Charge, key: LimitKey, before: u64, overflowed: bool) -> (Seat, bool) {
        let place = self.memory.shards.place(key);
        let (now, cost) = (
            self.now,
            if charge.cost == 0 {
                0
            } else {
                charge.cost.saturating_add(before)
            },
        );
        let tables = self.tables(place, overflowed);
        let (present, room) = tables.map_or((false, true), |tables| {
            tables.look(charge.limiter(overflowed), key, cost, now)
        });
        (
            Seat {
                place,
                key,
                overflowed,
                room,
            },
            present,
        )
    }

    /// Charges if the request is admitted and the limiter has room, and adds how it stands.
    fn rule(&mut self, charge: &Charge, seat: &Seat, reserved: &mut Reserved) {
        let now = self.now;
        let take = reserved.admitted && charge.cost > 0;
        let &Seat {
            key,
            overflowed,
            place,
            ..
        } = seat;
        let Some(tables) = self.tables(place, overflowed) else {
            return;
        };
        let mut added = None;
        reserved.rulings.push(Ruling {
            key,
            by: if overflowed { By::Overflow } else { By::Memory },
            now,
            verdict: tables.rule(
                charge.limiter(overflowed),
                (key, charge.cost),
                now,
                take.then_some(&mut added),
            ),
        });
        if let Some(void) = added {
            self.memory.sweeper.added(void);
        }
        if overflowed {
            self.memory.overflows.fetch_add(1, Ordering::Relaxed);
        } else if added.is_some() {
            self.claimed = self.claimed.saturating_sub(1);
        }
    }

    fn tables(&mut self, place: usize, overflowed: bool) -> Option<&mut Tables> {
        let (_, shard) = self.shards.iter_mut().find(|(at, _)| *at == place)?;
        Some(if overflowed {
            &mut shard.shared
        } else {
            &mut shard.callers
        })
    }
}

/// What earlier charges of the request ask of the same key. The keys of a request differ; should they not, their costs
/// add up.
fn already_asked(charges: &[Charge], seats: &[Seat], key: LimitKey) -> u64 {
    let same = seats.iter().zip(charges).filter(|(seat, _)| seat.key == key);
    same.fold(0, |sum, (_, charge)| sum.saturating_add(charge.cost))
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.memory.release(self.claimed);
    }
}
