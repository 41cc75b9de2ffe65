//! Bodies that nobody wants and that arrive nevertheless: they are no heads of requests, and do not take the answer along.

use std::time::{Duration, Instant};

use crate::support::{Ask, Client, Config, Gateway, Upstream, curl, noise, rule};

/// A gateway with nothing left under /full and little patience for heads.
fn exhausted(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(
        &Config::new(upstream)
            .timeouts("header = \"1s\"")
            .limits("body_bytes = 131072")
            .and(&rule(
                "r",
                "fixed-window",
                1,
                "1d",
                "match = { path = \"/full\" }",
            )),
    );
    assert_eq!(gateway.get("/full").status, 200);
    gateway
}

/// Sends a body a part at a time, until it is sent or the gateway has closed; how many parts went.
fn drip(client: &mut Client, body: &[u8], parts: usize, pause: Duration) -> usize {
    let parts = body.chunks(body.len().div_ceil(parts));
    parts
        .take_while(|part| {
            std::thread::sleep(pause);
            client.send(part)
        })
        .count()
}

#[test]
fn a_body_that_is_read_on_is_not_the_start_of_a_head() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let body = noise(40_000, 5);
    for chunked in [false, true] {
        let mut ask = Ask::post("/full", body.clone());
        ask.chunked = chunked;
        let bytes = ask.bytes();
        let head = bytes.len() - ask.body.as_ref().map_or(0, Vec::len);
        let mut client = gateway.client();
        client.send(&bytes[..head]);
        assert_eq!(client.answer().status, 429);
        // Twice as long as a head may take.
        assert_eq!(
            drip(&mut client, &bytes[head..], 8, Duration::from_millis(250)),
            8
        );
        let received = client.received.len();
        assert!(!client.closes_within(Duration::from_millis(1_500)));
        assert_eq!(
            String::from_utf8_lossy(&client.received[received..]),
            "",
            "nobody asked for it"
        );
        assert_eq!(client.get("/next").text(), "GET /next\n");
    }
}

#[test]
fn an_upload_that_is_too_large_is_read_on_for_longer_than_a_head_may_take() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n40000\r\n".as_bytes());
    let half = noise(0x20000 + 5_000, 5);
    client.send(&half);
    let start = Instant::now();
    // After an answer inside the body the connection is closed, but not with what the client still sends.
    let sent = drip(&mut client, &noise(20_000, 6), 10, Duration::from_millis(200));
    assert_eq!(sent, 10, "cut after {:?}", start.elapsed());
    assert_eq!(client.answer().status, 413);
}

#[test]
fn a_slow_head_after_such_a_body_still_times_out() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let mut client = gateway.client();
    client.send(Ask::post("/full", noise(10_000, 5)).bytes());
    assert_eq!(client.answer().status, 429);
    // So that it does not come with the end of the body.
    std::thread::sleep(Duration::from_millis(300));
    client.send("GET /next HT");
    assert_eq!(client.answer().status, 408);
    assert!(client.closes_within(Duration::from_secs(2)));
}

/// Curl shows the reset of a stream instead of the answer before it.
#[test]
fn curl_sees_why_a_small_upload_was_refused_over_http2() {
    let upstream = Upstream::start();
    let gateway = exhausted(&upstream);
    let (file, too_large) = (gateway.folder().join("upload"), gateway.folder().join("large"));
    std::fs::write(&file, noise(100_000, 9)).unwrap();
    std::fs::write(&too_large, noise(200_000, 9)).unwrap();
    for (target, file, status) in [
        ("/full", &file, "429"),
        ("/full", &too_large, "413"),
        ("/", &too_large, "413"),
    ] {
        let data = format!("@{}", file.display());
        let url = gateway.url(target);
        for turn in 0..10 {
            let printed = curl(&[
                "--http2-prior-knowledge",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
                "--data-binary",
                &data,
                &url,
            ]);
            assert_eq!(printed, status, "{target}, turn {turn}");
        }
    }
    assert_eq!(upstream.count(), 1);
}
