//! The limiting stage in front of services that are not the gateway's.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tollgate::app::{self, AppError};
use tollgate::identity::Peer;
use tower::{BoxError, Layer, Service, service_fn};

use crate::support::{Ask, Client, Limits, on_redis};

#[path = "../../examples/axum.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "an example has a `main` of its own"
)]
mod example;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Serves the router of the example on a port that the system chooses, until the test process ends.
fn serve() -> SocketAddr {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let (router, _) = example::router().unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        });
    });
    told.recv().unwrap()
}

#[test]
fn an_axum_router_has_the_limits_of_a_gateway() {
    let mut client = Client::connect(serve());
    let first = client.get("/items/1");
    assert_eq!((first.status, first.text().as_str()), (200, "item 1\n"));
    let limits = Limits::of(&first);
    assert_eq!((limits.limit, limits.remaining), (3, 2));
    assert_eq!(first.must("ratelimit-policy"), "\"per-item\";q=3;w=60");
    // What is not found is free, and another item is the same endpoint.
    let lost = client.get("/items/0");
    assert_eq!((lost.status, Limits::of(&lost).remaining), (404, 2));
    assert_eq!(Limits::of(&client.get("/items/2")).remaining, 1);
    assert_eq!(Limits::of(&client.get("/items/3")).remaining, 0);
    let refused = client.get("/items/1");
    assert_eq!(refused.status, 429);
    assert!((1..=60).contains(&Limits::of(&refused).retry_after.unwrap()));
    assert_eq!(refused.problem()["violated-policies"][0], "per-item");
    assert_eq!(client.get("/health").status, 200, "another endpoint");
    let other = client.ask(&Ask::new("HEAD", "/items/1"));
    assert_eq!(other.status, 200, "another method");
}

const RULES: &str = r#"
[[rule]]
name = "strict"
key = ["ip"]
limit = 100
window = "1h"
refund = []

[[rule]]
name = "kind"
key = ["ip"]
limit = 100
window = "1h"

[[rule]]
name = "leavers"
key = ["ip"]
limit = 100
window = "1h"
refund = ["client-abort"]
"#;

fn request(path: &str) -> Request<Full<Bytes>> {
    let mut request = Request::get(path).body(Full::default()).unwrap();
    let peer = SocketAddr::from(([192, 0, 2, 1], 4711));
    request.extensions_mut().insert(Peer(peer));
    request
}

async fn service(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, BoxError> {
    match request.uri().path() {
        "/panic" => panic!("as the test wants"),
        "/error" => Err("as the test wants".into()),
        "/never" => std::future::pending().await,
        // Without a body there is no end of it to leave before.
        _ => Ok(Response::new(Full::default())),
    }
}

/// What is left of each rule.
fn left(response: &Response<impl Sized>) -> Vec<&str> {
    let members = response.headers()["ratelimit"].to_str().unwrap().split(", ");
    members
        .map(|member| member.split("r=").nth(1).unwrap().split(';').next().unwrap())
        .collect()
}

#[test]
fn a_service_that_panics_fails_or_is_left_settles() {
    runtime().block_on(async {
        let mut limited = app::limits(RULES).unwrap().layer(service_fn(service));
        let fine = limited.call(request("/")).await.unwrap();
        assert_eq!(left(&fine), ["99", "99", "99"]);
        // Those who panic or fail count as an upstream that does not answer.
        let panicked = tokio::spawn(limited.call(request("/panic"))).await;
        assert!(panicked.is_err_and(|error| error.is_panic()));
        assert_eq!(
            left(&limited.call(request("/")).await.unwrap()),
            ["97", "98", "97"]
        );
        assert!(limited.call(request("/error")).await.is_err());
        assert_eq!(
            left(&limited.call(request("/")).await.unwrap()),
            ["95", "97", "95"]
        );
        let never = tokio::spawn(limited.call(request("/never")));
        tokio::task::yield_now().await;
        never.abort();
        assert!(never.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(
            left(&limited.call(request("/")).await.unwrap()),
            ["93", "95", "94"]
        );
    });
}

#[test]
fn a_rule_table_needs_no_upstream_and_its_faults_are_told() {
    assert!(app::limits("").is_ok());
    let Err(AppError::Config(report)) =
        app::limits("[[rule]]\nname = \"r\"\nkey = []\nlimit = 0\nwindow = \"1s\"\n")
    else {
        panic!("a limit of 0 is taken");
    };
    assert!(
        report.to_string().contains("limits:4:9: error: 0 is no limit"),
        "{report}"
    );
    assert!(app::limits("[[route]]\nupstream = \"api\"\n").is_err());
    let Err(AppError::Config(report)) = app::limits(&on_redis(&["127.0.0.1"], "")) else {
        panic!("a store that the layer does not use is taken");
    };
    let shown = report.to_string();
    assert!(shown.contains("a layer keeps its limits in memory"), "{shown}");
}

#[test]
fn clones_share_their_state_and_no_rule_means_no_field() {
    runtime().block_on(async {
        let fine =
            |_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) };
        let layer = app::limits(RULES).unwrap();
        let (mut one, mut other) = (
            layer.layer(service_fn(fine)),
            layer.clone().layer(service_fn(fine)),
        );
        let _ = one.call(request("/")).await;
        assert_eq!(left(&other.call(request("/")).await.unwrap()), ["98", "98", "98"]);
        layer.tick();
        let mut free = app::limits("").unwrap().layer(service_fn(fine));
        let answer = free.call(request("/")).await.unwrap();
        assert!(
            !answer.headers().contains_key("ratelimit"),
            "{:?}",
            answer.headers()
        );
    });
}
