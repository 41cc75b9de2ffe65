//! A charge that is held until its outcome is known: it settles once, whatever happens.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use http::StatusCode;
use smallvec::SmallVec;

use super::Limiter;
use super::lasting::decided_by;
use super::lobby::Wait;
use crate::clock::Micros;
use crate::limit::{Policy, Receipt, Standing};
use crate::rules::{Charge, Outcome, Plan, RefundOn};
use crate::store::{By, Refund, Reserved, Ruling};

/// The charges of an admitted request, which may have to [wait for its turn](Self::turn). Dropped before that, it settles
/// as one that never reached the upstream; dropped before it [settles](Self::settle), as a client that left, or in a panic
/// as a service that failed.
pub struct Reservation {
    /// `None` once settled.
    held: Option<Box<Held>>,
    /// The wait before the request may go on.
    wait: Option<Wait>,
}

/// A reservation of a request that is on its way to its service. Dropped before it has departed, it settles as one that
/// never reached the upstream.
pub struct Leaving<'a> {
    /// `None` once settled.
    reservation: Option<Reservation>,
    departed: &'a AtomicBool,
}

/// A settled request: where it stands with its limiters after its own refund.
pub struct Settled {
    held: Option<Box<Held>>,
}

/// What a request still holds while its response's body is under way: units in flight, and charges that a client gets
/// back by leaving before the end. Dropped, it gives all of that back; [completed](Self::complete), only what is in
/// flight.
pub struct Tail {
    /// `None` once nothing is owed any more.
    held: Option<Box<Held>>,
}

/// Wherever it is dropped, units in flight are released.
struct Held {
    limiter: Limiter,
    plan: Plan,
    reserved: Reserved,
}

impl Reservation {
    pub(super) fn new(limiter: Limiter, plan: Plan, reserved: Reserved, wait: Option<Wait>) -> Self {
        Self {
            held: Some(Box::new(Held {
                limiter,
                plan,
                reserved,
            })),
            wait,
        }
    }

    /// How long the request has to wait for its turn, from when the limiters decided.
    pub fn hold(&self) -> Micros {
        self.wait.as_ref().map_or(Micros(0), Wait::length)
    }

    /// Waits until the limiters have room for the request, where they admitted it to a queue.
    pub async fn turn(&mut self) {
        if let Some(wait) = &self.wait {
            wait.over().await;
        }
        self.wait = None;
    }

    /// The request goes on its way; `departed` is to be set before its service may have any of it.
    pub fn leave(self, departed: &AtomicBool) -> Leaving<'_> {
        Leaving {
            reservation: Some(self),
            departed,
        }
    }

    /// Settles at the response's head: sends the refunds that the outcome owes.
    pub fn settle(mut self, outcome: Outcome) -> Settled {
        let mut held = self.held.take();
        if let Some(held) = &mut held {
            held.settle(outcome);
        }
        Settled { held }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let outcome = match self.wait {
            Some(_) => Outcome::Unsent,
            None if thread::panicking() => Outcome::Failed(StatusCode::BAD_GATEWAY),
            None => Outcome::Abandoned,
        };
        if let Some(held) = &mut self.held {
            held.refund(outcome);
        }
    }
}

impl Leaving<'_> {
    /// [Settles](Reservation::settle).
    pub fn settle(mut self, outcome: Outcome) -> Settled {
        match self.reservation.take() {
            Some(reservation) => reservation.settle(outcome),
            None => Settled { held: None },
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.departed.load(Relaxed)
            && !thread::panicking()
            && let Some(reservation) = self.reservation.take()
        {
            reservation.settle(Outcome::Unsent);
        }
    }
}

impl Settled {
    /// The plan, and the rulings with the numbers after the request's own refund, as of now.
    pub fn rulings(&self) -> Option<(&Plan, &[Ruling])> {
        self.held
            .as_ref()
            .map(|held| (&held.plan, held.reserved.rulings.as_slice()))
    }

    /// What the end of the response's body still decides, if anything.
    pub fn tail(self) -> Option<Tail> {
        self.held
            .filter(|held| held.ends_with_the_body())
            .map(|held| Tail { held: Some(held) })
    }
}

