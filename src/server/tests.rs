use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::inbound::RequestBody;
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

use super::{Settings, Shared, WorkerError, bind, run, serve};
use crate::clock;

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

#[tokio::test]
async fn kept_connections_outlive_the_header_time() {
    let server = start(Settings {
        header: ms(100),
        ..settings()
    });
    let mut client = server.connect().await;
    for _ in 0..2 {
        send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(response(&mut client).await.starts_with("HTTP/1.1 200 OK"));
        sleep(ms(300)).await;
    }
    send(
        &mut client,
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n",
    )
    .await;
    sleep(ms(300)).await;
    send(&mut client, "hello").await;
    assert!(
        response(&mut client).await.ends_with("\r\n\r\nhello"),
        "a slow body is no slow head"
    );
}

#[tokio::test]
async fn a_dripping_head_is_answered_408() {
    let server = start(Settings {
        header: ms(200),
        ..settings()
    });
    for first in ["", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let mut client = server.connect().await;
        if !first.is_empty() {
            send(&mut client, first).await;
            response(&mut client).await;
        }
        let (mut reader, mut writer) = client.into_split();
        let drip = tokio::spawn(async move {
            for byte in std::iter::once(b'G').chain(std::iter::repeat_n(b'E', 1000)) {
                if writer.write_all(&[byte]).await.is_err() {
                    break;
                }
                sleep(ms(20)).await;
            }
        });
        let start = clock::now();
        let mut got = String::new();
        let ended = timeout(Duration::from_secs(5), reader.read_to_string(&mut got))
            .await
            .unwrap();
        assert!(got.starts_with("HTTP/1.1 408 ") || ended.is_err(), "{got:?}");
        assert!((ms(190)..ms(600)).contains(&since(start)), "{:?}", since(start));
        drip.abort();
    }
    server.until_open(0).await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let server = start(Settings {
        idle: ms(200),
        ..settings()
    });
    let mut fresh = server.connect().await;
    let (got, took) = rest(&mut fresh).await;
    assert_eq!(got, "");
    assert!((ms(190)..ms(500)).contains(&took), "{took:?}");

    let mut kept = server.connect().await;
    send(&mut kept, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut kept).await;
    let (got, took) = rest(&mut kept).await;
    assert_eq!(got, "");
    assert!((ms(190)..ms(500)).contains(&took), "{took:?}");
    server.until_open(0).await;
}

