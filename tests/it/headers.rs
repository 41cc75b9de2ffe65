//! The limit fields: which responses have them, and that their numbers are true.

use serde_json::json;

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, assert_no_limits, curl, rule, unused_port};

fn on(path: &str, lines: &str) -> String {
    format!("match = {{ path = \"{path}\" }}\n{lines}")
}

#[test]
fn the_policy_says_what_the_bucket_holds_and_how_long_it_takes_to_fill() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "bucket",
                "token-bucket",
                60,
                "1m",
                &on("/bucket", "burst = 10"),
            ))
            .and(&rule("spaced", "gcra", 4, "1s", &on("/spaced", "burst = 1")))
            .and(&rule("short", "fixed-window", 5, "1500ms", &on("/short", ""))),
    );
    let of = |target: &str| Limits::of(&gateway.get(target));
    let bucket = of("/bucket");
    assert_eq!(bucket.limit, 10, "a bucket's limit is its burst");
    assert_eq!(bucket.policies, [("bucket".to_owned(), 10, Some(10))]);
    assert_eq!(bucket.members, [("bucket".to_owned(), 9, Some(1))]);
    assert_eq!(
        of("/spaced").policies,
        [("spaced".to_owned(), 1, None)],
        "a quarter of a second cannot be said"
    );
    assert_eq!(of("/short").policies, [("short".to_owned(), 5, None)]);
}

#[test]
fn every_response_that_a_limiter_saw_has_the_fields_once() {
    let upstream = Upstream::start();
    let dead = unused_port();
    let upstreams = format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\n[upstream.api.timeouts]\nresponse = \"200ms\"\n\
         [upstream.dead]\ntargets = [\"http://{dead}\"]\n\
         [[route]]\npath = \"/dead\"\nupstream = \"dead\"\n[[route]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        upstream.addr()
    );
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .upstream(&upstreams)
            .and(&rule("r", "fixed-window", 100, "1m", "refund = []"))
            .and(&rule("none-left", "fixed-window", 1, "1m", &on("/refused", ""))),
    );
    gateway.get("/refused");
    let mut h2 = H2::connect(gateway.addr());
    for (method, target, status) in [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("POST", "/", 200),
        ("GET", "/status/204", 204),
        ("GET", "/status/301", 301),
        ("GET", "/status/304", 304),
        ("GET", "/status/404", 404),
        ("GET", "/status/500", 500),
        ("GET", "/status/503", 503),
        ("GET", "/trailers", 200),
        ("GET", "/slow/10", 200),
        ("GET", "/dead", 502),
        ("GET", "/close", 502),
        ("GET", "/hang", 504),
        ("GET", "/refused", 429),
        ("HEAD", "/refused", 429),
    ] {
        let ask = Ask::new(method, target);
        for (version, answer) in [("1.1", gateway.ask(&ask)), ("2", h2.ask(&ask))] {
            assert_eq!(answer.status, status, "{method} {target} over {version}");
            let shown = if method == "HEAD" && status == 429 {
                // Without a body there is no problem to look into.
                assert_eq!(answer.body, b"");
                answer.must("ratelimit").to_owned()
            } else {
                Limits::of(&answer);
                answer.must("ratelimit").to_owned()
            };
            // Of a limiter that Redis refused by just now, the gateway speaks alone.
            let alone = status == 429 && gateway.shares_limits();
            assert!(
                shown.contains("\"r\"") || alone,
                "{method} {target} over {version}: {shown}"
            );
        }
    }
}

#[test]
fn requests_that_no_limiter_saw_have_no_limit_fields() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[[route]]\npath = \"/api/{*rest}\"\nupstream = \"api\"\n")
            .and(&rule(
                "r",
                "fixed-window",
                3,
                "1m",
                "match = { not_path = [\"/api/free\"] }",
            )),
    );
    for _ in 0..5 {
        let answer = gateway.get("/elsewhere");
        assert_eq!(answer.status, 404);
        answer.problem();
        assert_no_limits(&answer);
    }
    let free = gateway.get("/api/free");
    assert_eq!(free.status, 200);
    assert_no_limits(&free);
    let limits = Limits::of(&gateway.get("/api/x"));
    assert_eq!(limits.remaining, 2, "what has no route is not charged");
}

