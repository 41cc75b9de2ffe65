//! Answers that come while a large upload is still under way, from the gateway and from upstreams of all tempers.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Answer, Ask, Client, Config, Gate, Gateway, H2, Upstream, noise, rule, standard};

const MIB: usize = 1024 * 1024;
const SIZE: usize = 50 * MIB;

/// Sends on while the answer is read, as clients do that do not wait.
fn upload(gateway: &Gateway, ask: &Ask) -> (Client, Answer) {
    let mut client = gateway.client();
    let mut sender = client.sender();
    let bytes = ask.bytes();
    let sending = thread::spawn(move || sender.send(bytes));
    let answer = client.answer();
    // The rest is thrown away, or the connection is closed.
    let _sent = sending.join().unwrap();
    (client, answer)
}

fn early(gate: &Gate) -> Upstream {
    let held = gate.clone();
    Upstream::script(move |exchange| {
        let target = exchange.request.target.clone();
        if !target.starts_with("/413") {
            return standard(exchange);
        }
        exchange.part(1024);
        exchange.reply(413, "", b"too much");
        match target.as_str() {
            "/413/reads-on" => {
                exchange.closed_within(Duration::from_secs(20));
            }
            "/413/stops" => {
                held.wait();
                exchange.close();
            }
            _ => exchange.close(),
        }
    })
}

#[test]
fn an_early_413_reaches_every_client() {
    let gate = Gate::default();
    let upstream = early(&gate);
    let gateway = Gateway::start(&Config::new(&upstream));
    for target in ["/413/closes", "/413/reads-on", "/413/stops"] {
        for turn in 0..3 {
            let length = Ask::post(target, noise(SIZE, 1));
            for ask in [length.clone(), length.clone().chunked()] {
                let start = Instant::now();
                let (mut client, answer) = upload(&gateway, &ask);
                assert_eq!(
                    (answer.status, answer.text().as_str()),
                    (413, "too much"),
                    "{target}, turn {turn}, chunked {}",
                    ask.chunked
                );
                assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
                client.send(Ask::get("/next").bytes());
                if let Ok(answer) = client.try_answer("GET") {
                    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /next\n"));
                }
            }
            let mut h2 = H2::connect(gateway.addr());
            for ask in [length.clone(), length.chunked()] {
                let answer = h2.ask(&ask);
                assert_eq!(
                    (answer.status, answer.text().as_str()),
                    (413, "too much"),
                    "{target}, turn {turn}, over HTTP/2"
                );
                assert_eq!(h2.get("/next").text(), "GET /next\n");
            }
        }
    }
    gate.open();
    assert_eq!(gateway.get("/").text(), "GET /\n");
}

#[test]
fn a_refusal_reaches_every_client() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1, "1d", "")));
    assert_eq!(gateway.get("/").status, 200);
    let length = Ask::post("/", noise(SIZE, 1));
    for _ in 0..3 {
        for ask in [length.clone(), length.clone().chunked()] {
            let (_client, answer) = upload(&gateway, &ask);
            assert_eq!(answer.status, 429);
            assert_eq!(answer.problem()["violated-policies"][0], "r");
            let answer = H2::connect(gateway.addr()).ask(&ask);
            assert_eq!(answer.status, 429);
            assert_eq!(answer.problem()["violated-policies"][0], "r");
        }
    }
    assert_eq!(upstream.count(), 1);
}
