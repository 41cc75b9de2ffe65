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

use super::{ConnectError, SendError, Settings, Upstream, UpstreamBody};
use crate::clock;

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

#[tokio::test]
async fn a_target_that_refuses_is_passed_over() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = closed.local_addr().unwrap();
    drop(closed);
    let upstream = Upstream::new(&settings(&[dead]), 1).unwrap();
    let refused = send(&upstream, Method::POST, full("upload")).await;
    assert!(
        matches!(refused, Err(SendError::Connect(ConnectError::Reach(_)))),
        "{refused:?}"
    );
    assert_eq!(upstream.open_connections(), 0);

    let fake = Fake::start(good).await;
    let upstream = Upstream::new(&settings(&[dead, fake.address]), 1).unwrap();
    for _ in 0..6 {
        assert_eq!(
            text(send(&upstream, Method::POST, full("upload")).await).await,
            "ok"
        );
    }
}

#[tokio::test]
async fn one_that_works_answers_for_those_that_do_not() {
    let refusing = || {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        closed.local_addr().unwrap()
    };
    let dead = [refusing(), refusing()];
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    silent.listen(0).unwrap();
    let full = silent.local_addr().unwrap().as_socket().unwrap();
    let _queued = TcpStream::connect(full).await.unwrap();
    let fake = Fake::start(|fake, _, mut socket| async move {
        request(&fake, &mut socket).await;
        write(&mut socket, OK).await;
    })
    .await;
    for targets in [[dead[0], dead[1], fake.address], [full, dead[0], fake.address]] {
        let mut settings = settings(&targets);
        settings.connect = ms(400);
        let upstream = Upstream::new(&settings, 1).unwrap();
        let (mut slow, start) = (0, clock::now());
        while clock::now().duration_since(start) < ms(2500) {
            let asked = clock::now();
            assert_eq!(
                text(send(&upstream, Method::POST, self::full("x")).await).await,
                "ok"
            );
            slow += usize::from(clock::now().duration_since(asked) > ms(150));
            sleep(ms(10)).await;
        }
        assert!(slow <= 2, "the first and one probe wait: {slow}");
    }
}

#[tokio::test]
async fn targets_take_turns() {
    let (one, two) = (Fake::start(good).await, Fake::start(good).await);
    let upstream = Upstream::new(&settings(&[one.address, two.address]), 1).unwrap();
    for _ in 0..6 {
        assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
    }
    for fake in [one, two] {
        assert_eq!(fake.requests.load(Ordering::SeqCst), 3);
        assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_name_is_resolved() {
    let fake = Fake::start(good).await;
    let mut settings = settings(&[]);
    settings.targets = vec![
        format!("http://localhost:{}", fake.address.port())
            .parse()
            .unwrap(),
    ];
    let upstream = Upstream::new(&settings, 1).unwrap();
    assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
}

#[tokio::test]
async fn a_target_that_does_not_accept_is_given_up() {
    // A full backlog: the kernel drops what comes next.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let _queued = TcpStream::connect(address).await.unwrap();
    let mut settings = settings(&[address]);
    settings.connect = ms(200);
    let upstream = Upstream::new(&settings, 1).unwrap();
    let start = clock::now();
    let given_up = send(&upstream, Method::GET, empty()).await;
    assert!(
        matches!(given_up, Err(SendError::Connect(ConnectError::TimedOut))),
        "{given_up:?}"
    );
    assert!((ms(190)..ms(1000)).contains(&clock::now().duration_since(start)));
}

#[tokio::test]
async fn a_silent_upstream_is_out_of_time_once_it_has_the_request() {
    let fake =
        Fake::start(
            |fake, _, mut socket| async move { while request(&fake, &mut socket).await.is_some() {} },
        )
        .await;
    let mut settings = settings(&[fake.address]);
    settings.response = ms(200);
    let upstream = Upstream::new(&settings, 1).unwrap();
    let start = clock::now();
    let late = send(&upstream, Method::GET, empty()).await;
    assert!(matches!(late, Err(SendError::Timeout)), "{late:?}");
    assert!((ms(190)..ms(600)).contains(&clock::now().duration_since(start)));
    assert_eq!(fake.requests.load(Ordering::SeqCst), 1, "not repeated");
    until(|| upstream.open_connections() == 0).await;

    let (feed, body) = fed();
    let slow = tokio::spawn(async move {
        for _ in 0..6 {
            feed.send(Ok(Frame::data(Bytes::from_static(b"x"))))
                .await
                .unwrap();
            sleep(ms(100)).await;
        }
        clock::now()
    });
    let late = send(&upstream, Method::POST, body).await;
    assert!(matches!(late, Err(SendError::Timeout)), "{late:?}");
    let after = clock::now().duration_since(slow.await.unwrap());
    assert!(
        (ms(190)..ms(600)).contains(&after),
        "{after:?} after the end of the body"
    );
}

#[tokio::test]
async fn an_upstream_that_takes_no_bytes_is_out_of_time() {
    let fake = Fake::start(|_, _, socket| async move {
        sleep(Duration::from_secs(20)).await;
        drop(socket);
    })
    .await;
    let mut settings = settings(&[fake.address]);
    settings.response = ms(200);
    let upstream = Upstream::new(&settings, 1).unwrap();
    let late = send(&upstream, Method::POST, endless()).await;
    assert!(matches!(late, Err(SendError::Timeout)), "{late:?}");
}

#[tokio::test]
async fn a_kept_connection_keeps_no_old_deadline() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        while request(&fake, &mut socket).await.is_some() {
            sleep(ms(150)).await;
            write(&mut socket, OK).await;
        }
    })
    .await;
    let mut settings = settings(&[fake.address]);
    settings.response = ms(250);
    let upstream = Upstream::new(&settings, 1).unwrap();
    for _ in 0..4 {
        assert_eq!(text(send(&upstream, Method::GET, empty()).await).await, "ok");
    }
    assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Close,
    Read,
    Stop,
}

