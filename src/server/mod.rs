//! Sockets: listeners, connections and their timers, drain.
//!
//! [`bind`] opens every listener of every worker before one of them serves; [`run`] gives each worker a thread and
//! lets it [`serve`] until the [`Stop`] is triggered. This module hands requests to a service and never looks inside.

mod accept;
mod connection;
mod gate;
mod io;
mod listen;
mod phase;
mod service;
mod stop;
mod timers;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

pub use accept::serve;
pub use gate::Gate;
pub use listen::{BindError, WorkerListeners, bind};
pub use service::{ServiceBody, ServiceFuture};
pub use stop::Stop;
pub use workers::{WorkerError, run};

/// `[server]` as far as sockets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen; port 0 lets the system choose.
    pub listen: Vec<SocketAddr>,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// First byte of a request head to its end.
    pub header: Duration,
    /// A kept connection without a request.
    pub idle: Duration,
    /// Longest wait for requests in flight at the end.
    pub drain: Duration,
    /// A request head in all, in bytes.
    pub header_bytes: usize,
    /// Fields in a request head.
    pub header_count: usize,
    /// Connections accepted at once.
    pub connections: usize,
    /// Connections accepted at once from one address; 0 is no limit.
    pub connections_per_ip: usize,
}

/// What all workers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The settings in force; each connection takes those of the moment it was accepted.
    pub settings: Arc<ArcSwap<Settings>>,
    /// The connections that are open.
    pub gate: Arc<Gate>,
    /// What ends the serving.
    pub stop: Stop,
}

impl Shared {
    /// Serving under `settings`, with no connection yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            gate: Arc::default(),
            stop: Stop::default(),
        }
    }
}

#[cfg(test)]
mod tests;
