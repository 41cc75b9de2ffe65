//! Clients that take their time, many at once, as slowhttptest makes them: everybody else is served as ever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Ask, Config, Gateway, Upstream, standard, threads, tool};

#[test]
fn slow_clients_hold_nobody_up() {
    let upstream = Upstream::script(|exchange| match exchange.request.target.as_str() {
        "/large" => {
            exchange.body();
            exchange.reply(200, "", &[b'x'; 1 << 20]);
        }
        _ => standard(exchange),
    });
    let gateway = Gateway::start(&Config::new(&upstream));
    let url = gateway.url("/large");
    // Slow heads, slow bodies, slow readers.
    let attacks = ["-H", "-B", "-X"];
    let running = AtomicUsize::new(attacks.len());
    let good = || {
        let mut client = gateway.client();
        let (mut waits, mut open) = (Vec::new(), 0);
        loop {
            let mut fresh = gateway.client();
            for client in [&mut client, &mut fresh] {
                let start = Instant::now();
                assert_eq!(client.ask(&Ask::get("/")).status, 200);
                waits.push(start.elapsed());
            }
            open = open.max(gateway.open_files());
            if running.load(Ordering::SeqCst) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(open > 200, "only {open} files and sockets were ever open");
        // On a busy machine, a few may be late for other reasons.
        waits.sort();
        let most = waits[waits.len() * 19 / 20];
        assert!(
            most < Duration::from_secs(1),
            "one in twenty of {} waited {most:?}",
            waits.len()
        );
    };
    let attack = |kind: &str| {
        // It is content with what time others leave.
        let line = format!("-n 19 slowhttptest {kind} -c 100 -r 50 -i 1 -l 8 -p 5 -u {url}");
        let args: Vec<&str> = line.split(' ').collect();
        let ran = tool("nice", "coreutils", &args, b"");
        running.fetch_sub(1, Ordering::SeqCst);
        let said = without_colours(&format!("{}{}", ran.stdout, ran.stderr));
        let last = said.rsplit("service available:").next().unwrap_or_default();
        assert!(
            last.trim_start().starts_with("YES"),
            "slowhttptest {kind} (`apt-get install slowhttptest`): {said}"
        );
    };
    let who = attacks.map(Some).into_iter().chain([None]).collect();
    threads(who, |kind: Option<&str>| kind.map_or_else(good, attack));
}

/// The kernel takes bytes for a client, and says so, in larger steps than a slow client reads.
#[test]
fn a_slow_and_steady_reader_gets_the_whole_answer() {
    const LENGTH: usize = 12 << 20;
    let upstream = Upstream::script(|exchange| exchange.reply(200, "", &vec![b'x'; LENGTH]));
    let gateway = Gateway::start(&Config::new(&upstream).timeouts("idle = \"2s\""));
    let read = |(length, per_second): (usize, usize)| {
        let mut client = gateway.client();
        client.send(Ask::get("/").bytes());
        assert_eq!(client.head().status, 200);
        let start = Instant::now();
        for done in (0..length).step_by(16 << 10) {
            let due = Duration::from_secs_f64(done as f64 / per_second as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            if let Err(why) = client.exactly(16 << 10) {
                panic!("{per_second} bytes a second, cut after {done}: {why}");
            }
        }
    };
    // The slower one reads a part, which takes as long.
    threads(vec![(LENGTH, 1 << 20), (LENGTH / 3, 400_000)], read);
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest));
    rest.fold(first, |text, part| text + part)
}
