//! A rule's path and what the upstream gets: variants of a path do not escape, and arrive as they were sent.

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, assert_no_limits, rule};

fn on_login(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).and(&rule(
        "login",
        "fixed-window",
        1_000,
        "1d",
        "match = { path = \"/login\" }",
    )))
}

#[test]
fn variants_of_a_path_do_not_escape_its_rule() {
    let upstream = Upstream::start();
    let gateway = on_login(&upstream);
    let mut left = Limits::of(&gateway.get("/login")).remaining;
    for target in [
        "/login/",
        "//login",
        "/./login",
        "/a/../login",
        "/../login",
        "/%6Cogin",
        "/%6cogin",
        "/lo%67in",
        "/%2e/login",
        "/a/%2E%2e/login",
        "/login?x=1",
        "/login/?next=/home",
        "/login/.",
        "///login//",
    ] {
        let answer = gateway.get(target);
        assert_eq!(answer.status, 200, "{target}");
        left -= 1;
        assert_eq!(Limits::of(&answer).remaining, left, "{target}");
        assert_eq!(upstream.last().target, target, "the upstream gets what was sent");
    }
}

#[test]
fn paths_that_are_another_resource_have_no_part_in_the_rule() {
    let upstream = Upstream::start();
    let gateway = on_login(&upstream);
    for target in [
        "/login%2F",
        "/LOGIN",
        "/login;x=1",
        "/login%00",
        "/login.json",
        "/logi",
        "/login/x",
        "/%2Flogin",
        "/%256Cogin",
    ] {
        let answer = gateway.get(target);
        assert!(matches!(answer.status, 200 | 400), "{target}: {}", answer.status);
        assert_no_limits(&answer);
    }
}

#[test]
fn the_absolute_form_is_limited_like_the_origin_form() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[[route]]\npath = \"/admin/{*rest}\"\nupstream = \"api\"\n")
            .and(&rule(
                "admin",
                "fixed-window",
                1_000,
                "1d",
                "key = [\"host\"]\nmatch = { path = \"/admin/{*rest}\", host = \"victim.example\" }",
            )),
    );
    let origin = Ask::get("/admin/x?a=1").host("victim.example");
    assert_eq!(Limits::of(&gateway.ask(&origin)).remaining, 999);
    for (left, target) in [
        (998, "http://victim.example/admin/x?a=1"),
        (997, "HTTP://victim.example/admin/x?a=1"),
        (996, "http://VICTIM.example:80/admin/x?a=1"),
    ] {
        let answer = gateway.ask(&Ask::get(target).host("other.example"));
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(Limits::of(&answer).remaining, left, "{target}");
        let seen = upstream.last();
        assert_eq!(seen.target, "/admin/x?a=1", "{target}");
        let host = seen.field("host").unwrap().to_ascii_lowercase();
        assert!(host.starts_with("victim.example"), "{target}: Host: {host}");
    }
}

#[test]
fn path_and_query_bytes_arrive_as_they_were_sent() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")));
    let targets = [
        "/a%2Fb",
        "/a%2fb",
        "/%2e%2e/x",
        "/%252e%252e",
        "//x",
        "/a//b",
        "/a/../b",
        "/%20",
        "/%E4%BD",
        "/?a=%2F&b=+",
        "/;p=1",
        "/x?",
        "/x??",
        "/x?a=b?c&&=",
        "/!$&'()*+,;=:@~-._",
        "/%41%5A",
        "/x?{}|^`\"",
        "/x?%",
    ];
    let mut h2 = H2::connect(gateway.addr());
    for target in targets {
        let count = upstream.count();
        let answer = gateway.get(target);
        if answer.status == 400 {
            assert_eq!(upstream.count(), count, "{target}");
            continue;
        }
        assert_eq!(upstream.last().target, target);
        if format!("http://a{target}").parse::<http::Uri>().is_ok() {
            assert_eq!(h2.get(target).status, 200, "{target}");
            assert_eq!(upstream.last().target, target, "over HTTP/2");
        }
    }
}

#[test]
fn unusual_targets_are_refused_or_pass_as_they_are() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")));
    for target in ["/%", "/%zz", "/x?%zz"] {
        let answer = gateway.get(target);
        match answer.status {
            200 => assert_eq!(upstream.last().target, target),
            status => assert_eq!(status, 400, "{target}"),
        }
    }
    let count = upstream.count();
    for target in ["foo", "http:///x", "/a b", "/x\x7f"] {
        let mut client = gateway.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let status = client.try_answer("GET").map(|answer| answer.status);
        assert!(matches!(status, Ok(400)), "{target}: {status:?}");
    }
    assert_eq!(upstream.count(), count);
    let star = gateway.ask(&Ask::new("OPTIONS", "*"));
    match star.status {
        200 => assert_eq!(
            upstream.last().head.split(|&byte| byte == b'\r').next(),
            Some(&b"OPTIONS * HTTP/1.1"[..])
        ),
        status => assert!(matches!(status, 400 | 404 | 405), "{status}"),
    }
}

#[test]
fn connect_is_refused_and_nothing_behind_it_is_read() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", "")));
    let mut client = gateway.client();
    client.send("CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.answer();
    assert!(
        matches!(answer.status, 400 | 404 | 405 | 501),
        "{}",
        answer.status
    );
    assert!(client.closes_within(std::time::Duration::from_secs(5)));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_fragment_is_not_part_of_a_request() {
    let upstream = Upstream::start();
    let gateway = on_login(&upstream);
    let answer = gateway.get("/login#x");
    match answer.status {
        200 => {
            assert_eq!(upstream.last().target, "/login");
            Limits::of(&answer);
        }
        status => assert_eq!(status, 400),
    }
}

#[test]
fn patterns_for_everything_below_match_the_place_itself() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "files",
        "fixed-window",
        1_000,
        "1d",
        "match = { path = \"/files/{*rest}\", not_path = [\"/files/public/{*rest}\"] }",
    )));
    for target in ["/files", "/files/", "/files/a", "/files/a/b/c"] {
        Limits::of(&gateway.get(target));
    }
    for target in [
        "/filesystem",
        "/files/public",
        "/files/public/a",
        "/files/x/../public/a",
    ] {
        assert_no_limits(&gateway.get(target));
    }
}

#[test]
fn a_rule_for_a_host_sees_it_in_every_spelling() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "one",
                "fixed-window",
                1_000,
                "1d",
                "match = { host = \"api.example.com\" }",
            ))
            .and(&rule(
                "below",
                "fixed-window",
                1_000,
                "1d",
                "match = { host = \"*.example.org\" }",
            )),
    );
    for host in [
        "api.example.com",
        "API.example.COM",
        "api.example.com:8443",
        "api.example.com.",
    ] {
        let limits = Limits::of(&gateway.ask(&Ask::get("/").host(host)));
        assert_eq!(limits.resource, "one", "{host}");
    }
    for host in ["a.example.org", "a.b.example.org:80"] {
        let limits = Limits::of(&gateway.ask(&Ask::get("/").host(host)));
        assert_eq!(limits.resource, "below", "{host}");
    }
    for host in ["example.org", "other.com", "xapi.example.com", "badexample.org"] {
        assert_no_limits(&gateway.ask(&Ask::get("/").host(host)));
    }
    let mut h2 = H2::connect(gateway.addr());
    assert_eq!(
        Limits::of(&h2.ask(&Ask::get("/").host("api.example.com"))).resource,
        "one"
    );
}