#[tokio::test]
async fn an_answer_that_overtakes_its_request_is_delivered() {
    for then in [Then::Close, Then::Read, Then::Stop] {
        let fake = Fake::start(move |_, _, mut socket| async move {
            let mut some = [0; 1024];
            socket.read_exact(&mut some).await.unwrap();
            let body = "n".repeat(100_000);
            write(
                &mut socket,
                &format!(
                    "HTTP/1.1 413 Too Large\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                ),
            )
            .await;
            match then {
                Then::Close => {}
                Then::Read => while socket.read(&mut some).await.is_ok_and(|count| count > 0) {},
                Then::Stop => sleep(Duration::from_secs(20)).await,
            }
        })
        .await;
        let upstream = to(&fake);
        let response = send(&upstream, Method::POST, endless()).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(text(Ok(response)).await.len(), 100_000, "{then:?}");
        until(|| upstream.open_connections() == 0).await;
    }
}

#[tokio::test]
async fn requests_wait_for_one_another() {
    let fake = Fake::start(good).await;
    let mut settings = settings(&[fake.address]);
    settings.connections = 1;
    settings.connect = ms(200);
    let upstream = Upstream::new(&settings, 1).unwrap();
    let first = send(&upstream, Method::GET, empty()).await.unwrap();
    let busy = send(&upstream, Method::GET, empty()).await;
    assert!(matches!(busy, Err(SendError::Busy)), "{busy:?}");
    let (second, ()) = tokio::join!(send(&upstream, Method::GET, empty()), async {
        sleep(ms(50)).await;
        assert_eq!(text(Ok(first)).await, "ok");
    });
    assert_eq!(text(second).await, "ok");
    assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_idle_connection_makes_room_for_another_worker() {
    let fake = Fake::start(good).await;
    let mut settings = settings(&[fake.address]);
    settings.connections = 2;
    let upstream = Upstream::new(&settings, 3).unwrap();
    for round in 0..12 {
        let mut answers = Vec::new();
        for worker in [round % 3, (round + 1) % 3] {
            let departed = AtomicBool::new(false);
            let sent = upstream.send(worker, ask(Method::GET, empty()), &departed);
            answers.push(timeout(Duration::from_secs(5), sent).await.unwrap());
        }
        for answer in answers {
            assert_eq!(text(answer).await, "ok");
        }
        assert!(upstream.open_connections() <= 2);
    }
    assert!(
        fake.most_open.load(Ordering::SeqCst) <= 3,
        "one may be closing at the upstream's end"
    );
}

#[tokio::test]
async fn what_is_no_response_is_an_error() {
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        "nonsense\r\n\r\n",
        "",
    ] {
        let fake = Fake::start(move |fake, _, mut socket| async move {
            request(&fake, &mut socket).await;
            write(&mut socket, answer).await;
        })
        .await;
        let upstream = to(&fake);
        let broken = send(&upstream, Method::GET, empty()).await;
        assert!(matches!(broken, Err(SendError::Broken(_))), "{broken:?}");
        until(|| upstream.open_connections() == 0).await;
    }
    let fake = Fake::start(|fake, _, mut socket| async move {
        request(&fake, &mut socket).await;
        write(
            &mut socket,
            &format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        )
        .await;
    })
    .await;
    let broken = send(&to(&fake), Method::GET, empty()).await;
    assert!(matches!(broken, Err(SendError::Broken(_))), "{broken:?}");
}

#[tokio::test]
async fn a_request_body_that_fails_is_not_the_upstreams_fault() {
    let fake =
        Fake::start(
            |fake, _, mut socket| async move { while request(&fake, &mut socket).await.is_some() {} },
        )
        .await;
    let upstream = to(&fake);
    let (feed, body) = fed();
    feed.send(Err(io::ErrorKind::UnexpectedEof.into())).await.unwrap();
    let failed = send(&upstream, Method::POST, body).await;
    let Err(SendError::RequestBody(error)) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    until(|| upstream.open_connections() == 0).await;
}

#[tokio::test]
async fn a_flood_before_the_answer_is_cut_and_others_have_their_turn() {
    let fake = Fake::start(|fake, _, mut socket| async move {
        request(&fake, &mut socket).await;
        let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(10_000);
        while socket.write_all(interim.as_bytes()).await.is_ok() {}
    })
    .await;
    let upstream = to(&fake);
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    // The second request comes by a connection that is kept no longer.
    for _ in 0..2 {
        let before = turns.load(Ordering::SeqCst);
        let broken = send(&upstream, Method::GET, empty()).await;
        assert!(matches!(broken, Err(SendError::Broken(Some(_)))), "{broken:?}");
        assert!(turns.load(Ordering::SeqCst) > before + 3);
        until(|| upstream.open_connections() == 0).await;
    }
    other.abort();
}

#[tokio::test]
async fn a_body_after_the_answer_has_no_bound() {
    const LENGTH: usize = 8 << 20;
    let fake = Fake::start(|fake, _, mut socket| async move {
        while request(&fake, &mut socket).await.is_some() {
            let head = format!(
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: {LENGTH}\r\n\r\n",
                "y".repeat(100_000)
            );
            write(&mut socket, &(head + &"b".repeat(LENGTH))).await;
        }
    })
    .await;
    let upstream = to(&fake);
    for _ in 0..3 {
        assert_eq!(
            text(send(&upstream, Method::GET, empty()).await).await.len(),
            LENGTH
        );
    }
    assert_eq!(fake.accepted.load(Ordering::SeqCst), 1);
}
