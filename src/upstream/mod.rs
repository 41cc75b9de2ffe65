//! The way to the upstream: targets by turns, and each worker's pool of kept connections, or its few shared ones.
//!
//! [`Upstream::send`] turns a request into a response, or says in a [`SendError`] what became of it. A request reaches
//! an upstream at most once, unless its method may be repeated. This module changes no field and knows no client.

mod body;
mod connection;
mod error;
mod exchange;
mod failures;
mod io;
mod outgoing;
mod pool;
mod repeat;
mod send;
mod streams;
mod target;
mod targets;
mod timer;

use std::time::Duration;

use http::Uri;

pub use body::UpstreamBody;
pub use error::{ConnectError, SendError};
pub use send::Upstream;
pub use target::TargetError;

/// `[upstream.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The name that routes use.
    pub name: String,
    /// `http://host:port`, or `h2c://host:port` for all of them, at least one; no path, no query.
    pub targets: Vec<Uri>,
    /// Most connections at once to all targets together, at least 1.
    pub connections: usize,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest wait from the request sent to the response head.
    pub response: Duration,
}

#[cfg(test)]
mod tests;
