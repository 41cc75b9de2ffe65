//! Which target a request goes to, and who waits.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{Fake, OK, ask, empty, full, good, ms, request, send, settings, text, write};
use crate::clock;
use crate::upstream::{ConnectError, SendError, Upstream};

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
