//! Other protocols: bytes pass both ways after a 101, and not before.

use std::time::{Duration, Instant};

use crate::support::{
    Ask, Client, Config, Exchange, Gateway, Limits, Upstream, noise, rule, standard, wait_until,
};

const MIB: usize = 1024 * 1024;
const GRANTED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")))
}

/// An upstream that grants `echo` under /echo, says the same backwards, four bytes at a time, and closes at the end.
fn echoing() -> Upstream {
    Upstream::script(|exchange| {
        if exchange.request.target != "/echo" {
            return standard(exchange);
        }
        exchange.write(GRANTED);
        echo(exchange);
    })
}

fn echo(exchange: &mut Exchange<'_>) {
    exchange.close();
    let mut said = 0;
    loop {
        exchange.part(4);
        let heard = exchange.request.body.len();
        if heard == said {
            return;
        }
        let mut answer = exchange.request.body[said..].to_vec();
        answer.reverse();
        exchange.write(answer);
        said = heard;
    }
}

fn ask() -> Ask {
    Ask::get("/echo")
        .field("Connection", "Upgrade")
        .field("Upgrade", "echo")
}

#[track_caller]
fn open(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    client.send(ask().bytes());
    let head = client.head();
    assert_eq!(head.status, 101, "{:?}", String::from_utf8_lossy(&head.head));
    client
}

#[track_caller]
fn works(client: &mut Client) {
    client.send("abcd");
    assert_eq!(client.exactly(4).unwrap(), b"dcba");
}

#[test]
fn a_switch_is_charged_once_and_its_fields_pass() {
    let upstream = echoing();
    let gateway = limited(&upstream);
    for (turn, connection) in ["Upgrade", "keep-alive, Upgrade", "upgrade,Keep-Alive", "UPGRADE"]
        .into_iter()
        .enumerate()
    {
        let mut client = gateway.client();
        let ask = Ask::get("/echo")
            .field("Connection", connection)
            .field("Upgrade", "other/2, Echo");
        client.send(ask.bytes());
        let head = client.head();
        assert_eq!(head.status, 101, "Connection: {connection}");
        assert_eq!(head.must("upgrade"), "echo");
        assert_eq!(head.must("connection").to_ascii_lowercase(), "upgrade");
        assert_eq!(head.field("content-length"), None);
        assert_eq!(head.field("transfer-encoding"), None);
        assert_eq!(Limits::of(&head).remaining, 999 - turn as u64);
        let seen = upstream.last();
        assert_eq!(seen.field("upgrade").as_deref(), Some("other/2, Echo"));
        assert_eq!(seen.field("connection").as_deref(), Some("upgrade"));
        assert_eq!(seen.framing(), "none");
        works(&mut client);
    }
    let mut client = gateway.client();
    client.send(
        Ask::get("/echo")
            .field("Connection", "keep-alive")
            .field("Connection", "upgrade")
            .field("Upgrade", "echo")
            .bytes(),
    );
    assert_eq!(client.head().status, 101, "two lines of Connection");
}

#[test]
fn a_megabyte_passes_each_way_at_once() {
    let upstream = Upstream::script(|exchange| {
        exchange.write(GRANTED);
        exchange.write(noise(MIB, 1));
        exchange.part(MIB);
        exchange.write("end");
        exchange.close();
    });
    let gateway = limited(&upstream);
    let mut client = open(&gateway);
    assert!(client.send(noise(MIB, 2)));
    assert!(client.exactly(MIB).unwrap() == noise(MIB, 1));
    assert_eq!(client.exactly(3).unwrap(), b"end");
    assert!(client.closes_within(Duration::from_secs(5)));
    assert!(upstream.last().body == noise(MIB, 2));
}

#[test]
fn what_is_no_wish_to_switch_is_an_ordinary_request() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream);
    let named = |ask: Ask| ask.field("Connection", "upgrade").field("Upgrade", "echo");
    for ask in [
        Ask::get("/").field("Upgrade", "echo"),
        Ask::get("/").field("Connection", "upgrade"),
        Ask::get("/")
            .field("Connection", "keep-alive, upgraded")
            .field("Upgrade", "echo"),
        named(Ask::post("/", "body")),
        named(Ask::post("/", "body").chunked()),
        Ask::get("/")
            .field("Connection", "Upgrade, HTTP2-Settings")
            .field("Upgrade", "h2c")
            .field("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"),
        Ask::get("/")
            .field("Connection", "Upgrade")
            .field("Upgrade", "TLS/1.2, HTTP/2.0"),
    ] {
        let mut client = gateway.client();
        assert_eq!(client.ask(&ask).status, 200, "{ask:?}");
        let seen = upstream.last();
        assert_eq!(seen.field("upgrade"), None, "{ask:?}");
        assert_eq!(seen.field("http2-settings"), None, "{ask:?}");
        assert_eq!(client.get("/next").text(), "GET /next\n", "{ask:?}");
    }
    let mut old = gateway.client();
    old.send("GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(old.answer().status, 200);
    assert_eq!(upstream.last().field("upgrade"), None, "HTTP/1.0");
}

#[test]
fn a_101_that_was_not_asked_for_is_a_502() {
    for granted in [
        GRANTED,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
    ] {
        let upstream = Upstream::script(move |exchange| {
            exchange.write(granted);
            exchange.closed_within(Duration::from_secs(5));
        });
        let gateway = limited(&upstream);
        let plain = gateway.get("/");
        assert_eq!(plain.status, 502);
        plain.problem();
        let other = gateway.ask(
            &Ask::get("/")
                .field("Connection", "upgrade")
                .field("Upgrade", if granted == GRANTED { "third" } else { "echo" }),
        );
        assert_eq!(other.status, 502, "{granted:?}");
        assert_eq!(Limits::of(&other).remaining, 1_000, "both were given back");
    }
}

