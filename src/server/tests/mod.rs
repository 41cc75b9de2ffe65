//! A server around a service that answers as a test wants it, over real sockets.

mod ending;
mod timers;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Settings, Shared, bind, serve};
use crate::clock;
use crate::inbound::RequestBody;

pub(super) fn settings() -> Settings {
    Settings {
        listen: vec![([127, 0, 0, 1], 0).into()],
        workers: 1,
        header: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        drain: Duration::from_secs(30),
        header_bytes: 64 << 10,
        header_count: 100,
        connections: 10_000,
        connections_per_ip: 0,
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the service under test waits for and answers.
#[derive(Clone)]
struct App {
    /// A permit lets one request for `/slow` go on.
    go: Arc<Semaphore>,
    /// A permit for each request that has come.
    came: Arc<Semaphore>,
}

async fn answer(app: App, request: Request<RequestBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    app.came.add_permits(1);
    let (status, body) = match request.uri().path() {
        "/slow" => {
            app.go.acquire().await.unwrap().forget();
            (StatusCode::OK, Bytes::from_static(b"slow"))
        }
        "/refuse" => (StatusCode::PAYLOAD_TOO_LARGE, Bytes::from_static(b"too much")),
        "/big" => (StatusCode::OK, Bytes::from(vec![b'x'; 32 << 20])),
        "/panic" => panic!("as the test wants it"),
        _ => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes());
            (StatusCode::OK, body.unwrap_or_default())
        }
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

struct Server {
    address: SocketAddr,
    shared: Shared,
    app: App,
    ended: JoinHandle<usize>,
}

fn start(settings: Settings) -> Server {
    let mut listeners = bind(&settings.listen, 1).unwrap();
    let own = listeners.pop().unwrap();
    let address = own.addresses().next().unwrap();
    let app = App {
        go: Arc::new(Semaphore::new(0)),
        came: Arc::new(Semaphore::new(0)),
    };
    let shared = Shared::new(settings);
    let (serving, served) = (shared.clone(), app.clone());
    let ended = tokio::spawn(async move {
        let make = move |_peer, _local| {
            let app = served.clone();
            service_fn(move |request| answer(app.clone(), request))
        };
        serve(own, &serving, make).await.unwrap()
    });
    Server {
        address,
        shared,
        app,
        ended,
    }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn request_came(&self) {
        self.app.came.acquire().await.unwrap().forget();
    }

    async fn until_open(&self, count: usize) {
        until(|| self.shared.gate.open() == count).await;
    }

    async fn stop(self) -> usize {
        self.shared.stop.trigger();
        timeout(Duration::from_secs(10), self.ended)
            .await
            .unwrap()
            .unwrap()
    }
}

async fn until(condition: impl Fn() -> bool) {
    let waited = timeout(Duration::from_secs(10), async {
        while !condition() {
            sleep(ms(2)).await;
        }
    });
    waited.await.expect("the condition holds in time");
}

async fn send(client: &mut TcpStream, bytes: &str) {
    client.write_all(bytes.as_bytes()).await.unwrap();
}

/// One response with a `content-length`, as text.
async fn response(client: &mut TcpStream) -> String {
    let mut got = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).unwrap();
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            if body.len() >= length {
                return text;
            }
        }
        let mut some = [0; 4096];
        let count = timeout(Duration::from_secs(10), client.read(&mut some))
            .await
            .unwrap()
            .unwrap();
        assert!(count > 0, "the connection ended after {text:?}");
        got.extend_from_slice(&some[..count]);
    }
}

/// Everything up to the end of the connection, and how long that took.
async fn rest(client: &mut TcpStream) -> (String, Duration) {
    let start = clock::now();
    let mut got = Vec::new();
    timeout(Duration::from_secs(10), client.read_to_end(&mut got))
        .await
        .unwrap()
        .unwrap();
    (String::from_utf8_lossy(&got).into_owned(), since(start))
}

