//! Answers that are late, early, endless or none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use super::{Fake, OK, empty, endless, fed, ms, request, send, settings, text, to, until, write};
use crate::clock;
use crate::upstream::{SendError, Upstream};

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
