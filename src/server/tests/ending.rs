//! How connections, requests and the server end.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use tokio::time::sleep;

use super::{get, ms, prior_knowledge, response, rest, send, settings, start, until};
use crate::inbound::RequestBody;
use crate::server::{Settings, Shared, WorkerError, bind, run};

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
