//! The links of each worker, one to each server, each served by a task of that worker.

use std::cell::RefCell;
use std::sync::Arc;

use thread_local::ThreadLocal;
use tokio::task::AbortHandle;

use super::fleet::Fleet;
use super::link::Link;
use super::serve::serve;
use super::shard::Shard;

/// The links of all workers.
pub(super) struct Seats {
    fleet: Arc<Fleet>,
    workers: ThreadLocal<RefCell<Vec<Seat>>>,
}

/// A worker's link to a shard, and the task that serves it.
struct Seat {
    link: Arc<Link>,
    served: AbortHandle,
}

impl Seats {
    /// None yet.
    pub(super) fn new(fleet: &Arc<Fleet>) -> Self {
        Self {
            fleet: Arc::clone(fleet),
            workers: ThreadLocal::new(),
        }
    }

    /// Does something with this worker's link to a shard, which is opened if it is the first time.
    pub(super) fn with_link<T>(&self, shard: &Arc<Shard>, with: impl FnOnce(&Link) -> T) -> Option<T> {
        let mut seats = self.workers.get_or_default().borrow_mut();
        let own = |seat: &Seat| Arc::ptr_eq(&seat.link.shard, shard);
        let place = seats.iter().position(own).unwrap_or_else(|| {
            seats.retain(|seat| !seat.link.is_closed());
            let link = Arc::new(Link::new(Arc::clone(shard)));
            self.fleet.links().push(Arc::clone(&link));
            seats.push(Seat::new(link));
            seats.len().saturating_sub(1)
        });
        let seat = seats.get_mut(place)?;
        if seat.served.is_finished() {
            *seat = Seat::new(Arc::clone(&seat.link));
        }
        Some(with(&seat.link))
    }
}

impl Seat {
    fn new(link: Arc<Link>) -> Self {
        let served = tokio::spawn(serve(Arc::clone(&link))).abort_handle();
        Self { link, served }
    }
}
