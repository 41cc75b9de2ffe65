//! Where admitted requests wait for their turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::clock::Micros;
use crate::rules::Plan;
use crate::store::Reserved;

/// Seats for requests that wait, shared by all workers. When all are taken, no further request is held: one that has no
/// room at once is refused.
#[derive(Clone, Debug)]
pub(super) struct Lobby(Arc<Semaphore>);

/// Most requests that wait in one process: as many as it has connections by default. Each keeps its head in memory.
const SEATS: usize = 10_000;

/// A seat, given up when it is dropped.
pub(super) struct Seat(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

/// A wait that is to come.
pub(super) struct Wait {
    hold: Micros,
    _seat: Seat,
}

impl Default for Lobby {
    fn default() -> Self {
        Self::with(SEATS)
    }
}

impl Lobby {
    /// A lobby with so many seats.
    pub(super) fn with(seats: usize) -> Self {
        Self(Arc::new(Semaphore::new(seats)))
    }

    /// Takes a seat for a request whose plan may make it wait. If there is none, the plan is changed so that it does
    /// not.
    pub(super) fn enter(&self, plan: &mut Plan) -> Option<Seat> {
        let mut holding = plan
            .charges
            .iter_mut()
            .filter(|charge| !charge.dry_run && charge.policy.queue() > Micros(0))
            .peekable();
        holding.peek()?;
        let seat = Arc::clone(&self.0).try_acquire_owned().ok().map(Seat);
        if seat.is_none() {
            holding.for_each(|charge| {
                charge.policy = charge.policy.holding_none();
                charge.own = charge.own.holding_none();
            });
        }
        seat
    }
}

impl Seat {
    /// The longest hold that a limiter asks for, dry runs aside, if any does.
    pub(super) fn wait(self, plan: &Plan, reserved: &Reserved) -> Option<Wait> {
        let enforced = plan
            .charges
            .iter()
            .zip(&reserved.rulings)
            .filter(|(charge, _)| !charge.dry_run);
        let hold = enforced.map(|(_, ruling)| ruling.verdict.hold).max()?;
        (hold > Micros(0)).then_some(Wait { hold, _seat: self })
    }
}

impl Wait {
    /// How long it is.
    pub(super) fn length(&self) -> Micros {
        self.hold
    }

    /// Waits. Begun later than the limiters decided, it ends later than they said, and never earlier.
    pub(super) async fn over(&self) {
        sleep(Duration::from_micros(self.hold.0)).await;
    }
}
