//! Who is calling: the client's address, and the parts that keys are made of.
//!
//! [`Caller::identify`] turns a request into a [`Caller`]. This module never decides what a caller may do, and never
//! believes a peer that is not a trusted proxy.

mod caller;
mod client;
mod key;
mod source;

use ipnet::IpNet;

pub use caller::{Ambiguous, Caller, Peer, Subject, Value, requested_host};
pub use client::{Found, Named, X_FORWARDED_FOR};
pub use key::{KeyBuilder, LimitKey, Recent, Secret};
pub use source::{KeyPart, SOURCES, Source, SourceError};

/// How callers are told apart.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Peers whose `X-Forwarded-For` and `Forwarded` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// What the key part `user` reads: the first that is present. Never [`Source::User`] itself.
    pub user: Vec<Source>,
    /// Bits of an IPv6 address that name one client, at most 128.
    pub ipv6_prefix: u8,
}

/// Nobody is trusted, nothing is a user, and an IPv6 /64 is one client.
impl Default for Settings {
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            user: Vec::new(),
            ipv6_prefix: 64,
        }
    }
}
