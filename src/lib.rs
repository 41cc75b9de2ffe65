//! A reverse-proxy gateway with inline rate limiting.
//!
//! The `tollgate` command runs a gateway from a config file. Its limiting stage is a tower [`Layer`](tower::Layer), which
//! stands before any HTTP service: a request is charged before the service sees it, refused with 429 if there is no room,
//! and settled by the service's answer. [`app::limits`] makes the layer from the text of a rule table:
//!
//! ```
//! use std::convert::Infallible;
//! use std::net::SocketAddr;
//!
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tollgate::identity::Peer;
//! use tower::{Layer, Service, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limits = tollgate::app::limits(
//!     r#"
//!     [[rule]]
//!     name = "per-address"
//!     key = ["ip"]
//!     algorithm = "sliding-log"
//!     limit = 2
//!     window = "1m"
//!     refund = [404]            # what is not found is free
//!     "#,
//! )?;
//! let mut service = limits.layer(service_fn(async |request: Request<Full<Bytes>>| {
//!     let mut response = Response::new(Full::from("hello"));
//!     if request.uri().path() != "/" {
//!         *response.status_mut() = StatusCode::NOT_FOUND;
//!     }
//!     Ok::<_, Infallible>(response)
//! }));
//!
//! for (path, status, remaining) in [("/", 200, "1"), ("/lost", 404, "1"), ("/", 200, "0"), ("/", 429, "0")] {
//!     let mut request = Request::get(path).body(Full::default())?;
//!     // Whoever accepts connections knows the peer. Behind a proxy, see `server.trusted_proxies`.
//!     let peer: SocketAddr = "192.0.2.1:4711".parse()?;
//!     request.extensions_mut().insert(Peer(peer));
//!     let response = service.call(request).await?;
//!     assert_eq!(response.status(), status);
//!     assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `examples/axum.rs` does the same with an axum router. The modules are described in `ARCHITECTURE.md`.

#[cfg(test)]
extern crate self as tollgate;

pub mod admin;
pub mod app;
pub mod cli;
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
pub mod tls;
pub mod upstream;
