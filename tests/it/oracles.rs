//! What programs say that know the formats better: a parser of structured fields, promtool, curl, h2load.

use std::collections::BTreeSet;

use crate::support::{
    ALGORITHMS, Answer, Ask, Config, Gateway, H2, Upstream, curl, python, rule, threads, tool, unused_port,
};

/// A rule of each algorithm for a path of its own, and rules for `/several`, with all that may stand in a name.
fn rules() -> String {
    let mut rules = String::new();
    for (number, algorithm) in ALGORITHMS.iter().enumerate() {
        let lines = format!("refund = [\"404\"]\nmatch = {{ path = \"/{algorithm}/{{*rest}}\" }}");
        let window = ["1m", "1500ms", "1h", "7s", "1d"][number];
        rules += &rule(algorithm, algorithm, 3, window, &lines);
        let lines = "match = { path = \"/several/{*rest}\" }";
        rules += &rule(
            &format!("several_{number}.{algorithm}"),
            algorithm,
            4 + number as u64,
            "1m",
            lines,
        );
    }
    let lines = "dry_run = true\nmatch = { path = \"/several/{*rest}\" }";
    rules += &rule("dry", "fixed-window", 1, "1m", lines);
    let lines = "cost = 0\nmatch = { path = \"/several/{*rest}\" }";
    rules += &rule("measured", "sliding-log", 1, "1m", lines);
    rules += "[[rule]]\nname = \"in-flight\"\nkey = []\nalgorithm = \"concurrency\"\nlimit = 1\n\
              match = { path = \"/after/{*rest}\" }\n";
    let lines = "burst = 1\nqueue = \"150ms\"\nmatch = { path = \"/queued\" }";
    rules += &rule("queued", "gcra", 10, "1s", lines);
    let largest = (1 << 42) - 1;
    let lines = "match = { path = \"/largest\" }";
    rules + &rule("largest", "fixed-window", largest, "50d", lines)
}

/// A gateway with those rules, an upstream that answers and one that does not.
fn gateway(upstream: &Upstream) -> Gateway {
    let upstreams = format!(
        "[upstream.api]\ntargets = [\"http://{}\"]\n[upstream.dead]\ntargets = [\"http://{}\"]\n\
         [[route]]\npath = \"/several/dead\"\nupstream = \"dead\"\n[[route]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        upstream.addr(),
        unused_port()
    );
    Gateway::start(&Config::new(upstream).upstream(&upstreams).and(&rules()))
}

/// Requests of all kinds, and their answers.
fn traffic(gateway: &Gateway) -> Vec<Answer> {
    let mut h1 = gateway.client();
    let mut h2 = H2::connect(gateway.addr());
    let own = "\"up, stream\";r=1;t=2;x=?1, \"b\\\"\\\\\";r=0";
    let policy = "\"up, stream\";q=5;w=60;pk=:AQID:, \"b\\\"\\\\\";q=1;x=1.5";
    let mut answers = Vec::new();
    for path in ALGORITHMS.iter().copied().chain(["several", "largest"]) {
        for number in 0..12 {
            let ask = Ask::get(&format!("/{path}"));
            let with_own = ask
                .clone()
                .field("x-answer-ratelimit", own)
                .field("x-answer-ratelimit-policy", policy);
            let ask = if number % 2 == 0 { ask } else { with_own };
            answers.push(if number % 3 == 0 {
                h2.ask(&ask)
            } else {
                h1.ask(&ask)
            });
        }
    }
    let at_once = threads(
        vec!["/after/300", "/after/300", "/queued", "/queued", "/queued"],
        |target| gateway.get(target),
    );
    answers.extend(at_once);
    let call = Ask::post("/several", [0; 5]).field("content-type", "application/grpc");
    answers.push(h2.ask(&call));
    for target in [
        "/gcra/404",
        "/several/dead",
        "/several/status/500",
        "/fixed-window/none",
    ] {
        answers.push(h1.get(target));
        answers.push(h2.get(target));
    }
    answers
}

#[test]
fn a_parser_of_structured_fields_reads_every_limit_field() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream);
    let answers = traffic(&gateway);
    let statuses: BTreeSet<u16> = answers.iter().map(|answer| answer.status).collect();
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    let mut lines = BTreeSet::new();
    for answer in &answers {
        for name in ["ratelimit", "ratelimit-policy"] {
            let values = answer.all(name);
            assert!(!values.is_empty(), "no {name} in {answer:#?}");
            lines.insert(format!("{name}: {}\n", values.join(", ")));
        }
    }
    assert!(
        lines
            .iter()
            .any(|line| line.contains("up, stream") && line.contains("several_")),
        "{lines:?}"
    );
    let text: String = lines.iter().map(String::as_str).collect();
    let said = python("fields.py", &[], text.as_bytes()).printed();
    assert_eq!(said.trim(), lines.len().to_string());
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream);
    let before = gateway.admin(&Ask::get("/metrics"));
    traffic(&gateway);
    let after = gateway.admin(&Ask::get("/metrics"));
    for answer in [before, after] {
        let ran = tool("promtool", "prometheus", &["check", "metrics"], &answer.body);
        assert!(
            ran.success && ran.stdout.is_empty() && ran.stderr.is_empty(),
            "{}{}\n{}",
            ran.stdout,
            ran.stderr,
            answer.text()
        );
    }
}

#[test]
fn curl_sends_and_receives_over_http_2() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 5, "1m", "")));
    let url = gateway.url("/echo");
    let body = "x".repeat(100_000);
    let sent = curl(&["--http2-prior-knowledge", "--data", &body, &url]);
    assert!(sent == body, "{} bytes came back", sent.len());
    let statuses: Vec<String> = (0..6)
        .map(|number| {
            let url = gateway.url(&format!("/{number}"));
            let format = "%{http_version} %{http_code}";
            curl(&[
                "--http2-prior-knowledge",
                "--output",
                "/dev/null",
                "--write-out",
                format,
                &url,
            ])
        })
        .collect();
    assert_eq!(statuses, ["2 200", "2 200", "2 200", "2 200", "2 429", "2 429"]);
}

#[test]
fn h2load_counts_what_the_limit_admits() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 300, "1h", "")));
    let url = gateway.url("/");
    let args = ["-n", "1000", "-c", "5", "-m", "10", &url];
    let said = tool("h2load", "nghttp2-client", &args, b"").printed();
    for line in [
        "requests: 1000 total, 1000 started, 1000 done, 300 succeeded, 700 failed, 0 errored, 0 timeout",
        "status codes: 300 2xx, 0 3xx, 700 4xx, 0 5xx",
    ] {
        assert!(said.lines().any(|said| said == line), "no {line:?} in\n{said}");
    }
    assert_eq!(upstream.count(), 300);
}
