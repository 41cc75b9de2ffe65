//! How quota comes back: windows that end, entries that age, buckets that refill.

use std::time::{Duration, Instant};

use crate::support::{ALGORITHMS, Answer, Config, Gateway, Limits, Upstream, rule};

fn admitted(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// A rule for each algorithm, on a path of its own.
fn a_rule_each(limit: u64, window: &str, lines: &str) -> String {
    ALGORITHMS
        .iter()
        .map(|algorithm| {
            let lines = format!("match = {{ path = \"/{algorithm}\" }}\n{lines}");
            rule(algorithm, algorithm, limit, window, &lines)
        })
        .collect()
}

#[test]
fn hammering_does_not_lengthen_the_wait() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(4, "1s", "")));
    let counts = crate::support::threads(ALGORITHMS.to_vec(), |algorithm| {
        let mut client = gateway.client();
        let target = format!("/{algorithm}");
        let mut count = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(3_200) {
            count += usize::from(client.get(&target).status == 200);
            std::thread::sleep(Duration::from_millis(30));
        }
        (algorithm, count)
    });
    for (algorithm, count) in counts {
        // Windows of a second: 3 full ones at least, and what the last one and a burst may add.
        assert!(
            (11..=17).contains(&count),
            "{algorithm} admitted {count} in 3.2 s"
        );
    }
}

#[test]
fn a_window_starts_with_its_first_request_and_is_not_drawn_out_by_later_ones() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 10, "1s", "")));
    let mut client = gateway.client();
    for turn in 0..20 {
        assert_eq!(client.get("/").status, 200, "request {turn}");
        std::thread::sleep(Duration::from_millis(130));
    }
}

#[test]
fn a_rested_limiter_has_its_full_quota_and_not_more() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&a_rule_each(5, "350ms", "")));
    for round in 0..3 {
        for algorithm in ALGORITHMS {
            let mut client = gateway.client();
            let answers: Vec<_> = (0..5).map(|_| client.get(&format!("/{algorithm}"))).collect();
            assert_eq!(admitted(&answers), 5, "{algorithm} in round {round}");
            assert_eq!(
                Limits::of(&answers[0]).remaining,
                4,
                "{algorithm} in round {round}"
            );
        }
        // Two windows: the older one still weighs in the sliding window during the newer one.
        std::thread::sleep(Duration::from_millis(710));
    }
}

#[test]
fn an_entry_leaves_the_log_when_it_is_a_window_old() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "sliding-log", 3, "1s", "")));
    let mut client = gateway.client();
    let start = Instant::now();
    let mut at = |millis: u64| {
        std::thread::sleep(Duration::from_millis(millis).saturating_sub(start.elapsed()));
        client.get("/").status
    };
    assert_eq!([at(0), at(200), at(400)], [200, 200, 200]);
    assert_eq!(at(900), 429);
    assert_eq!([at(1_050), at(1_250), at(1_450)], [200, 200, 200]);
}

#[test]
fn the_sliding_window_weighs_the_window_before() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "sliding-window", 20, "2s", "")));
    let mut client = gateway.client();
    let window = 2_000_000;
    let phase = || crate::support::epoch_micros() % window;
    let sleep_to = |wanted: u64| {
        std::thread::sleep(Duration::from_micros((wanted + window - phase()) % window));
    };
    sleep_to(window * 8 / 10);
    for _ in 0..20 {
        assert_eq!(client.get("/").status, 200);
    }
    sleep_to(window / 20);
    let early: Vec<_> = (0..20).map(|_| client.get("/")).collect();
    let count = admitted(&early);
    assert!(
        (1..=5).contains(&count),
        "{count} of 20 admitted with the window before nearly in full"
    );
    sleep_to(window / 2);
    let answer = client.get("/");
    assert_eq!(answer.status, 200);
    let left = Limits::of(&answer).remaining as usize;
    let start = Instant::now();
    let now: Vec<_> = (0..20).map(|_| client.get("/")).collect();
    let more = admitted(&now);
    // The older window loses a unit each 100 ms.
    let lost = start.elapsed().as_millis() as usize / 100 + 2;
    assert!(
        (left..=left + lost).contains(&more),
        "{left} were announced, {more} were admitted"
    );
    assert!(
        (6..=10 + lost).contains(&(count + 1 + more)),
        "{count} + 1 + {more} of 20 at half weight"
    );
}

#[test]
fn a_bucket_refills_drop_by_drop() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&Config::new(&upstream).and(&rule("r", "token-bucket", 10, "1s", "burst = 3")));
    let mut client = gateway.client();
    let drained: Vec<_> = (0..3).map(|_| client.get("/")).collect();
    assert_eq!(admitted(&drained), 3);
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < Duration::from_secs(2) {
        let answer = client.get("/");
        count += usize::from(answer.status == 200);
        assert!(Limits::of(&answer).remaining <= 2, "it jumped");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        (18..=21).contains(&count),
        "{count} in two seconds at 10 a second"
    );
}

#[test]
fn a_drained_bucket_does_not_come_back_full() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&Config::new(&upstream).and(&rule("r", "token-bucket", 4, "1m", "burst = 3")));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status, 200);
    }
    std::thread::sleep(Duration::from_millis(1_200));
    let answer = gateway.get("/");
    assert_eq!(answer.status, 429);
    let wait = Limits::of(&answer).retry_after;
    assert!(wait.is_some_and(|wait| (13..=15).contains(&wait)), "{wait:?}");
}

#[test]
fn gcra_spaces_requests_evenly() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "gcra", 4, "1s", "burst = 1")));
    let mut client = gateway.client();
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < Duration::from_millis(2_100) {
        let asked = start.elapsed();
        let answer = client.get("/");
        match answer.status {
            200 => times.push((asked, start.elapsed())),
            status => {
                assert_eq!(status, 429);
                assert_eq!(Limits::of(&answer).retry_after, Some(1));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((7..=9).contains(&times.len()), "{times:?}");
    for pair in times.windows(2) {
        let gap = pair[1].1 - pair[0].0;
        assert!(gap >= Duration::from_millis(249), "two within {gap:?}");
    }
}

#[test]
fn sub_windows_counted_in_full_never_admit_early_and_hardly_late() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "sliding-window",
        10,
        "2s",
        "precision = 20\nblend = false",
    )));
    let mut client = gateway.client();
    let start = Instant::now();
    let first: Vec<_> = (0..11).map(|_| client.get("/")).collect();
    assert_eq!(admitted(&first), 10);
    let burst = start.elapsed();
    std::thread::sleep(Duration::from_millis(1_850).saturating_sub(start.elapsed()));
    assert_eq!(client.get("/").status, 429, "within a window of the first ten");
    // A window and a sub-window after the last of them.
    std::thread::sleep((Duration::from_millis(2_110) + burst).saturating_sub(start.elapsed()));
    let second: Vec<_> = (0..10).map(|_| client.get("/")).collect();
    assert_eq!(admitted(&second), 10);
}
