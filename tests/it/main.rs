//! Black-box tests: the built gateway, driven through real sockets.
//!
//! Each test starts a gateway of its own, with a scripted upstream behind it. Tests wait for conditions; they sleep only
//! where time itself is what they test.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test stops at what it does not expect, and measures the clock from outside"
)]

mod support;

mod addresses;
mod admin;
mod blocked;
mod bounds;
mod cli;
mod clients;
mod cluster;
mod concurrency;
mod counting;
mod credentials;
mod docker;
mod documents;
mod drain;
mod early;
mod edge;
mod expectations;
mod explain;
mod failing;
mod fields;
mod flaky;
mod frames;
mod framing;
mod guards;
mod h2c;
mod headers;
mod keys;
mod layer;
mod leaving;
mod links;
mod loaded;
mod matrix;
mod memory;
mod moving;
mod oracles;
mod outages;
mod overrides;
mod paths;
mod proxying;
mod queue;
mod refilling;
mod refunds;
mod reload;
mod restricted;
mod sentinel;
mod shards;
mod slow;
mod snapshot;
mod standing_in;
mod steps;
mod streaming;
mod tidy;
mod tls;
mod together;
mod trace;
mod unread;
mod upgrades;
mod uploads;
mod waits;
