//! Alarms by HTTP: each is posted once, as JSON, to where the settings in force say. No request waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::current::Current;
use crate::clock;
use crate::store::redis::Alarm;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

type Poster = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Posts alarms as they come, one after the other.
pub(super) async fn post_all(current: Arc<Current>, mut alarms: mpsc::Receiver<Alarm>) {
    let mut client = None;
    while let Some(alarm) = alarms.recv().await {
        let Some(webhook) = current.settings().webhook else {
            continue;
        };
        // Made when it is needed: it reads the system's certificates.
        let posted = match client.get_or_insert_with(poster) {
            Ok(client) => post(client, webhook, &alarm).await,
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = posted {
            tracing::warn!(error, "alarm not posted");
        }
    }
}

fn poster() -> std::io::Result<Poster> {
    let connector = HttpsConnectorBuilder::new()
        .with_native_roots()?
        .https_or_http()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

async fn post(client: &Poster, webhook: Uri, alarm: &Alarm) -> Result<(), String> {
    let at = clock::wall().0 / 1_000_000;
    let body = match alarm {
        Alarm::Trouble { shard, reason } => {
            json!({ "event": "store_trouble", "at": at, "shard": shard, "reason": reason })
        }
        Alarm::Recovered {
            shard,
            secs,
            undecided,
        } => {
            json!({ "event": "store_recovered", "at": at, "shard": shard, "seconds": secs, "undecided": undecided })
        }
    };
    let request = Request::builder()
        .method(Method::POST)
        .uri(webhook)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body.to_string()))
        .map_err(|error| error.to_string())?;
    let answer = timeout(PATIENCE, client.request(request)).await;
    match answer {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(format!("answered {}", answer.status())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}