#[tokio::test]
async fn a_request_in_flight_is_not_idle() {
    let server = start(Settings {
        idle: ms(100),
        ..settings()
    });
    let mut client = server.connect().await;
    send(&mut client, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.request_came().await;
    sleep(ms(400)).await;
    server.app.go.add_permits(1);
    assert!(response(&mut client).await.ends_with("slow"));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let server = start(Settings {
        idle: ms(200),
        ..settings()
    });
    let mut client = server.connect().await;
    send(&mut client, "GET /big HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.until_open(1).await;
    server.until_open(0).await;

    let (mut sender, connection) = prior_knowledge(&server).await;
    let _connection = tokio::spawn(connection);
    let unread = sender.send_request(get("http://a/big")).await.unwrap();
    server.until_open(1).await;
    server.until_open(0).await;
    drop(unread);
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
async fn http2_is_served_by_prior_knowledge_and_closed_when_idle() {
    let server = start(Settings {
        idle: ms(200),
        ..settings()
    });
    let (mut sender, connection) = prior_knowledge(&server).await;
    let connection = tokio::spawn(connection);
    let slow = tokio::spawn(sender.send_request(get("http://a/slow")));
    let quick = sender.send_request(get("http://a/")).await.unwrap();
    assert_eq!(quick.status(), StatusCode::OK);
    sleep(ms(400)).await;
    server.app.go.add_permits(1);
    let slow = slow
        .await
        .unwrap()
        .expect("a stream in flight keeps the connection");
    assert_eq!(slow.into_body().collect().await.unwrap().to_bytes(), "slow");
    let start = clock::now();
    let ended = timeout(Duration::from_secs(5), connection)
        .await
        .unwrap()
        .unwrap();
    assert!(ended.is_ok(), "a graceful end: {ended:?}");
    assert!(since(start) >= ms(150), "{:?}", since(start));
    server.until_open(0).await;
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
async fn requests_in_flight_end_before_the_server_does() {
    let server = start(settings());
    let mut idle = server.connect().await;
    send(&mut idle, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut idle).await;
    server.request_came().await;
    let mut busy = server.connect().await;
    send(&mut busy, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.request_came().await;
    let (mut sender, connection) = prior_knowledge(&server).await;
    let connection = tokio::spawn(connection);
    let stream = tokio::spawn(sender.send_request(get("http://a/slow")));
    server.request_came().await;

    server.shared.stop.trigger();
    let (got, took) = rest(&mut idle).await;
    assert_eq!(got, "");
    assert!(took < ms(2000));
    until(|| std::net::TcpStream::connect(server.address).is_err()).await;
    server.app.go.add_permits(2);
    let (got, _) = rest(&mut busy).await;
    assert!(
        got.contains("connection: close\r\n") && got.ends_with("slow"),
        "{got:?}"
    );
    assert_eq!(stream.await.unwrap().unwrap().status(), StatusCode::OK);
    connection.await.unwrap().unwrap();
    assert_eq!(server.stop().await, 0);
}

#[tokio::test]
async fn a_request_on_its_way_at_the_end_is_answered() {
    let server = start(settings());
    let mut client = server.connect().await;
    send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut client).await;
    server.shared.stop.trigger();
    sleep(ms(100)).await;
    send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (got, _) = rest(&mut client).await;
    assert!(
        got.starts_with("HTTP/1.1 200") && got.contains("connection: close\r\n"),
        "{got:?}"
    );
    assert_eq!(server.stop().await, 0);
}

#[tokio::test]
async fn what_the_kernel_has_accepted_is_served() {
    let server = start(Settings {
        connections: 1,
        ..settings()
    });
    let mut first = server.connect().await;
    send(&mut first, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.request_came().await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut client = server.connect().await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        waiting.push(client);
    }
    server.shared.stop.trigger();
    for client in &mut waiting {
        assert!(rest(client).await.0.starts_with("HTTP/1.1 200"));
    }
    server.app.go.add_permits(1);
    assert_eq!(server.stop().await, 0);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let server = start(settings());
    let mut client = server.connect().await;
    send(&mut client, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.request_came().await;
    drop(client);
    server.until_open(0).await;

    let (mut sender, connection) = prior_knowledge(&server).await;
    let connection = tokio::spawn(connection);
    let stream = tokio::spawn(sender.send_request(get("http://a/slow")));
    server.request_came().await;
    stream.abort();
    drop(sender);
    connection.await.unwrap().unwrap();
    server.until_open(0).await;
    server.app.go.add_permits(1);
    assert_eq!(server.app.go.available_permits(), 1, "nobody waits any more");
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
async fn a_panic_ends_its_own_connection_only() {
    let server = start(settings());
    let mut client = server.connect().await;
    send(&mut client, "GET /panic HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(rest(&mut client).await.0, "");
    server.until_open(0).await;
    let mut client = server.connect().await;
    send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    response(&mut client).await;
}

#[tokio::test]
async fn what_outlasts_the_drain_is_cut_and_counted() {
    let server = start(Settings {
        drain: ms(200),
        ..settings()
    });
    let mut client = server.connect().await;
    send(&mut client, "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.request_came().await;
    assert_eq!(server.stop().await, 1);
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

#[test]
fn workers_run_until_they_are_stopped_and_no_panic_goes_unseen() {
    let ask = |address| {
        use std::io::{Read, Write};
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).unwrap();
        got
    };
    let app = || {
        service_fn(|_request: Request<RequestBody>| async {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(name)))
        })
    };
    let listeners = bind(&settings().listen, 2).unwrap();
    let address = listeners[0].addresses().next().unwrap();
    let shared = Shared::new(settings());
    let stop = shared.stop.clone();
    let asking = std::thread::spawn(move || {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            seen.insert(ask(address).rsplit("\r\n").next().unwrap().to_owned());
        }
        stop.trigger();
        seen
    });
    assert_eq!(run(listeners, &shared, |_worker| move |_, _| app()).unwrap(), 0);
    let seen = asking.join().unwrap();
    assert_eq!(
        seen.iter().map(String::as_str).collect::<Vec<_>>(),
        ["worker-0", "worker-1"]
    );

    let listeners = bind(&settings().listen, 2).unwrap();
    let failed = run(listeners, &Shared::new(settings()), |worker| {
        assert!(worker == 0, "as the test wants it");
        move |_, _| app()
    });
    assert!(
        matches!(failed, Err(WorkerError::Panic { worker: 1 })),
        "{failed:?}"
    );
}
