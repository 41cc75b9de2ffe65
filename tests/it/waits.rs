//! The instants that responses tell: when to come back, when all is reset, and that they are kept.

use std::time::{Duration, Instant};

use crate::support::{
    ALGORITHMS, Config, Gateway, Limits, Upstream, epoch_micros, epoch_seconds, rule, threads,
};

fn on(path: &str, lines: &str) -> String {
    format!("match = {{ path = \"{path}\" }}\n{lines}")
}

#[test]
fn retry_after_is_when_the_next_request_is_admitted_and_not_before() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream);
    for algorithm in ALGORITHMS {
        config = config.and(&rule(
            algorithm,
            algorithm,
            1,
            "2s",
            &on(&format!("/{algorithm}"), ""),
        ));
    }
    let gateway = Gateway::start(&config);
    threads(ALGORITHMS.to_vec(), |algorithm| {
        let mut client = gateway.client();
        let target = format!("/{algorithm}");
        assert_eq!(client.get(&target).status, 200, "{algorithm}");
        let refused = client.get(&target);
        let asked = Instant::now();
        assert_eq!(refused.status, 429, "{algorithm}");
        let wait = Limits::of(&refused).retry_after.unwrap();
        let most = if algorithm == "sliding-window" { 4 } else { 2 };
        assert!((1..=most).contains(&wait), "{algorithm}: Retry-After {wait}");
        // The exact instant lies in the last second before Retry-After.
        let early = Duration::from_millis((wait * 1_000).saturating_sub(1_200));
        std::thread::sleep(early.saturating_sub(asked.elapsed()));
        assert_eq!(
            client.get(&target).status,
            429,
            "{algorithm}: admitted after {early:?} of {wait} s"
        );
        std::thread::sleep(Duration::from_secs(wait).saturating_sub(asked.elapsed()));
        assert_eq!(
            client.get(&target).status,
            200,
            "{algorithm}: refused after {wait} s"
        );
    });
}

#[test]
fn retry_after_holds_at_every_phase_of_a_window() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream);
    for algorithm in ALGORITHMS {
        let lines = on(&format!("/{algorithm}/{{n}}"), "key = [\"path:n\"]");
        config = config.and(&rule(algorithm, algorithm, 3, "700ms", &lines));
    }
    let gateway = Gateway::start(&config);
    let callers: Vec<_> = (0..6)
        .flat_map(|n| ALGORITHMS.map(|algorithm| (algorithm, n)))
        .collect();
    threads(callers, |(algorithm, n)| {
        std::thread::sleep(Duration::from_millis(61 * n));
        let mut client = gateway.client();
        let target = format!("/{algorithm}/{n}");
        let refused = (0..50)
            .map(|_| client.get(&target))
            .find(|answer| answer.status == 429)
            .unwrap();
        let asked = Instant::now();
        let wait = Limits::of(&refused).retry_after.unwrap();
        assert!(
            (1..=2).contains(&wait),
            "{algorithm}: Retry-After {wait} with a window of 0.7 s"
        );
        std::thread::sleep(Duration::from_secs(wait).saturating_sub(asked.elapsed()));
        assert_eq!(client.get(&target).status, 200, "{algorithm} after {wait} s");
    });
}

#[test]
fn a_waiting_client_is_told_the_cost_of_its_own_request() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream);
    for cost in [1, 3, 6] {
        let lines = on(&format!("/{cost}"), &format!("cost = {cost}"));
        config = config.and(&rule(&format!("cost-{cost}"), "gcra", 6, "1m", &lines));
    }
    let gateway = Gateway::start(&config);
    for (cost, wait) in [(1, 10), (3, 30), (6, 60)] {
        let target = format!("/{cost}");
        for _ in 0..6 / cost {
            assert_eq!(gateway.get(&target).status, 200);
        }
        let limits = Limits::of(&gateway.get(&target));
        assert_eq!(limits.retry_after, Some(wait), "cost {cost}");
        assert_eq!(limits.remaining, 0);
    }
}

#[test]
fn the_log_waits_for_its_oldest_entry() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "sliding-log", 2, "3s", "")));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(client.get("/").status, 200);
    let limits = Limits::of(&client.get("/"));
    assert_eq!(limits.retry_after, Some(2), "the oldest entry leaves in 1.8 s");
    let full = limits.reset.saturating_sub(epoch_seconds());
    assert!(
        (2..=4).contains(&full),
        "the newest one leaves in 3 s: {limits:?}"
    );
}

#[test]
fn reset_does_not_wobble() {
    let upstream = Upstream::start();
    let mut config = Config::new(&upstream);
    for algorithm in ALGORITHMS {
        config = config.and(&rule(
            algorithm,
            algorithm,
            3,
            "2m",
            &on(&format!("/{algorithm}"), ""),
        ));
    }
    let gateway = Gateway::start(&config.and(&rule("open", "fixed-window", 1_000, "2m", &on("/open", ""))));
    let mut client = gateway.client();
    for algorithm in ALGORITHMS {
        for _ in 0..3 {
            client.get(&format!("/{algorithm}"));
        }
    }
    let first: Vec<_> = ALGORITHMS
        .map(|algorithm| Limits::of(&client.get(&format!("/{algorithm}"))))
        .into();
    let open = Limits::of(&client.get("/open"));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_300) {
        for (algorithm, first) in ALGORITHMS.iter().zip(&first) {
            let now = Limits::of(&client.get(&format!("/{algorithm}")));
            assert_eq!(now.reset, first.reset, "{algorithm}");
            assert!(now.retry_after <= first.retry_after, "{algorithm}");
            assert!(now.t(algorithm) <= first.t(algorithm), "{algorithm}");
        }
        assert_eq!(
            Limits::of(&client.get("/open")).reset,
            open.reset,
            "a fixed window ends when it ends, also with requests coming"
        );
        std::thread::sleep(Duration::from_millis(40));
    }
}

#[test]
fn the_profiles_and_retry_after_tell_one_story() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 2, "1m", "")));
    let before = epoch_seconds();
    let first = Limits::of(&gateway.get("/"));
    assert_eq!(first.policies, [("r".to_owned(), 2, Some(60))]);
    assert_eq!(first.members, [("r".to_owned(), 1, Some(60))]);
    assert!(
        (before + 60..=before + 62).contains(&first.reset),
        "{first:?} at {before}"
    );
    gateway.get("/");
    std::thread::sleep(Duration::from_millis(1_100));
    let refused = Limits::of(&gateway.get("/"));
    assert_eq!(refused.reset, first.reset);
    let wait = refused.retry_after.unwrap();
    assert_eq!(refused.t("r"), Some(wait));
    assert_eq!(wait, 59, "58.9 s are left");
    let left = refused.reset.checked_sub(epoch_micros().div_ceil(1_000_000));
    assert!(
        left.is_some_and(|left| left.abs_diff(wait) <= 1),
        "{left:?} against {wait}"
    );
}