impl Tail {
    /// The client has its whole response: nothing is owed, and nothing is in flight.
    pub fn complete(mut self) {
        self.held = None;
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        if let Some(held) = &mut self.held {
            held.refund(Outcome::Abandoned);
        }
    }
}

impl Held {
    /// Refunds what `outcome` owes, and leaves in each ruling the standing after that, as of now; one whose reset has
    /// passed is full. All clocks go alike: the time that passed here has passed for whoever ruled.
    fn settle(&mut self, outcome: Outcome) {
        let refunded = self.refund(outcome);
        let passed = self.limiter.store.memory().clock().since(self.reserved.now);
        self.reserved.now = self.reserved.now.plus(passed);
        for (ruling, refunded) in self.reserved.rulings.iter_mut().zip(refunded) {
            let now = ruling.now.plus(passed);
            ruling.now = now;
            let verdict = &mut ruling.verdict;
            if refunded {
                verdict.standing = verdict.refunded;
            }
            if verdict.standing.full.is_some_and(|full| full <= now) {
                verdict.standing = Standing {
                    remaining: verdict.limit,
                    next: None,
                    full: Some(now),
                };
            }
        }
    }

    /// Gives back every charge that `outcome` owes and that was not given back before; says which those are.
    fn refund(&mut self, outcome: Outcome) -> SmallVec<[bool; 4]> {
        let mut refunds: SmallVec<[Refund; 1]> = SmallVec::new();
        let mut refunded = SmallVec::new();
        for (charge, ruling) in self.plan.charges.iter().zip(&mut self.reserved.rulings) {
            let rule = self.plan.table.rule(charge.rule);
            let owed = rule.is_some_and(|rule| outcome.owes(&rule.refund));
            let lasting = &self.limiter.lasting;
            let (by, table) = (ruling.by, &self.plan.table);
            let policy = || match by {
                By::Overflow => lasting.policy(table, &charge.shared()),
                By::Memory | By::Server(_) | By::Edge => lasting.policy(table, charge),
                By::Fallback => decided_by(table, charge, by, lasting.policy(table, charge)),
            };
            let refund = give_back(charge, ruling, policy, |receipt| owed && !receipt.is_held());
            refunded.push(refund.is_some());
            if let Some(refund) = refund {
                refunds.push(refund);
                if let Some(meter) = self.limiter.meters.get(charge.rule.0) {
                    meter.refunded(outcome);
                }
            }
        }
        if !refunds.is_empty() {
            self.limiter.refund(&self.plan.table, &refunds);
        }
        refunded
    }

    /// Whether the end of the response's body decides anything.
    fn ends_with_the_body(&self) -> bool {
        self.plan
            .charges
            .iter()
            .zip(&self.reserved.rulings)
            .any(|(charge, ruling)| {
                let rule = self.plan.table.rule(charge.rule);
                let on_abort = rule.is_some_and(|rule| rule.refund.contains(&RefundOn::ClientAbort));
                let receipt = ruling.verdict.receipt.as_ref();
                receipt.is_some_and(|receipt| on_abort || receipt.is_held())
            })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let rulings = &mut self.reserved.rulings;
        let charged = self.plan.charges.iter().zip(rulings);
        let released: SmallVec<[Refund; 1]> = charged
            .filter_map(|(charge, ruling)| {
                let policy = *charge.limiter(ruling.by == By::Overflow);
                give_back(charge, ruling, || policy, Receipt::is_held)
            })
            .collect();
        if !released.is_empty() {
            self.limiter.refund(&self.plan.table, &released);
        }
    }
}

/// Takes the receipt out of a ruling if it is a `wanted` one: nothing can be given back twice.
pub(super) fn give_back(
    charge: &Charge,
    ruling: &mut Ruling,
    policy: impl FnOnce() -> Policy,
    wanted: impl Fn(&Receipt) -> bool,
) -> Option<Refund> {
    let receipt = ruling.verdict.receipt.take_if(|receipt| wanted(receipt))?;
    Some(Refund {
        rule: charge.rule,
        key: ruling.key,
        policy: policy(),
        receipt,
        by: ruling.by,
    })
}