#[test]
fn an_upstream_that_limits_too_is_not_overwritten_where_lists_can_be_joined() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 9, "1m", "")));
    for status in [200, 429, 503] {
        let ask = Ask::get(&format!("/status/{status}"))
            .field("x-answer-X-RateLimit-Remaining", "999")
            .field("x-answer-X-RateLimit-Limit", "1000")
            .field("x-answer-RateLimit-Policy", "\"theirs\";q=10;w=5")
            .field("x-answer-RateLimit", "\"theirs\";r=3;t=2")
            .field("x-answer-Retry-After", "7");
        let answer = gateway.ask(&ask);
        assert_eq!(answer.status, status);
        let limits = Limits::of(&answer);
        assert_eq!(limits.limit, 9, "singletons are ours");
        assert_eq!(limits.r("r"), limits.remaining);
        assert_eq!((limits.r("theirs"), limits.t("theirs")), (3, Some(2)));
        assert_eq!(
            limits.policies[0],
            ("theirs".to_owned(), 10, Some(5)),
            "theirs stay in front"
        );
        assert_eq!(answer.must("retry-after"), "7", "their wait stays");
    }
}

#[test]
fn profiles_are_chosen_by_the_config() {
    let upstream = Upstream::start();
    let rules = rule("r", "fixed-window", 1, "1m", "");
    for (send, github, draft) in [
        ("[]", false, false),
        ("[\"github\"]", true, false),
        ("[\"draft\"]", false, true),
        ("[\"draft\", \"github\"]", true, true),
    ] {
        let config = Config::new(&upstream)
            .and(&format!("[headers]\nsend = {send}\n"))
            .and(&rules);
        let gateway = Gateway::start(&config);
        for status in [200, 429] {
            let answer = gateway.get("/");
            assert_eq!(answer.status, status);
            for name in ["limit", "remaining", "used", "reset", "resource"] {
                let shown = answer.field(&format!("x-ratelimit-{name}")).is_some();
                assert_eq!(shown, github, "x-ratelimit-{name} with {send}");
            }
            for name in ["ratelimit", "ratelimit-policy"] {
                assert_eq!(answer.field(name).is_some(), draft, "{name} with {send}");
            }
            assert_eq!(answer.field("retry-after").is_some(), status == 429, "{send}");
        }
    }
}

#[test]
fn a_rule_can_stay_out_of_sight() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("shown", "fixed-window", 9, "1m", &on("/both", "")))
            .and(&rule("hidden", "fixed-window", 2, "1m", "visible = false"))
            .and(&rule("trial", "fixed-window", 1, "1m", "dry_run = true")),
    );
    let both = Limits::of(&gateway.get("/both"));
    assert_eq!((both.resource.as_str(), both.members.len()), ("shown", 1));
    assert_no_limits(&gateway.get("/other"));
    let refused = gateway.get("/other");
    assert_eq!(refused.status, 429, "out of sight is in force");
    assert_no_limits(&refused);
    let wait: u64 = refused.must("retry-after").parse().unwrap();
    assert!((58..=60).contains(&wait), "{wait}");
    assert!(!refused.text().contains("hidden"), "{}", refused.text());
}

#[test]
fn a_trial_run_rejects_nobody_and_shows_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("trial", "fixed-window", 1, "1m", "dry_run = true"))
            .and(&rule("real", "fixed-window", 4, "1m", "")),
    );
    for left in (0..4).rev() {
        let limits = Limits::of(&gateway.get("/"));
        assert_eq!((limits.members.len(), limits.remaining), (1, left));
    }
    assert_eq!(gateway.get("/").status, 429);
    gateway.await_metric("tollgate_decisions_total{rule=\"trial\",verdict=\"admit\"}", 1.0);
    assert!(gateway.metric("tollgate_decisions_total{rule=\"trial\",verdict=\"dry_reject\"}") >= 3.0);
}

#[test]
fn a_trial_run_is_charged_only_with_what_is_admitted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("trial", "fixed-window", 3, "1h", "dry_run = true"))
            .and(&rule("real", "fixed-window", 2, "1h", &on("/tight", ""))),
    );
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.get("/tight").status, status);
    }
    let rejected = "tollgate_decisions_total{rule=\"trial\",verdict=\"dry_reject\"}";
    gateway.get("/wide");
    let third = gateway.metric(rejected);
    gateway.get("/wide");
    gateway.await_metric(rejected, third + 1.0);
    assert!(third < 0.5, "what another rule refused was charged to the trial");
}

#[test]
fn the_tightest_limiter_speaks_for_all() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("wide", "fixed-window", 50, "1m", ""))
            .and(&rule("narrow", "fixed-window", 8, "30s", &on("/narrow", "")))
            .and(&rule("hour", "fixed-window", 6, "1h", &on("/tie", "")))
            .and(&rule("day", "fixed-window", 6, "1d", &on("/tie", "")))
            .and(&rule(
                "one",
                "fixed-window",
                6,
                "1d",
                &on("/same/{x}", "cost = 0"),
            ))
            .and(&rule(
                "two",
                "fixed-window",
                6,
                "1d",
                &on("/same/{x}", "cost = 0"),
            )),
    );
    let of = |target: &str| Limits::of(&gateway.get(target));
    assert_eq!(of("/").resource, "wide");
    assert_eq!(of("/narrow").resource, "narrow", "the smallest Remaining");
    assert_eq!(of("/tie").resource, "day", "on a tie the one that takes longer");
    assert_eq!(
        of("/same/1").resource,
        "one",
        "on a tie of that, too, the order of the table"
    );
    assert_eq!(of("/tie").members.len(), 3, "all of them are listed");
}

