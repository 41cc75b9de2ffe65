//! An axum router behind Tollgate's limits: the same rule table, header fields and refunds as in the gateway.
//!
//! ```sh
//! cargo run --example axum
//! curl -i http://127.0.0.1:3000/items/1
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath, Path, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::app::{self, AppError};
use tollgate::identity::Peer;
use tollgate::proxy::LimitLayer;
use tollgate::rules::RoutePattern;

const LIMITS: &str = r#"
[[rule]]
name = "per-item"
key = ["ip", "endpoint"]
algorithm = "sliding-log"
limit = 3
window = "1m"
refund = [404]
"#;

/// The router, and the layer that it is behind.
///
/// # Errors
/// The rule table has faults.
pub fn router() -> Result<(Router, LimitLayer), AppError> {
    let limits = app::limits(LIMITS)?;
    // A layer that is added later is passed earlier.
    let router = Router::new()
        .route("/items/{id}", get(item))
        .route("/health", get(async || "well"))
        .layer(limits.clone())
        .layer(from_fn(identify));
    Ok((router, limits))
}

/// Tells the limits whom a request comes from, and which route it takes.
async fn identify(
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    route: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let extensions = request.extensions_mut();
    extensions.insert(Peer(address));
    if let Some(route) = route {
        extensions.insert(RoutePattern(Arc::from(route.as_str())));
    }
    next.run(request).await
}

async fn item(Path(id): Path<u32>) -> Result<String, StatusCode> {
    match id {
        0 => Err(StatusCode::NOT_FOUND),
        _ => Ok(format!("item {id}\n")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (router, limits) = router()?;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            limits.tick();
        }
    });
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(
        listener,
        router.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
