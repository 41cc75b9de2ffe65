//! A server whose clock is set while it counts.

use crate::support::{ALGORITHMS, Config, Gateway, Redis, Upstream, epoch_seconds, on_redis, rule};

/// How long the state of a rule may be of meaning: its window, and another after a step back.
fn longest(name: &str) -> u64 {
    match name.contains("day") {
        true => 2 * 86_400,
        false => 2 * 600,
    }
}

/// One request at the path of a rule, decided by the server, whose clock is so far off; what is left after it.
#[track_caller]
fn left(gateway: &Gateway, name: &str, off: i64) -> u64 {
    let answer = gateway.get(&format!("/{name}"));
    assert_eq!(answer.status, 200, "{name}");
    assert_eq!(answer.must("x-ratelimit-resource"), name);
    let number = |field: &str| answer.must(field).parse::<u64>().unwrap();
    let now = epoch_seconds().checked_add_signed(off).unwrap();
    let reset = number("x-ratelimit-reset");
    assert!(
        (now..=now + longest(name) + 1).contains(&reset),
        "{name}: {reset} at {now}"
    );
    number("x-ratelimit-remaining")
}

/// Nothing stays for longer than it is of meaning.
#[track_caller]
fn assert_mortal(redis: &Redis) {
    for name in redis.ask::<Vec<String>>(&["KEYS", "*"]) {
        let lives: i64 = redis.ask(&["PTTL", &name]);
        let most = i64::try_from(longest(&name)).unwrap() * 1_000;
        assert!((1..=most).contains(&lives), "{name} lives {lives} ms");
    }
}

#[test]
fn an_hour_forward_or_back_is_no_outage_and_locks_nobody_out() {
    let (upstream, redis) = (Upstream::start(), Redis::on_a_clock());
    let on = |name: &str, algorithm: &str, window: &str| {
        let lines = format!("match = {{ path = \"/{name}\" }}\non_outage = \"deny\"");
        rule(name, algorithm, 20, window, &lines)
    };
    let rules: String = ALGORITHMS.iter().map(|name| on(name, name, "10m")).collect();
    let config = Config::new(&upstream)
        .and(&on_redis(&[&redis.url()], "deadline = \"2s\""))
        .and(&(rules + &on("day", "fixed-window", "1d")));
    let gateway = Gateway::start(&config);
    let mut day = 20;
    let mut each = |off: i64, expected: [u64; 3]| {
        redis.set_clock(off);
        for name in ALGORITHMS {
            let told = expected.map(|_| left(&gateway, name, off));
            assert_eq!(told, expected, "{name} at {off}");
        }
        // An hour changes nothing that counts for a day.
        day -= 1;
        assert_eq!(left(&gateway, "day", off), day, "at {off}");
        assert_mortal(&redis);
    };
    each(0, [19, 18, 17]);
    each(3_600, [19, 18, 17]);
    // What was charged by the clock that was ahead stays charged, for a window.
    each(0, [16, 15, 14]);
    each(-3_600, [13, 12, 11]);
    each(0, [19, 18, 17]);
    gateway.await_metric("tollgate_store_clock_step_total", 4.0);
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}
