//! HTTP/2 requests that are malformed: none of them reaches the upstream, and other connections do not notice.

use std::time::Duration;

use crate::support::{Config, Frames, Gateway, Reply, Upstream, rule, wait_until};

const GET: [(&str, &[u8]); 4] = [
    (":method", b"GET"),
    (":scheme", b"http"),
    (":path", b"/"),
    (":authority", b"a.example"),
];

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

fn with(more: &[(&'static str, &'static [u8])]) -> Vec<(&'static str, &'static [u8])> {
    GET.iter().chain(more).copied().collect()
}

fn without(name: &str, more: &[(&'static str, &'static [u8])]) -> Vec<(&'static str, &'static [u8])> {
    let kept = GET.into_iter().filter(|(known, _)| *known != name);
    kept.chain(more.iter().copied()).collect()
}

#[test]
fn a_plain_request_in_single_frames_is_answered() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut frames = Frames::connect(gateway.addr());
    frames.head(1, &GET, true);
    assert_eq!(frames.reply(1), Reply::Status(200));
    frames.head(3, &without(":authority", &[("host", b"b.example")]), true);
    assert_eq!(
        frames.reply(3),
        Reply::Status(200),
        "Host stands in for :authority"
    );
    assert_eq!(upstream.last().all("host"), ["b.example"]);
}

#[test]
fn malformed_heads_go_nowhere() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for fields in [
        without(":method", &[]),
        without(":path", &[]),
        without(":scheme", &[]),
        without(":authority", &[]),
        without(":path", &[(":path", b"")]),
        without(":path", &[(":path", b"no-slash")]),
        with(&[(":path", b"/again")]),
        with(&[("x", b"1"), (":late", b"x")]),
        with(&[(":unknown", b"x")]),
        with(&[(":status", b"200")]),
        with(&[("X-Upper", b"x")]),
        with(&[("connection", b"close")]),
        with(&[("transfer-encoding", b"chunked")]),
        with(&[("keep-alive", b"1")]),
        with(&[("proxy-connection", b"close")]),
        with(&[("upgrade", b"h2c")]),
        with(&[("te", b"gzip")]),
        with(&[("x", b" leading")]),
        with(&[("x", b"trailing\t")]),
        with(&[("x", b"a\r\nb: c")]),
        with(&[("x", b"a\0b")]),
        with(&[("x y", b"a")]),
        with(&[("", b"a")]),
        with(&[("host", b"other.example")]),
        with(&[("content-length", b"5")]),
        with(&[("content-length", b"x")]),
        vec![(":method", b"CONNECT")],
        vec![(":method", b"CONNECT"), (":authority", b"evil.example:443")],
        vec![
            (":method", b"CONNECT"),
            (":protocol", b"websocket"),
            (":scheme", b"http"),
            (":path", b"/"),
            (":authority", b"a.example"),
        ],
    ] {
        let mut frames = Frames::connect(gateway.addr());
        frames.head(1, &fields, true);
        let reply = frames.reply(1);
        assert!(
            matches!(reply, Reply::Status(400 | 0) | Reply::Reset | Reply::Gone),
            "{fields:?}: {reply:?}"
        );
        assert_eq!(upstream.count(), 0, "{fields:?} reached the upstream");
    }
    let mut frames = Frames::connect(gateway.addr());
    frames.head(1, &GET, true);
    assert_eq!(frames.reply(1), Reply::Status(200));
}

#[test]
fn a_body_that_is_not_as_long_as_announced_is_no_whole_request() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    for (announced, body) in [(&b"3"[..], &b"hello"[..]), (b"9", b"hello")] {
        let mut frames = Frames::connect(gateway.addr());
        let mut fields = GET.to_vec();
        fields[0].1 = b"POST";
        fields.push(("content-length", announced));
        frames.head(1, &fields, false);
        frames.data(1, body);
        frames.head(1, &[("x-trailer", b"1")], true);
        let reply = frames.reply(1);
        assert!(
            matches!(reply, Reply::Status(400 | 0) | Reply::Reset | Reply::Gone),
            "{announced:?}: {reply:?}"
        );
    }
    assert!(
        upstream.seen().iter().all(|seen| !seen.complete),
        "a body of the wrong length was passed on"
    );
}

#[test]
fn pseudo_fields_have_no_place_in_trailers() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut frames = Frames::connect(gateway.addr());
    let mut fields = GET.to_vec();
    fields[0].1 = b"POST";
    fields.push(("trailer", b"x-sum"));
    frames.head(1, &fields, false);
    frames.data(1, b"hello");
    frames.head(1, &[("x-sum", b"1"), (":path", b"/other")], true);
    let reply = frames.reply(1);
    assert!(
        matches!(reply, Reply::Status(400 | 0) | Reply::Reset | Reply::Gone),
        "{reply:?}"
    );
    assert!(upstream.seen().iter().all(|seen| !seen.complete));
}

#[test]
fn opening_and_resetting_without_end_ends_the_connection() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut frames = Frames::connect(gateway.addr());
    let mut stream = 1;
    wait_until("the gateway has had enough", Duration::from_secs(10), || {
        for _ in 0..500 {
            frames.head(stream, &GET, true);
            frames.reset(stream);
            stream += 2;
        }
        frames.is_closed()
    });
    let mut other = gateway.client();
    assert_eq!(other.get("/").status, 200, "others do not notice");
    assert!(
        upstream.count() < 5_000,
        "{} of {} reached the upstream",
        upstream.count(),
        stream / 2
    );
}

#[test]
fn what_breaks_the_rules_of_http2_ends_its_stream_and_nothing_else() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let mut frames = Frames::connect(gateway.addr());
    let mut stream = 1;
    for fields in [
        with(&[("x", b" leading")]),
        with(&[("x", b"trailing\t")]),
        with(&[("host", b"other.example")]),
        vec![(":method", b"CONNECT" as &[u8])],
    ] {
        frames.head(stream, &fields, true);
        assert_eq!(frames.reply(stream), Reply::Reset, "{fields:?}");
        frames.head(stream + 2, &GET, true);
        assert_eq!(frames.reply(stream + 2), Reply::Status(200), "{fields:?}");
        stream += 4;
    }
    assert_eq!(upstream.count(), 4);
}
