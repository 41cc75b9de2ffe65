//! The end of a gateway: what is under way is finished, nothing new begins.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Ask, Config, Gate, Gateway, H2, Limits, Upstream, rule, standard, wait_until};

/// An upstream that answers under /held when the gate opens.
fn held(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::script(move |exchange| {
        if exchange.request.target == "/held" {
            exchange.body();
            gate.wait();
            exchange.reply(200, "", b"held\n");
        } else if exchange.request.target == "/half" {
            exchange.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            gate.wait();
            exchange.write("half");
        } else {
            standard(exchange);
        }
    })
}

fn limited(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 100, "1d", "")))
}

/// Whether new clients are turned away.
fn turned_away(gateway: &Gateway) -> bool {
    if TcpStream::connect_timeout(&gateway.addr(), Duration::from_secs(1)).is_err() {
        return true;
    }
    let mut client = gateway.client();
    client.send(Ask::get("/").bytes());
    client.try_answer("GET").is_err()
}

#[test]
fn requests_under_way_are_finished_and_their_connections_closed() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let mut gateway = limited(&upstream);
    let mut idle = gateway.client();
    assert_eq!(idle.get("/").status, 200);
    let mut waiting: Vec<_> = (0..20).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(Ask::get("/held").bytes());
    }
    let mut half = gateway.client();
    half.send(Ask::get("/half").bytes());
    upstream.await_count(22);
    assert_eq!(half.head().status, 200);
    gateway.term();
    assert!(
        idle.closes_within(Duration::from_secs(5)),
        "an idle connection was kept"
    );
    wait_until("new clients are turned away", Duration::from_secs(5), || {
        turned_away(&gateway)
    });
    assert!(gateway.runs(), "it ended with requests under way");
    gate.open();
    for client in &mut waiting {
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "held\n"));
        assert!(answer.must("connection").eq_ignore_ascii_case("close"));
        Limits::of(&answer);
        assert!(client.closes_within(Duration::from_secs(5)));
    }
    assert_eq!(half.exactly(8).unwrap(), b"halfhalf");
    assert_eq!(gateway.ended_within(Duration::from_secs(5)).code(), Some(0));
}

#[test]
fn http2_streams_under_way_are_finished() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let mut gateway = limited(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let streams: Vec<_> = (0..10)
        .map(|_| h2.open(&Ask::get("/held"), true).unwrap())
        .collect();
    upstream.await_count(10);
    gateway.term();
    wait_until("new clients are turned away", Duration::from_secs(5), || {
        turned_away(&gateway)
    });
    // The listener may close a moment before the goodbye goes out.
    wait_until("no new stream begins", Duration::from_secs(5), || {
        h2.try_ask(&Ask::get("/late")).is_err()
    });
    gate.open();
    for stream in streams {
        assert_eq!(h2.answer(stream).unwrap().text(), "held\n");
    }
    drop(h2);
    assert_eq!(gateway.ended_within(Duration::from_secs(5)).code(), Some(0));
}

#[test]
fn a_gateway_with_nothing_to_do_ends_at_once() {
    let upstream = Upstream::start();
    for signal in [Signal::TERM, Signal::INT] {
        let mut gateway = limited(&upstream);
        let mut idle = gateway.client();
        assert_eq!(idle.get("/").status, 200);
        let mut h2 = H2::connect(gateway.addr());
        assert_eq!(h2.get("/").status, 200);
        let silent = gateway.client();
        let start = Instant::now();
        gateway.signal(signal);
        assert_eq!(
            gateway.ended_within(Duration::from_secs(5)).code(),
            Some(0),
            "{signal:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        drop(silent);
    }
}

#[test]
fn a_drain_has_an_end() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&Config::new(&upstream).timeouts("drain = \"600ms\""));
    let mut hanging = gateway.client();
    hanging.send(Ask::get("/hang").bytes());
    upstream.await_count(1);
    let start = Instant::now();
    gateway.term();
    let status = gateway.ended_within(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0));
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(590) && took < Duration::from_secs(3),
        "{took:?}"
    );
}

#[test]
fn a_draining_gateway_is_healthy_and_not_ready() {
    let gate = Gate::default();
    let upstream = held(&gate);
    let mut gateway = limited(&upstream);
    assert_eq!(gateway.admin(&Ask::get("/readyz")).status, 200);
    let mut client = gateway.client();
    client.send(Ask::get("/held").bytes());
    upstream.await_count(1);
    gateway.term();
    wait_until("it is not ready", Duration::from_secs(5), || {
        gateway.admin(&Ask::get("/readyz")).status == 503
    });
    assert_eq!(gateway.admin(&Ask::get("/healthz")).status, 200);
    gate.open();
    assert_eq!(client.answer().status, 200);
    assert_eq!(gateway.ended_within(Duration::from_secs(5)).code(), Some(0));
}
