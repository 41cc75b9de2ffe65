//! `gcra` with a queue: requests are held until their slot, and whoever leaves gives it back as far as that can be done.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    Ask, Client, Config, Gateway, H2, Limits, Upstream, rule, standard, threads, wait_until,
};

/// So many a second, one at once.
fn paced(limit: u64, queue: &str) -> String {
    let lines = format!("burst = 1\nqueue = \"{queue}\"");
    rule("pace", "gcra", limit, "1s", &lines)
}

/// An upstream that notes when each request came.
fn watched() -> (Upstream, Arc<Mutex<Vec<Instant>>>) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let upstream = Upstream::script(move |exchange| {
        noted.lock().unwrap().push(Instant::now());
        standard(exchange);
    });
    (upstream, times)
}

/// A request that waits for its slot: it is sent, and its answer is not there yet.
fn queue_up(gateway: &Gateway, ask: &Ask) -> Client {
    let before = gateway.metric(ADMITTED);
    let mut client = gateway.client();
    client.send(ask.bytes());
    gateway.await_metric(ADMITTED, before + 1.0);
    client
}

const ADMITTED: &str = "tollgate_decisions_total{rule=\"pace\",verdict=\"admit\"}";
const UNSENT: &str = "tollgate_refunds_total{outcome=\"unsent\",rule=\"pace\"}";

#[test]
fn requests_leave_one_by_one() {
    let (upstream, times) = watched();
    let gateway = Gateway::start(&Config::new(&upstream).server("workers = 2").and(&paced(10, "1s")));
    let start = Instant::now();
    let answers = threads((0..5).collect(), |_: i32| gateway.get("/"));
    let took = start.elapsed();
    for answer in &answers {
        assert_eq!(answer.status, 200);
        let limits = Limits::of(answer);
        assert_eq!((limits.limit, limits.retry_after), (1, None));
        assert!(limits.reset <= crate::support::epoch_seconds() + 2, "{limits:?}");
    }
    assert!(took >= Duration::from_millis(400), "5 at 10 a second in {took:?}");
    let times = times.lock().unwrap();
    for (place, pair) in times.windows(2).enumerate() {
        let gap = pair[1] - pair[0];
        assert!(
            (Duration::from_millis(60)..Duration::from_millis(300)).contains(&gap),
            "gap {place} is {gap:?}"
        );
    }
    assert!(times[4] - start >= Duration::from_millis(400));
}

#[test]
fn what_would_wait_too_long_is_refused_until_it_would_not() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "pace",
        "gcra",
        1,
        "2s",
        "burst = 1\nqueue = \"500ms\"",
    )));
    let start = Instant::now();
    assert_eq!(gateway.get("/").status, 200);
    let refused = gateway.get("/");
    assert_eq!(refused.status, 429);
    let limits = Limits::of(&refused);
    assert_eq!(
        (limits.retry_after, limits.t("pace")),
        (Some(2), Some(2)),
        "1.5 s, in whole seconds"
    );
    let call = Ask::post("/", "").field("Content-Type", "application/grpc");
    let refused = gateway.ask(&call);
    let wait: u64 = refused.must("grpc-retry-pushback-ms").parse().unwrap();
    assert!((1_000..=1_500).contains(&wait), "{wait} ms");
    std::thread::sleep(Duration::from_millis(wait));
    assert_eq!(gateway.get("/").status, 200);
    let took = start.elapsed();
    assert!(
        (Duration::from_millis(2_000)..Duration::from_millis(2_600)).contains(&took),
        "held until its slot: {took:?}"
    );
    assert_eq!(upstream.count(), 2);
}

#[test]
fn the_queue_bounds_itself() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&paced(5, "1s")));
    let answers = threads((0..12).collect(), |_: i32| gateway.get("/"));
    let admitted = answers.iter().filter(|answer| answer.status == 200).count();
    // One at once, five within the queue, and another for each slot that passes while all arrive.
    assert!((6..=8).contains(&admitted), "{admitted}");
    assert_eq!(upstream.count(), admitted);
}

