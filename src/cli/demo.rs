//! `tollgate demo`: a gateway with limits that can be seen working, and nothing to install.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use bytes::Bytes;
use clap::Args;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use serde_json::json;

use crate::app::{self, Addresses, AppError, Source};
use crate::server::{self, Shared};

const TABLE: &str = include_str!("demo.toml");

/// Connections of the built-in upstream.
const CONNECTIONS: usize = 1024;

#[derive(Args)]
pub(super) struct Options {
    /// Where the gateway listens
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where the admin listener listens
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9901")]
    admin: SocketAddr,
}

/// Runs the demo until it is told to stop.
pub(super) fn run(options: &Options) -> Result<(), AppError> {
    let upstream = start_upstream()?;
    let text = TABLE
        .replace("@LISTEN@", &options.listen.to_string())
        .replace("@ADMIN@", &options.admin.to_string())
        .replace("@UPSTREAM@", &upstream.to_string());
    app::run(
        Source::Text {
            name: "demo.toml",
            text,
        },
        welcome,
    )
}

/// Serves the built-in upstream on a thread of its own, on a port that the system chooses.
fn start_upstream() -> Result<SocketAddr, AppError> {
    let listeners = server::bind(&[(Ipv4Addr::LOCALHOST, 0).into()], 1)?;
    let address = listeners.first().and_then(|own| own.addresses().next());
    let shared = Shared::new(server::Settings {
        listen: Vec::new(),
        workers: 1,
        header: std::time::Duration::from_secs(10),
        idle: std::time::Duration::from_secs(75),
        drain: std::time::Duration::ZERO,
        header_bytes: 64 * 1024,
        header_count: 100,
        connections: CONNECTIONS,
        connections_per_ip: 0,
    });
    thread::Builder::new()
        .name("demo-upstream".to_owned())
        .spawn(move || {
            server::run(listeners, &shared, |_| {
                |_, _| service_fn(|request| async move { answer(&request) })
            })
        })?;
    address.ok_or_else(|| std::io::Error::other("the built-in upstream has no address").into())
}

/// The built-in upstream: says what it was asked; `/items/…` has an `ETag`, so that a client can get a 304.
fn answer<B>(request: &Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let tag = path
        .strip_prefix("/items/")
        .and_then(|item| HeaderValue::from_str(&format!("\"{item}\"")).ok());
    let known = tag.is_some() && request.headers().get(IF_NONE_MATCH) == tag.as_ref();
    let mut response = if known {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let body = json!({ "you asked for": path, "the gateway says you are": forwarded_for(request) });
        let mut response = Response::new(Full::from(format!("{body}\n")));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    if let Some(tag) = tag {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

fn forwarded_for<B>(request: &Request<B>) -> &str {
    request
        .headers()
        .get("x-forwarded-for")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn welcome(addresses: &Addresses) {
    let Some(gateway) = addresses.clients.first() else {
        return;
    };
    println!("Tollgate listens on http://{gateway} with a built-in upstream behind it. Ctrl-C ends it.");
    println!("Two rules: 100 requests in 10 s for each address, 5 in 10 s for each user on /items/{{id}}.");
    println!();
    println!("See the limit fields:");
    println!("  curl -i http://{gateway}/items/1");
    println!("Run into the limit of 5 (the 6th is a 429 with Retry-After):");
    println!(
        "  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}} left: %header{{x-ratelimit-remaining}}\\n' -H 'X-User: ann' http://{gateway}/items/$i; done"
    );
    println!("A 304 is given back (what is left stays the same):");
    println!("  curl -i -H 'X-User: bob' -H 'If-None-Match: \"7\"' http://{gateway}/items/7");
    println!("A user with a limit of its own (25), and one without (only the limit of the address counts):");
    println!("  curl -i -H 'X-User: gold' http://{gateway}/items/1");
    println!("  curl -i -H 'X-User: staff' http://{gateway}/items/1");
    if let Some(admin) = addresses.admin {
        println!("What operators see:");
        println!("  curl -s http://{admin}/metrics | grep tollgate_decisions_total");
    }
}
