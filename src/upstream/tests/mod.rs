//! Upstreams that do what a test wants with every connection, over real sockets.

mod answers;
mod targets;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{SendError, Settings, Upstream, UpstreamBody};

type Outgoing = UnsyncBoxBody<Bytes, io::Error>;
type Answer = Result<Response<UpstreamBody<Outgoing>>, SendError<io::Error>>;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// An upstream that does what a test says with every connection.
#[derive(Clone)]
struct Fake {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    most_open: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Fake {
    /// `script` gets the number of the connection, from 0.
    async fn start<F>(script: impl Fn(Fake, usize, TcpStream) -> F + Send + 'static) -> Fake
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Fake {
            address: listener.local_addr().unwrap(),
            accepted: Arc::default(),
            open: Arc::default(),
            most_open: Arc::default(),
            requests: Arc::default(),
        };
        let served = fake.clone();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let number = served.accepted.fetch_add(1, Ordering::SeqCst);
                let open = served.open.fetch_add(1, Ordering::SeqCst) + 1;
                served.most_open.fetch_max(open, Ordering::SeqCst);
                let (fake, served) = (served.clone(), served.clone());
                let run = script(fake, number, socket);
                tokio::spawn(async move {
                    run.await;
                    served.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        fake
    }
}

/// One request as text, its body by `content-length`; `None` at the end of the connection.
async fn request(fake: &Fake, socket: &mut TcpStream) -> Option<String> {
    let mut got = Vec::new();
    loop {
        let mut byte = [0];
        if socket.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        got.push(byte[0]);
        if got.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    fake.requests.fetch_add(1, Ordering::SeqCst);
    let head = String::from_utf8(got).unwrap();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    socket.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

async fn write(socket: &mut TcpStream, text: &str) {
    let _gone = socket.write_all(text.as_bytes()).await;
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Answers every request with [`OK`].
async fn good(fake: Fake, _number: usize, mut socket: TcpStream) {
    while request(&fake, &mut socket).await.is_some() {
        write(&mut socket, OK).await;
    }
}

fn settings(targets: &[SocketAddr]) -> Settings {
    Settings {
        name: "api".into(),
        targets: targets
            .iter()
            .map(|target| format!("http://{target}").parse().unwrap())
            .collect(),
        connections: 10,
        connect: Duration::from_secs(2),
        response: Duration::from_secs(2),
    }
}

fn to(fake: &Fake) -> Arc<Upstream<Outgoing>> {
    Upstream::new(&settings(&[fake.address]), 2).unwrap()
}

fn empty() -> Outgoing {
    full("")
}

fn full(text: &'static str) -> Outgoing {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

/// A body that a test feeds.
struct Fed(mpsc::Receiver<io::Result<Frame<Bytes>>>);

impl Body for Fed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx)
    }
}

fn fed() -> (mpsc::Sender<io::Result<Frame<Bytes>>>, Outgoing) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, Fed(receiver).boxed_unsync())
}

/// A body of 64 MiB at the least, as fast as it is taken.
fn endless() -> Outgoing {
    let (sender, body) = fed();
    tokio::spawn(async move {
        for _ in 0..1024 {
            if sender
                .send(Ok(Frame::data(Bytes::from(vec![b'x'; 64 << 10]))))
                .await
                .is_err()
            {
                break;
            }
        }
    });
    body
}

fn ask(method: Method, body: Outgoing) -> Request<Outgoing> {
    Request::builder()
        .method(method)
        .uri("/")
        .header("host", "a")
        .body(body)
        .unwrap()
}

async fn send(upstream: &Arc<Upstream<Outgoing>>, method: Method, body: Outgoing) -> Answer {
    let departed = AtomicBool::new(false);
    let sent = upstream.send(0, ask(method, body), &departed);
    timeout(Duration::from_secs(10), sent).await.expect("an end")
}

async fn text(answer: Answer) -> String {
    let body = answer.unwrap().into_body();
    let collected = timeout(Duration::from_secs(10), body.collect())
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(collected.to_bytes().to_vec()).unwrap()
}

async fn until(condition: impl Fn() -> bool) {
    let waited = timeout(Duration::from_secs(10), async {
        while !condition() {
            sleep(ms(2)).await;
        }
    });
    waited.await.expect("the condition holds in time");
}

#[tokio::test]
async fn a_connection_is_used_again_whatever_the_framing() {
    const RESPONSES: [&str; 7] = [
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n",
        OK,
    ];
    let fake = Fake::start(|fake, _, mut socket| async move {
        for response in RESPONSES.iter().cycle() {
            if request(&fake, &mut socket).await.is_none() {
                break;
            }
            write(&mut socket, response).await;
        }
    })
    .await;
    let upstream = to(&fake);
    for (method, body) in [(Method::GET, ""), (Method::POST, "upload")] {
        for _ in RESPONSES {
            let response = send(&upstream, method.clone(), full(body)).await.unwrap();
            assert!(response.status() != StatusCode::EARLY_HINTS);
            drop(response.into_body().collect().await.unwrap());
        }
    }
    assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
    assert_eq!(upstream.open_connections(), 1);
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        let mut seen = String::new();
        while !seen.ends_with("0\r\nx: up\r\n\r\n") {
            let mut some = [0; 1024];
            let count = socket.read(&mut some).await.unwrap();
            assert!(count > 0, "{seen:?}");
            seen.push_str(std::str::from_utf8(&some[..count]).unwrap());
        }
        write(
            &mut socket,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: down\r\n\r\n",
        )
        .await;
        good(fake, 0, socket).await;
    })
    .await;
    let upstream = to(&fake);
    let (feed, body) = fed();
    let mut request = ask(Method::POST, body);
    request.headers_mut().insert("trailer", "x".parse().unwrap());
    let feeding = async {
        feed.send(Ok(Frame::data(Bytes::from_static(b"up"))))
            .await
            .unwrap();
        let trailers = [("x".parse().unwrap(), "up".parse().unwrap())]
            .into_iter()
            .collect();
        feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
        drop(feed);
    };
    let departed = AtomicBool::new(false);
    let (response, ()) = tokio::join!(upstream.send(0, request, &departed), feeding);
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_trailers().unwrap()["x"],
        "down"
    );
    assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
    assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_body_that_is_not_read_closes_its_connection() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        while request(&fake, &mut socket).await.is_some() {
            write(&mut socket, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel").await;
        }
    })
    .await;
    let upstream = to(&fake);
    drop(send(&upstream, Method::GET, empty()).await.unwrap());
    until(|| fake.open.load(Ordering::SeqCst) == 0 && upstream.open_connections() == 0).await;
}

