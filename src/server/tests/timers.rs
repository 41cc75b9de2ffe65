//! What is timed, and what is not.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{get, ms, prior_knowledge, response, rest, send, settings, since, start};
use crate::clock;
use crate::server::Settings;

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