#[test]
fn who_leaves_last_gives_its_slot_to_the_next() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&paced(1, "5s")).and(&rule(
        "other",
        "fixed-window",
        10,
        "1d",
        "",
    )));
    let start = Instant::now();
    assert_eq!(gateway.get("/").status, 200);
    queue_up(&gateway, &Ask::get("/left")).reset();
    gateway.await_metric(UNSENT, 1.0);
    let mut h2 = H2::connect(gateway.addr());
    let stream = h2.open(&Ask::get("/left"), true).unwrap();
    gateway.await_metric(ADMITTED, 3.0);
    h2.cancel(stream);
    gateway.await_metric(UNSENT, 2.0);
    let answer = gateway.get("/next");
    let took = start.elapsed();
    assert_eq!(answer.status, 200);
    assert!(
        (Duration::from_millis(990)..Duration::from_millis(1_900)).contains(&took),
        "the slot of those who left: {took:?}"
    );
    assert_eq!(Limits::of(&answer).r("other"), 8, "nor did they pay elsewhere");
    assert_eq!(upstream.count_of("/left"), 0);
}

#[test]
fn a_slot_with_others_behind_it_is_lost_and_not_shared() {
    let (upstream, times) = watched();
    let gateway = Gateway::start(&Config::new(&upstream).and(&paced(2, "5s")));
    assert_eq!(gateway.get("/").status, 200);
    let leaving = queue_up(&gateway, &Ask::get("/left"));
    let mut behind = queue_up(&gateway, &Ask::get("/behind"));
    leaving.reset();
    gateway.await_metric(UNSENT, 1.0);
    let mut last = queue_up(&gateway, &Ask::get("/last"));
    assert_eq!((behind.answer().status, last.answer().status), (200, 200));
    let times = times.lock().unwrap();
    let after = |index: usize| times[index] - times[0];
    assert_eq!(times.len(), 3);
    assert!(after(1) >= Duration::from_millis(980), "{:?}", after(1));
    assert!(after(2) >= Duration::from_millis(1_480), "{:?}", after(2));
}

#[test]
fn a_wait_is_none_of_the_timeouts_business() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .timeouts("header = \"200ms\"\nbody = \"200ms\"\nidle = \"200ms\"\nresponse = \"200ms\"")
            .and(&paced(1, "5s")),
    );
    assert_eq!(gateway.get("/").status, 200);
    let body = vec![b'x'; 300_000];
    let asks = vec![
        Ask::post("/echo", body.clone()),
        Ask::post("/echo", body).chunked(),
    ];
    let answers = threads(asks, |ask| gateway.ask(&ask));
    for answer in answers {
        assert_eq!((answer.status, answer.body.len()), (200, 300_000));
    }
    let mut h2 = H2::connect(gateway.addr());
    let answer = h2.ask(&Ask::post("/echo", vec![b'x'; 300_000]));
    assert_eq!((answer.status, answer.body.len()), (200, 300_000));
}

#[test]
fn who_waits_is_answered_after_a_reload_and_before_the_end() {
    let upstream = Upstream::start();
    let config = || Config::new(&upstream);
    let mut gateway = Gateway::start(&config().and(&paced(2, "5s")));
    assert_eq!(gateway.get("/").status, 200);
    let mut waiting = queue_up(&gateway, &Ask::get("/reloaded"));
    gateway.reload(&config().and(&paced(2, "4s")));
    let mut last = queue_up(&gateway, &Ask::get("/last"));
    gateway.term();
    assert_eq!((waiting.answer().status, last.answer().status), (200, 200));
    assert!(gateway.ended_within(Duration::from_secs(5)).success());
    assert_eq!(upstream.count(), 3);
}

#[test]
fn the_longest_wait_counts() {
    let upstream = Upstream::start();
    let slow = paced(2, "5s").replace("\"pace\"", "\"slow\"");
    let dry = format!("{}dry_run = true\n", paced(1, "20s")).replace("\"pace\"", "\"dry\"");
    let gateway = Gateway::start(&Config::new(&upstream).and(&paced(10, "5s")).and(&slow).and(&dry));
    let start = Instant::now();
    let answers = threads((0..3).collect(), |_: i32| gateway.get("/").status);
    assert_eq!(answers, [200, 200, 200]);
    let took = start.elapsed();
    assert!(
        (Duration::from_millis(1_000)..Duration::from_millis(1_800)).contains(&took),
        "{took:?}"
    );
    wait_until("nothing is in flight", Duration::from_secs(5), || {
        gateway.metric("tollgate_requests_in_flight") < 0.5
    });
}