#[tokio::test]
async fn a_request_that_is_given_up_closes_its_connection() {
    let fake =
        Fake::start(
            |fake, _, mut socket| async move { while request(&fake, &mut socket).await.is_some() {} },
        )
        .await;
    let upstream = to(&fake);
    let given_up = timeout(
        ms(50),
        upstream.send(0, ask(Method::GET, empty()), &AtomicBool::new(false)),
    )
    .await;
    assert!(given_up.is_err());
    until(|| fake.accepted.load(Ordering::SeqCst) == 1 && fake.open.load(Ordering::SeqCst) == 0).await;
    until(|| upstream.open_connections() == 0).await;
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_is_never_seen() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        request(&fake, &mut socket).await;
        write(&mut socket, OK).await;
    })
    .await;
    let upstream = to(&fake);
    for count in 1..=5 {
        for (method, body) in [(Method::GET, ""), (Method::POST, "upload")] {
            assert_eq!(text(send(&upstream, method, full(body)).await).await, "ok");
        }
        // Every other round, the connection is known to be closed.
        if count % 2 == 0 {
            until(|| upstream.open_connections() == 0).await;
        }
    }
    assert_eq!(fake.requests.load(Ordering::SeqCst), 10);
}

#[test]
fn a_close_that_the_runtime_has_not_heard_of_costs_no_post() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut request = [0; 1024];
            assert!(socket.read(&mut request).unwrap() > 0, "closed unused");
            socket.write_all(OK.as_bytes()).unwrap();
            std::thread::sleep(ms(20));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let upstream = Upstream::new(&settings(&[address]), 1).unwrap();
        for _ in 0..5 {
            assert_eq!(
                text(send(&upstream, Method::POST, full("upload")).await).await,
                "ok"
            );
            // Blocks the runtime on purpose, so that it cannot notice.
            std::thread::sleep(ms(60));
        }
    });
}

#[tokio::test]
async fn what_may_have_been_executed_is_repeated_only_if_its_method_allows_it() {
    // Every connection but the third serves one request, reads a second and breaks.
    let fake = Fake::start(|fake, number, mut socket| async move {
        if number == 2 {
            request(&fake, &mut socket).await;
            return;
        }
        request(&fake, &mut socket).await;
        write(&mut socket, OK).await;
        request(&fake, &mut socket).await;
    })
    .await;
    let upstream = to(&fake);
    assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
    assert_eq!(
        text(send(&upstream, Method::GET, empty()).await).await,
        "ok",
        "repeated"
    );
    assert_eq!(fake.requests.load(Ordering::SeqCst), 3);

    let post = send(&upstream, Method::POST, full("upload")).await;
    assert!(matches!(post, Err(SendError::Broken(Some(_)))), "{post:?}");
    assert_eq!(fake.requests.load(Ordering::SeqCst), 4, "not repeated");

    let first = send(&upstream, Method::GET, empty()).await;
    assert!(
        matches!(first, Err(SendError::Broken(Some(_)))),
        "a new connection is no reason: {first:?}"
    );
    assert_eq!(fake.requests.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn half_an_answer_is_not_asked_for_again() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        request(&fake, &mut socket).await;
        write(&mut socket, OK).await;
        request(&fake, &mut socket).await;
        write(&mut socket, "HTTP/1.1 200 O").await;
    })
    .await;
    let upstream = to(&fake);
    assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
    let broken = send(&upstream, Method::GET, empty()).await;
    assert!(matches!(broken, Err(SendError::Broken(Some(_)))), "{broken:?}");
    assert_eq!(fake.requests.load(Ordering::SeqCst), 2);
}
