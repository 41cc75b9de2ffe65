//! How many connections are open: over all workers, and from each address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Settings;

/// A limit that a reload raised is noticed after this long even if no connection ends.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Counts the open connections.
#[derive(Debug, Default)]
pub struct Gate {
    open: AtomicUsize,
    freed: Notify,
    of_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One open connection, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
}

impl Gate {
    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until fewer than `most` connections are open. Takes nothing: the next to [`enter`](Self::enter) may find
    /// the room gone.
    pub(super) async fn room(&self, most: impl Fn() -> usize) {
        self.until(|| (self.open() < most()).then_some(())).await;
    }

    /// Counts a connection in as soon as fewer than `most` are open.
    pub(super) async fn enter(self: &Arc<Self>, most: impl Fn() -> usize) -> Slot {
        self.until(|| {
            let taken = self
                .open
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                    (open < most()).then_some(open + 1)
                });
            taken.is_ok().then(|| self.slot())
        })
        .await
    }

    /// Counts a connection in whatever the limit.
    pub(super) fn force(self: &Arc<Self>) -> Slot {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.slot()
    }

    fn slot(self: &Arc<Self>) -> Slot {
        Slot {
            gate: Arc::clone(self),
            address: None,
        }
    }

    async fn until<T>(&self, attempt: impl Fn() -> Option<T>) -> T {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(got) = attempt() {
                return got;
            }
            let _elapsed = timeout(LOOK_AGAIN, freed).await;
        }
    }
}

impl Slot {
    /// Whether `address` has room for this connection, which is counted if so.
    pub(super) fn admit(&mut self, address: IpAddr, settings: &Settings) -> bool {
        if settings.connections_per_ip == 0 {
            return true;
        }
        let address = address.to_canonical();
        let mut counts = self
            .gate
            .of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= settings.connections_per_ip {
            return false;
        }
        *count += 1;
        self.address = Some(address);
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            let mut counts = self
                .gate
                .of_address
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Entry::Occupied(mut count) = counts.entry(address) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.gate.open.fetch_sub(1, Ordering::AcqRel);
        self.gate.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_forgotten_when_its_last_connection_ends() {
        let settings = Settings {
            connections_per_ip: 1,
            ..super::super::tests::settings()
        };
        let gate = Arc::new(Gate::default());
        let plain: IpAddr = "10.0.0.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let (mut first, mut second) = (gate.force(), gate.force());
        assert!(first.admit(plain, &settings));
        assert!(
            !second.admit(mapped, &settings),
            "an IPv4-mapped address is the IPv4 address"
        );
        drop(first);
        assert!(second.admit(mapped, &settings));
        drop(second);
        assert_eq!(gate.open(), 0);
        assert!(gate.of_address.lock().unwrap().is_empty());
    }
}
