//! The decision: a plan is put to the store, and an admitted request holds a reservation until its outcome is known.
//!
//! [`Limiter::decide`] turns a [`Plan`] into a [`Decision`]; a [`Reservation`] waits for its turn, if it has to, and
//! settles by an [`Outcome`](crate::rules::Outcome) into a [`Settled`]. This module never reads a request and never
//! writes a field.

mod lasting;
mod lobby;
mod meter;
mod reservation;
mod shared;
mod shed;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::rules::{Denied, Plan, RuleId, RuleTable};
use crate::store::{Backend, By, Refund, Reserved};
use crate::telemetry::Metrics;

pub use lasting::Lasting;
use lobby::{Lobby, Seat};
use meter::Meter;
pub use reservation::{Leaving, Reservation, Settled, Tail};
pub use shared::Denial;

/// Asks a store, and counts what it says.
pub struct Limiter {
    store: Backend,
    meters: Arc<[Meter]>,
    lasting: Lasting,
    edge: EdgeSettings,
}

/// What is decided before a store outside of this process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSettings {
    /// How long a rejection is believed where a refund may make room sooner; zero turns the memory of rejections off.
    pub max_staleness: Duration,
}

impl Default for EdgeSettings {
    fn default() -> Self {
        Self {
            max_staleness: Duration::from_millis(250),
        }
    }
}

/// What becomes of a request.
pub enum Decision {
    /// It may go on, and holds its charges until it settles.
    Admit(Reservation),
    /// It may not.
    Refuse(Box<Refusal>),
    /// It may not, because the store cannot say whether it may.
    Deny(Denial),
}

/// A request that at least one limiter has no room for. It was charged nothing.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What it would have been charged.
    pub plan: Plan,
    /// What the limiters say, in the order of the plan's charges.
    pub reserved: Reserved,
}

impl Clone for Limiter {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            meters: Arc::clone(&self.meters),
            lasting: self.lasting.clone(),
            edge: self.edge,
        }
    }
}

impl Limiter {
    /// A limiter for the plans of `table`, whose rules are in force from now on.
    pub fn new(
        store: Backend,
        table: &Arc<RuleTable>,
        metrics: &Arc<Metrics>,
        lasting: Lasting,
        edge: EdgeSettings,
    ) -> Self {
        lasting.put_in_force(table);
        let meters = table
            .rules()
            .map(|rule| Meter::new(&rule.name, metrics))
            .collect();
        Self {
            store,
            meters,
            lasting,
            edge,
        }
    }

    /// Puts a plan to the store: memory decides at once, another store while the future is polled.
    pub fn decide(&self, mut plan: Plan) -> impl Future<Output = Decision> + Send {
        let seat = self.lasting.lobby.enter(&mut plan);
        let decided = match &self.store {
            Backend::Memory(memory) => {
                let reserved = memory.decide(&plan.charges);
                Ok(self.decision(plan, reserved, seat))
            }
            // In a box: the way through memory is not to carry the size of this one.
            Backend::Redis(redis, memory) => Err(Box::pin(async move {
                match shared::reserve(self, (redis, memory), &mut plan).await {
                    Ok(reserved) => self.decision(plan, reserved, seat),
                    Err(denial) => Decision::Deny(denial),
                }
            })),
        };
        async move {
            match decided {
                Ok(decision) => decision,
                Err(asked) => asked.await,
            }
        }
    }

    /// Counts what the limiters said.
    fn decision(&self, plan: Plan, reserved: Reserved, seat: Option<Seat>) -> Decision {
        for meter in plan.spared.iter().filter_map(|rule| self.meters.get(rule.0)) {
            meter.spared();
        }
        for (charge, ruling) in plan.charges.iter().zip(&reserved.rulings) {
            if let Some(meter) = self.meters.get(charge.rule.0) {
                meter.count(reserved.admitted, charge.dry_run, ruling);
            }
        }
        if reserved.admitted {
            let wait = seat.and_then(|seat| seat.wait(&plan, &reserved));
            Decision::Admit(Reservation::new(self.clone(), plan, reserved, wait))
        } else {
            Decision::Refuse(Box::new(Refusal { plan, reserved }))
        }
    }

    /// Gives charges back, each to whoever charged it.
    fn refund(&self, table: &RuleTable, refunds: &[Refund]) {
        // It is sent first: what the store says from now on, it says after it on this worker.
        self.store.refund(table, refunds);
        for refund in refunds.iter().filter(|refund| matches!(refund.by, By::Server(_))) {
            self.lasting.shed.forget(refund.key);
        }
    }

    /// Counts what a rule's `on_outage` decided without a limiter.
    fn stood_in(&self, rule: RuleId, verdict: &str) {
        if let Some(meter) = self.meters.get(rule.0) {
            meter.fallback(verdict);
        }
    }

    /// Once a second: what has accumulated is logged, and a part of what has expired is forgotten.
    pub fn tick(&self) {
        self.report();
        self.store.sweep();
    }

    /// Counts a request that was refused before any limiter was asked.
    pub fn denied(&self, denied: &Denied) {
        if let Denied::Blocked { rule, key } = denied
            && let Some(meter) = self.meters.get(rule.0)
        {
            meter.blocked(*key);
        }
    }

    /// Writes a log line for each rule that refused requests or overflowed since the last call.
    pub fn report(&self) {
        for meter in self.meters.iter() {
            meter.report();
        }
    }
}