fn since(start: Instant) -> Duration {
    clock::now().duration_since(start)
}

fn get(uri: &str) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}

async fn prior_knowledge(
    server: &Server,
) -> (
    http2::SendRequest<Full<Bytes>>,
    http2::Connection<TokioIo<TcpStream>, Full<Bytes>, TokioExecutor>,
) {
    let io = TokioIo::new(server.connect().await);
    http2::handshake(TokioExecutor::new(), io).await.unwrap()
}

#[tokio::test]
async fn beyond_the_connections_accepting_waits() {
    let server = start(Settings {
        connections: 1,
        ..settings()
    });
    let mut first = server.connect().await;
    send(&mut first, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut first).await;
    let mut second = server.connect().await;
    send(&mut second, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let early = timeout(ms(200), second.read_u8()).await;
    assert!(early.is_err(), "served beyond the limit");
    drop(first);
    response(&mut second).await;
    assert_eq!(server.shared.gate.open(), 1);
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let server = start(Settings {
        connections_per_ip: 1,
        ..settings()
    });
    let mut first = server.connect().await;
    send(&mut first, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut first).await;
    let mut second = server.connect().await;
    let (got, took) = rest(&mut second).await;
    assert_eq!(got, "");
    assert!(took < ms(500));
    drop(first);
    server.until_open(0).await;
    let mut third = server.connect().await;
    send(&mut third, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut third).await;
}

#[tokio::test]
async fn a_raised_limit_acts_without_a_restart() {
    let server = start(Settings {
        connections: 1,
        ..settings()
    });
    let mut first = server.connect().await;
    send(&mut first, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut first).await;
    server.shared.settings.store(Arc::new(Settings {
        connections: 2,
        ..settings()
    }));
    let mut second = server.connect().await;
    send(&mut second, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut second).await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_still_sends() {
    let server = start(settings());
    let mut client = server.connect().await;
    let size = 20 << 20;
    send(
        &mut client,
        &format!("POST /refuse HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"),
    )
    .await;
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..20 {
        client.write_all(&chunk).await.expect("the server reads on");
    }
    let (got, _) = rest(&mut client).await;
    assert!(
        got.starts_with("HTTP/1.1 413") && got.ends_with("too much"),
        "{got:?}"
    );
}

#[tokio::test]
async fn a_head_beyond_the_limits_is_answered_431() {
    let server = start(Settings {
        header_bytes: 1 << 10,
        header_count: 5,
        ..settings()
    });
    let long = format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "y".repeat(100 << 10)
    );
    let many = format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(5));
    let enough = format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(4));
    for (request, status) in [(long, "431"), (many, "431"), (enough, "200")] {
        let mut client = server.connect().await;
        send(&mut client, &request).await;
        let got = response(&mut client).await;
        assert_eq!(got.get(9..12), Some(status), "{got:?}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = bind(&[address], 2).unwrap_err();
    assert_eq!(error.address, address);
    assert_eq!(error.to_string(), format!("cannot listen on {address}"));
}

#[test]
fn workers_share_the_port_that_the_system_chose() {
    let any: [SocketAddr; 2] = ["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()];
    let Ok(bound) = bind(&any, 3) else { return };
    let first: Vec<_> = bound[0].addresses().collect();
    assert!(first.iter().all(|address| address.port() != 0));
    for listeners in &bound {
        assert_eq!(listeners.addresses().collect::<Vec<_>>(), first);
    }
    let client = std::net::TcpStream::connect(first[0]).unwrap();
    drop(client);
}

#[test]
fn accepted_sockets_have_no_delay() {
    let bound = bind(&["127.0.0.1:0".parse().unwrap()], 1).unwrap();
    let listener = &bound[0].0[0];
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    assert!(accepted.nodelay().unwrap());
    assert_eq!(peer.ip(), IpAddr::from([127, 0, 0, 1]));
}
