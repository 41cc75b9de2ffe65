//! A reverse-proxy gateway with inline rate limiting.

#[cfg(test)]
extern crate self as tollgate;

pub mod admin;
pub mod clock;
pub mod config;
pub mod decide;
pub mod identity;
pub mod inbound;
pub mod limit;
pub mod proxy;
pub mod rules;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod upstream;
