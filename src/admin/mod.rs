//! The admin listener: metrics and health, for operators only.
//!
//! [`Admin::answer`] answers one request. This module never touches a client's request, and shows no secret.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::clock;
use crate::telemetry::Metrics;

/// `[admin]`.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen; `None` is no admin listener.
    pub listen: Option<SocketAddr>,
    /// The bearer token that callers must show. Never printed.
    pub token: Option<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// What the admin listener tells.
pub struct Admin {
    metrics: Arc<Metrics>,
    /// Brings the gauges up to date before they are shown.
    refresh: Box<dyn Fn(&Metrics) + Send + Sync>,
    /// What there is to say of the store.
    store: Box<dyn Fn() -> Value + Send + Sync>,
    token: Option<blake3::Hash>,
    draining: AtomicBool,
    configured: std::sync::Mutex<Instant>,
}

impl Admin {
    /// An admin listener's answers; `refresh` sets the gauges that are read rather than counted, `store` is asked what
    /// there is to say of the store.
    pub fn new(
        settings: &Settings,
        metrics: Arc<Metrics>,
        refresh: impl Fn(&Metrics) + Send + Sync + 'static,
        store: impl Fn() -> Value + Send + Sync + 'static,
    ) -> Self {
        Self {
            metrics,
            refresh: Box::new(refresh),
            store: Box::new(store),
            token: settings
                .token
                .as_ref()
                .map(|token| blake3::hash(token.as_bytes())),
            draining: AtomicBool::new(false),
            configured: clock::now().into(),
        }
    }

    /// Says from now on that this process takes no new requests.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Says from now on that the config is new.
    pub fn reloaded(&self) {
        *self
            .configured
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = clock::now();
    }

    /// Answers one request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !self.knows(request) {
            let mut answer = text(StatusCode::UNAUTHORIZED, "a token is needed\n");
            answer
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.ready(),
            "/metrics" => self.metrics(),
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /metrics, /healthz and /readyz\n",
            ),
        }
    }

    /// Whether the caller shows the token. Hashes are compared, in constant time.
    fn knows<B>(&self, request: &Request<B>) -> bool {
        let Some(token) = &self.token else { return true };
        let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let shown = shown.and_then(|shown| {
            let (scheme, shown) = shown.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(shown)
        });
        shown.is_some_and(|shown| blake3::hash(shown.trim_ascii()) == *token)
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        let draining = self.draining.load(Ordering::Acquire);
        let configured = *self
            .configured
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let detail = json!({
            "status": if draining { "draining" } else { "ready" },
            "store": (self.store)(),
            "config_age_seconds": clock::now().saturating_duration_since(configured).as_secs(),
        });
        let status = if draining {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        };
        let mut answer = Response::new(Full::from(format!("{detail}\n")));
        *answer.status_mut() = status;
        answer
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        answer
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        (self.refresh)(&self.metrics);
        match self.metrics.text() {
            Ok(metrics) => {
                let mut answer = Response::new(Full::from(metrics));
                let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                answer.headers_mut().insert(CONTENT_TYPE, kind);
                answer
            }
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics cannot be written\n",
                )
            }
        }
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(token: Option<&str>, shown: Option<&str>, method: &str, path: &str) -> u16 {
        let settings = Settings {
            listen: None,
            token: token.map(str::to_owned),
        };
        let admin = Admin::new(
            &settings,
            Arc::new(Metrics::new().unwrap()),
            |_| (),
            || json!("memory"),
        );
        let mut request = Request::builder().method(method).uri(path);
        if let Some(shown) = shown {
            request = request.header("authorization", shown);
        }
        admin.answer(&request.body(()).unwrap()).status().as_u16()
    }

    #[test]
    fn answers_operators() {
        for (method, path, expected) in [
            ("GET", "/healthz", 200),
            ("HEAD", "/readyz", 200),
            ("GET", "/metrics", 200),
            ("POST", "/metrics", 405),
            ("GET", "/", 404),
        ] {
            assert_eq!(status(None, None, method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn asks_for_the_token() {
        for (shown, expected) in [
            (None, 401),
            (Some("Bearer hunter"), 401),
            (Some("hunter2"), 401),
            (Some("Basic hunter2"), 401),
            (Some("Bearer hunter2"), 200),
            (Some("bearer  hunter2 "), 200),
        ] {
            assert_eq!(
                status(Some("hunter2"), shown, "GET", "/healthz"),
                expected,
                "{shown:?}"
            );
        }
    }

    #[test]
    fn is_not_ready_while_it_drains() {
        let settings = Settings {
            listen: None,
            token: None,
        };
        let admin = Admin::new(
            &settings,
            Arc::new(Metrics::new().unwrap()),
            |_| (),
            || json!("memory"),
        );
        admin.drain();
        let request = Request::get("/readyz").body(()).unwrap();
        assert_eq!(admin.answer(&request).status(), 503);
    }
}
