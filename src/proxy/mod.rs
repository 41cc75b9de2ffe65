//! The life of a request: admission, route, limits, upstream, and the fields that tell the client where it stands.
//!
//! [`Connection::handle`] is the whole of it; its middle, a tower layer that any service can be put into, is
//! [`LimitLayer`]. This module opens no socket and decides no limit.

mod admission;
mod body;
mod discard;
mod expect;
mod explain;
mod fields;
mod forward;
mod gateway;
mod hop;
mod labels;
mod last_hop;
mod layer;
mod respond;
mod route;
mod tunnel;
mod upgrade;

use std::time::Duration;

use crate::rules::{HostPattern, PathPattern};

pub use body::{BoxError, Download, Guarded, Upload, UploadError};
pub use explain::{Basis, Explained, explain};
pub use forward::{FromUpstream, ToUpstream};
pub use gateway::{Connection, Gateway, GatewayBody, Generation, InFlight};
pub use layer::{LimitLayer, Limited, Limits};
pub use route::{RouteConflict, RouteTable};

/// What the handler needs beside the rules.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In the order of the file.
    pub routes: Vec<Route>,
    /// The header profiles to write.
    pub profiles: Vec<Profile>,
    /// Longest silence inside a request body.
    pub body: Duration,
    /// Most bytes of a request body; 0 is no limit.
    pub body_bytes: u64,
    /// Most bytes of a request target.
    pub uri_bytes: usize,
    /// Most fields in a request head.
    pub header_count: usize,
}

/// `[[route]]`: which upstream a request goes to.
#[derive(Clone, Debug)]
pub struct Route {
    /// The host that was asked for; `None` is any.
    pub host: Option<HostPattern>,
    /// The path; `/{*rest}` is any.
    pub path: PathPattern,
    /// The name of the upstream.
    pub upstream: String,
}

/// A set of header fields that tell a client where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Used`, `-Reset`, `-Resource`.
    Github,
    /// `RateLimit-Policy` and `RateLimit`.
    Draft,
}
