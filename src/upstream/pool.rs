//! The kept connections: a shelf for each worker and target, the last used on top.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http_body::Body;

use super::connection::Conn;

/// A worker takes from and puts on its own shelves only, so that their locks are free; the others are locked to close a
/// connection in favour of a new one.
pub(super) struct Pool<B: Body + 'static> {
    shelves: Box<[Box<[Shelf<B>]>]>,
    /// Requests that wait for leave to open a connection.
    waiting: AtomicUsize,
}

/// A request that waits for leave to open a connection: as long as it does, none is kept idle.
pub(super) struct Waiting<'a>(&'a AtomicUsize);

struct Shelf<B: Body + 'static>(Mutex<Vec<Conn<B>>>);

impl<B: Body + 'static> Pool<B> {
    pub(super) fn new(workers: usize, targets: usize) -> Self {
        let shelves = |_| (0..targets).map(|_| Shelf(Mutex::default())).collect();
        Self {
            shelves: (0..workers).map(shelves).collect(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// The most recently used connection that is fit for a request.
    pub(super) fn take(&self, worker: usize, target: usize) -> Option<Conn<B>> {
        let mut shelf = self.shelf(worker, target)?.lock();
        while let Some(conn) = shelf.pop() {
            if conn.sender.is_ready() {
                conn.wire.take();
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection that has served its request, unless one waits to open its own.
    pub(super) fn put(&self, worker: usize, mut conn: Conn<B>) {
        let Some(shelf) = self
            .shelf(worker, conn.target)
            .filter(|_| self.waiting.load(Relaxed) == 0)
        else {
            return;
        };
        conn.used = true;
        conn.wire.put_back();
        let mut shelf = shelf.lock();
        // The oldest are the first that the upstream closes.
        if shelf.first().is_some_and(|oldest| oldest.sender.is_closed()) {
            shelf.retain(|kept| !kept.sender.is_closed());
        }
        shelf.push(conn);
    }

    /// Closes an idle connection, if there is any, and keeps none until the guard is dropped.
    pub(super) fn make_room(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        self.evict();
        Waiting(&self.waiting)
    }

    /// Closes one idle connection, the oldest of its shelf, if there is any.
    fn evict(&self) {
        for shelf in self.shelves.iter().flatten() {
            let mut shelf = shelf.lock();
            shelf.retain(|kept| !kept.sender.is_closed());
            if !shelf.is_empty() {
                shelf.remove(0);
                return;
            }
        }
    }

    fn shelf(&self, worker: usize, target: usize) -> Option<&Shelf<B>> {
        self.shelves.get(worker)?.get(target)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<B: Body + 'static> Shelf<B> {
    fn lock(&self) -> MutexGuard<'_, Vec<Conn<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