#[test]
fn early_bytes_wait_for_the_101() {
    let upstream = Upstream::script(|exchange| {
        std::thread::sleep(Duration::from_millis(200));
        exchange.write(GRANTED);
        echo(exchange);
    });
    let gateway = limited(&upstream);
    let mut client = gateway.client();
    client.send([&ask().bytes()[..], b"abcd"].concat());
    assert_eq!(client.head().status, 101);
    assert_eq!(client.exactly(4).unwrap(), b"dcba");
    assert_eq!(
        upstream
            .last()
            .head
            .windows(4)
            .filter(|part| part == b"abcd")
            .count(),
        0
    );
}

#[test]
fn early_bytes_of_a_refused_switch_are_a_request_of_their_own_or_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "match = { path = \"/limited\" }",
    )));
    assert_eq!(gateway.get("/limited").status, 200);
    let refused = Ask::get("/")
        .field("Connection", "upgrade")
        .field("Upgrade", "echo");
    let mut client = gateway.client();
    client.send([refused.bytes(), Ask::get("/limited").bytes()].concat());
    assert_eq!(client.answer().text(), "GET /\n");
    assert_eq!(client.answer().status, 429);
    let mut client = gateway.client();
    client.send([&refused.bytes()[..], b"\x81\x85abcdhello\r\n\r\n"].concat());
    assert_eq!(client.answer().text(), "GET /\n");
    assert_eq!(client.answer().status, 400);
    assert!(client.closes_within(Duration::from_secs(5)));
    assert_eq!(upstream.count_of("/limited"), 1);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn an_upload_behind_a_refused_switch_gets_its_whole_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).limits("body_bytes = 1048576"));
    let mut client = gateway.client();
    let refused = Ask::get("/")
        .field("Connection", "upgrade")
        .field("Upgrade", "echo");
    assert_eq!(client.ask(&refused).status, 200);
    client.send(Ask::post("/", noise(8 * MIB, 1)).bytes());
    let answer = client.answer();
    assert_eq!(answer.status, 413);
    answer.problem();
}

#[test]
fn a_tunnel_ends_when_either_side_closes() {
    let upstream = echoing();
    let gateway = limited(&upstream);
    gateway.get("/");
    let files = gateway.open_files();
    for _ in 0..20 {
        let mut client = open(&gateway);
        works(&mut client);
        client.finish();
        assert!(
            client.closes_within(Duration::from_secs(5)),
            "a half-close did not pass"
        );
        let mut client = open(&gateway);
        works(&mut client);
        client.reset();
        drop(open(&gateway));
    }
    wait_until("tunnels end upstream", Duration::from_secs(5), || {
        upstream.open_connections() <= 1
    });
    wait_until("files are closed", Duration::from_secs(5), || {
        gateway.open_files() <= files + 2
    });
}

#[test]
fn a_client_that_has_closed_its_half_hears_the_rest() {
    let upstream = Upstream::script(|exchange| {
        exchange.write(GRANTED);
        exchange.part(usize::MAX);
        std::thread::sleep(Duration::from_millis(1_500));
        exchange.write("the rest");
        exchange.close();
    });
    let gateway = limited(&upstream);
    let mut client = open(&gateway);
    client.send("said");
    client.finish();
    assert_eq!(client.exactly(8).unwrap(), b"the rest");
    assert!(client.closes_within(Duration::from_secs(5)));
}

#[test]
fn an_idle_tunnel_is_kept() {
    let upstream = echoing();
    let config = Config::new(&upstream)
        .timeouts("idle = \"300ms\"\nheader = \"300ms\"\nbody = \"300ms\"\nresponse = \"300ms\"");
    let gateway = Gateway::start(&config);
    let mut client = open(&gateway);
    works(&mut client);
    std::thread::sleep(Duration::from_millis(2_000));
    works(&mut client);
}

#[test]
fn a_tunnel_is_a_request_in_flight() {
    let upstream = echoing();
    let gateway = limited_to_one(&upstream);
    let mut client = open(&gateway);
    works(&mut client);
    assert_eq!(gateway.get("/").status, 503);
    drop(client);
    wait_until("there is room again", Duration::from_secs(5), || {
        gateway.get("/").status == 200
    });
}

fn limited_to_one(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).upstream(&format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\nconnections = 1\n[upstream.api.timeouts]\nconnect = \"200ms\"\n",
        upstream.addr()
    )))
}

#[test]
fn tunnels_last_as_long_as_a_drain() {
    let upstream = echoing();
    let mut gateway = Gateway::start(&Config::new(&upstream).timeouts("drain = \"800ms\""));
    let mut client = open(&gateway);
    works(&mut client);
    let start = Instant::now();
    gateway.term();
    std::thread::sleep(Duration::from_millis(300));
    works(&mut client);
    assert!(client.closes_within(Duration::from_secs(5)));
    assert_eq!(gateway.ended_within(Duration::from_secs(5)).code(), Some(0));
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(790) && took < Duration::from_secs(3),
        "{took:?}"
    );
}

#[test]
fn a_drain_does_not_wait_for_a_tunnel_that_has_ended() {
    let upstream = echoing();
    let mut gateway = limited(&upstream);
    let mut client = open(&gateway);
    works(&mut client);
    gateway.term();
    client.finish();
    assert!(client.closes_within(Duration::from_secs(5)));
    assert_eq!(gateway.ended_within(Duration::from_secs(5)).code(), Some(0));
}