#[test]
fn a_rejection_shows_the_limiter_that_keeps_the_caller_waiting_longest() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("minute", "fixed-window", 1, "1m", ""))
            .and(&rule("hour", "fixed-window", 1, "1h", ""))
            .and(&rule("second", "fixed-window", 100, "1s", "")),
    );
    assert_eq!(gateway.get("/").status, 200);
    let refused = gateway.get("/");
    assert_eq!(refused.status, 429);
    let limits = Limits::of(&refused);
    assert_eq!(limits.resource, "hour");
    let wait = limits.retry_after.unwrap();
    assert!((3_599..=3_600).contains(&wait), "{wait}");
    assert!(wait >= limits.t("minute").unwrap());
}

#[test]
fn a_rejection_explains_itself() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("per-user", "fixed-window", 1, "1m", "")));
    gateway.get("/");
    let refused = gateway.get("/");
    let problem = refused.problem();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["violated-policies"], json!(["per-user"]));
    assert_eq!(refused.must("cache-control"), "no-store");
    assert_eq!(refused.must("content-length"), refused.body.len().to_string());
    assert!(refused.field("date").is_some());
    assert_no_secret_of_the_house(&refused.text());
}

fn assert_no_secret_of_the_house(text: &str) {
    for word in ["127.0.0.1", "src/", "panicked"] {
        assert!(!text.contains(word), "{text}");
    }
}

#[test]
fn grpc_clients_are_refused_in_their_own_way() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1, "1m", "")));
    let mut h2 = H2::connect(gateway.addr());
    let call = Ask::post("/pkg.Service/Call", [0, 0, 0, 0, 0])
        .field("content-type", "application/grpc")
        .field("te", "trailers");
    assert_eq!(h2.ask(&call).status, 200);
    let refused = h2.ask(&call);
    assert_eq!(refused.status, 200);
    assert_eq!(refused.must("content-type"), "application/grpc");
    assert_eq!(refused.must("grpc-status"), "8");
    assert_eq!(refused.body, b"");
    let pushback: u64 = refused.must("grpc-retry-pushback-ms").parse().unwrap();
    assert!((58_000..=60_000).contains(&pushback), "{pushback}");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_preflight_is_exempt_only_where_the_rule_says_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "a",
                "fixed-window",
                2,
                "1m",
                "match = { path = \"/a\", not_methods = [\"OPTIONS\"] }",
            ))
            .and(&rule("b", "fixed-window", 2, "1m", &on("/b", "")))
            .and(&rule(
                "c",
                "fixed-window",
                2,
                "1m",
                "match = { path = \"/c\", methods = [\"GET\"] }",
            )),
    );
    let preflight = |target: &str| {
        gateway
            .ask(
                &Ask::new("OPTIONS", target)
                    .field("Origin", "https://app.example")
                    .field("Access-Control-Request-Method", "GET"),
            )
            .status
    };
    assert_eq!([(); 5].map(|()| preflight("/a")), [200; 5]);
    assert_eq!(Limits::of(&gateway.get("/a")).remaining, 1);
    assert_eq!([(); 3].map(|()| preflight("/b")), [200, 200, 429]);
    assert_eq!([(); 3].map(|()| preflight("/c")), [200; 3]);
    let post = gateway.ask(&Ask::post("/c", "x"));
    assert_no_limits(&post);
    assert_eq!(Limits::of(&gateway.get("/c")).remaining, 1);
}

#[test]
fn curl_sees_the_fields_over_both_protocols() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 2, "1m", "")));
    for (args, line) in [
        (&["--http1.1"][..], "HTTP/1.1 200"),
        (&["--http2-prior-knowledge"], "HTTP/2 200"),
        (&["--http2-prior-knowledge"], "HTTP/2 429"),
        (&["--http1.1"], "HTTP/1.1 429"),
    ] {
        let url = gateway.url("/");
        let mut all = args.to_vec();
        all.extend(["--include", &url]);
        let text = curl(&all);
        assert!(text.starts_with(line), "{text}");
        assert!(
            text.to_ascii_lowercase().contains("\nratelimit: \"r\";r="),
            "{text}"
        );
    }
}
