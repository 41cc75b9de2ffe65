//! Who shares a counter with whom, and that nobody gets out of one.

use std::net::Ipv4Addr;

use crate::support::{Ask, Client, Config, Gateway, H2, Limits, Upstream, rule};

/// Whether two requests count on one counter of two.
fn same(gateway: &Gateway, first: &Ask, second: &Ask) -> bool {
    let before = Limits::of(&gateway.ask(first));
    let after = Limits::of(&gateway.ask(second));
    assert_eq!(before.limit, after.limit);
    after.remaining + 1 == before.remaining
}

fn keyed(upstream: &Upstream, key: &str) -> Gateway {
    let lines = format!("key = [{key}]\n");
    Gateway::start(&Config::new(upstream).and(&rule("r", "fixed-window", 1_000, "1d", &lines)))
}

#[test]
fn each_value_of_a_key_has_a_counter_of_its_own() {
    let upstream = Upstream::start();
    for (key, one, two) in [
        (
            "header:x-user",
            Ask::get("/").field("X-User", "a"),
            Ask::get("/").field("X-User", "b"),
        ),
        (
            "cookie:sid",
            Ask::get("/").field("Cookie", "x=1; sid=a"),
            Ask::get("/").field("Cookie", "sid=b; x=1"),
        ),
        ("query:q", Ask::get("/?p=1&q=a"), Ask::get("/?q=b&p=1")),
        ("method", Ask::get("/"), Ask::post("/", "")),
        (
            "host",
            Ask::get("/").host("a.example"),
            Ask::get("/").host("b.example"),
        ),
    ] {
        let gateway = keyed(&upstream, &format!("\"{key}\""));
        assert!(same(&gateway, &one, &one), "{key}");
        assert!(!same(&gateway, &one, &two), "{key}");
    }
}

#[test]
fn equal_values_in_other_spelling_are_one_key() {
    let upstream = Upstream::start();
    for (key, one, two) in [
        (
            "header:x-user",
            Ask::get("/").field("X-User", "a"),
            Ask::get("/y").field("x-uSER", "  a "),
        ),
        (
            "cookie:sid",
            Ask::get("/").field("Cookie", "x=1; sid=a"),
            Ask::get("/").field("Cookie", "sid=a"),
        ),
        ("query:q", Ask::get("/?q=a%2Bb"), Ask::get("/?x=y&q=%61%2bb")),
        (
            "host",
            Ask::get("/").host("a.example"),
            Ask::get("/").host("A.Example.:8080"),
        ),
    ] {
        let gateway = keyed(&upstream, &format!("\"{key}\""));
        assert!(same(&gateway, &one, &two), "{key}");
    }
}

#[test]
fn the_endpoint_is_method_and_pattern_and_never_the_literal_path() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[[route]]\npath = \"/v1/items/{id}\"\nupstream = \"api\"\n[[route]]\nupstream = \"api\"\n")
            .and(&rule("r", "fixed-window", 1_000, "1d", "key = [\"endpoint\"]")),
    );
    let item = |id: u32| Ask::get(&format!("/v1/items/{id}"));
    assert!(same(&gateway, &item(1), &item(2)));
    assert!(!same(&gateway, &item(1), &Ask::post("/v1/items/1", "")));
    assert!(!same(&gateway, &item(1), &Ask::get("/other")));
    assert!(same(&gateway, &Ask::get("/other"), &Ask::get("/still/other")));
}

#[test]
fn the_endpoint_is_the_rules_own_pattern_where_it_has_one() {
    let upstream = Upstream::start();
    let lines = "key = [\"endpoint\"]\nmatch = { path = \"/v1/{kind}/{id}\" }";
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[[route]]\npath = \"/v1/items/{id}\"\nupstream = \"api\"\n[[route]]\nupstream = \"api\"\n")
            .and(&rule("r", "fixed-window", 1_000, "1d", lines)),
    );
    assert!(same(&gateway, &Ask::get("/v1/items/1"), &Ask::get("/v1/users/2")));
}

#[test]
fn a_segment_of_the_path_can_be_a_key() {
    let upstream = Upstream::start();
    let lines = "key = [\"path:id\"]\nmatch = { path = \"/users/{id}/{*rest}\" }";
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 1_000, "1d", lines)));
    assert!(same(&gateway, &Ask::get("/users/1/a"), &Ask::get("/users/1/b/c")));
    assert!(same(&gateway, &Ask::get("/users/1/a"), &Ask::get("/users/%31")));
    assert!(!same(&gateway, &Ask::get("/users/1/a"), &Ask::get("/users/2/a")));
}

#[test]
fn the_first_alternative_that_is_present_counts() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-api-key|cookie:sid|ip\"");
    let key = || Ask::get("/").field("X-Api-Key", "k");
    let cookie = || Ask::get("/").field("Cookie", "sid=k");
    assert!(same(&gateway, &key(), &key().field("Cookie", "sid=other")));
    assert!(same(&gateway, &cookie(), &cookie()));
    assert!(
        !same(&gateway, &cookie(), &Ask::get("/")),
        "the address is a key of its own"
    );
}

#[test]
fn the_user_is_what_the_identity_says() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[identity]\nuser = [\"header:x-api-key\", \"cookie:sid\"]\n")
            .and(&rule("r", "fixed-window", 1_000, "1d", "key = [\"user\"]")),
    );
    let user = |key: &str| Ask::get("/").field("X-Api-Key", key);
    assert!(same(&gateway, &user("a"), &user("a").field("Cookie", "sid=1")));
    assert!(!same(&gateway, &user("a"), &user("b")));
    assert!(!same(
        &gateway,
        &Ask::get("/").field("Cookie", "sid=1"),
        &Ask::get("/")
    ));
}

#[test]
fn a_missing_part_leaves_the_other_parts_in_force() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-user\", \"query:q\"");
    assert!(same(&gateway, &Ask::get("/?q=1"), &Ask::get("/?q=1")));
    assert!(!same(&gateway, &Ask::get("/?q=1"), &Ask::get("/?q=2")));
    assert!(!same(
        &gateway,
        &Ask::get("/?q=1"),
        &Ask::get("/?q=1").field("X-User", "")
    ));
}

#[test]
fn no_value_imitates_the_border_between_parts() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-a\", \"header:x-b\"");
    let pair = |a: &str, b: &str| Ask::get("/").field("X-A", a).field("X-B", b);
    let mut seen = 0;
    for (a, b) in [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a|b", "c"),
        ("a", "b|c"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a%3Ab", "c"),
        ("a,b", "c"),
        ("a", "b,c"),
        ("ab", "c"),
        ("a", "bc"),
        ("abc", ""),
        ("", "abc"),
        ("2001:db8::1", "1"),
        ("2001:db8:", "1:1"),
    ] {
        let limits = Limits::of(&gateway.ask(&pair(a, b)));
        assert_eq!(limits.remaining, 999, "({a:?}, {b:?}) shares a counter");
        seen += 1;
    }
    assert_eq!(seen, upstream.count());
}

#[test]
fn rules_whose_names_resemble_keys_do_not_meet() {
    let upstream = Upstream::start();
    let key = "key = [\"header:x-a\"]";
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule("r", "fixed-window", 10, "1d", key))
            .and(&rule("r.x", "fixed-window", 20, "1d", key))
            .and(&rule("r-x", "fixed-window", 30, "1d", key)),
    );
    for value in ["x.y", "y", ".x", "x"] {
        let limits = Limits::of(&gateway.ask(&Ask::get("/").field("X-A", value)));
        assert_eq!(
            (limits.r("r"), limits.r("r.x"), limits.r("r-x")),
            (9, 19, 29),
            "{value}"
        );
    }
}

#[test]
fn a_key_field_that_contradicts_itself_is_refused() {
    let upstream = Upstream::start();
    for (key, ask) in [
        (
            "header:x-user",
            Ask::get("/").field("X-User", "a").field("X-User", "b"),
        ),
        ("cookie:sid", Ask::get("/").field("Cookie", "sid=a; sid=b")),
        (
            "cookie:sid",
            Ask::get("/").field("Cookie", "sid=a").field("Cookie", "sid=b"),
        ),
        ("query:q", Ask::get("/?q=a&q=b")),
    ] {
        let gateway = keyed(&upstream, &format!("\"{key}\""));
        let before = upstream.count();
        let answer = gateway.ask(&ask);
        assert_eq!(answer.status, 400, "{key}");
        answer.problem();
        assert_eq!(upstream.count(), before, "{key}");
    }
    let gateway = keyed(&upstream, "\"header:x-user\"");
    let twice = Ask::get("/").field("X-User", "a").field("X-User", "a");
    assert!(same(&gateway, &twice, &Ask::get("/").field("X-User", "a")));
}

#[test]
fn cookie_crumbs_over_http2_are_the_cookies_of_http1() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"cookie:sid\"");
    let mut h2 = H2::connect(gateway.addr());
    let crumbs = Ask::get("/")
        .field("cookie", "x=1")
        .field("cookie", "sid=a")
        .field("cookie", "y=2");
    let one = Limits::of(&h2.ask(&crumbs));
    let two = Limits::of(&gateway.ask(&Ask::get("/").field("Cookie", "x=1; sid=a; y=2")));
    assert_eq!((one.remaining, two.remaining), (999, 998));
}

#[test]
fn any_bytes_that_http_allows_are_a_key() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-user\"");
    let values: [&[u8]; 7] = [
        b"\x80\x81",
        b"\x80\x82",
        b"\xff",
        b"\xef\xbf\xbd",
        "\u{1f4a9}".as_bytes(),
        b"a\tb",
        b"a b",
    ];
    for value in values {
        let ask = Ask::get("/").field("X-User", value);
        let answer = gateway.ask(&ask);
        assert_eq!(answer.status, 200, "{value:?}");
        assert_eq!(
            Limits::of(&answer).remaining,
            999,
            "{value:?} was merged with another"
        );
        assert_eq!(Limits::of(&gateway.ask(&ask)).remaining, 998, "{value:?}");
    }
    let before = upstream.count();
    for value in [&b"a\0b"[..], b"a\rb", b"a\x7fb"] {
        let mut client = gateway.client();
        client.send(Ask::get("/").field("X-User", value).bytes());
        let status = client.try_answer("GET").map(|answer| answer.status);
        assert!(matches!(status, Ok(400) | Err(_)), "{value:?}: {status:?}");
    }
    assert_eq!(upstream.count(), before);
}

#[test]
fn bytes_in_a_query_are_decoded_and_never_merged() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"query:q\"");
    for query in ["%00", "%FF", "%FE", "%EF%BF%BD", "%0A", "%zz", "%", "a%20b", ""] {
        let target = format!("/?q={query}");
        let answer = gateway.get(&target);
        assert_eq!(answer.status, 200, "{query}");
        assert_eq!(
            Limits::of(&answer).remaining,
            999,
            "{query} was merged with another"
        );
        assert_eq!(Limits::of(&gateway.get(&target)).remaining, 998, "{query}");
    }
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        999,
        "absent is not empty"
    );
}

#[test]
fn a_query_key_is_found_however_its_name_is_written() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"query:user id\"");
    for target in [
        "/?user%20id=a%20b",
        "/?x=1&user+id=a+b",
        "/?%75ser+id=%61+b#x",
        "/?user%20id=a+b&",
    ] {
        let answer = gateway.get(target);
        assert_eq!(answer.status, 200, "{target}");
    }
    assert_eq!(Limits::of(&gateway.get("/?user+id=a+b")).remaining, 995);
    let hidden = gateway.get("/?user+id=a&%75ser%20id=b");
    assert_eq!(hidden.status, 400, "two values, one of them in disguise");
}

#[test]
fn a_list_in_one_line_is_another_value_than_its_members() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-user\"");
    let values = ["a", "b", "a, b", "a,b", "A"];
    for value in values {
        let answer = gateway.ask(&Ask::get("/").field("X-User", value));
        assert_eq!(Limits::of(&answer).remaining, 999, "{value}");
        assert_eq!(
            upstream.last().field("x-user").as_deref(),
            Some(value),
            "the upstream reads what was counted"
        );
    }
}

#[test]
fn a_changing_credential_does_not_escape_the_address() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and(&rule(
                "key",
                "fixed-window",
                5,
                "1d",
                "key = [\"header:x-api-key\"]",
            ))
            .and(&rule("address", "fixed-window", 20, "1d", "key = [\"ip\"]")),
    );
    let mut client = gateway.client();
    let admitted = (0..60)
        .filter(|n| {
            client
                .ask(&Ask::get("/").field("X-Api-Key", format!("k{n}")))
                .status
                == 200
        })
        .count();
    assert_eq!(admitted, 20);
}

#[test]
fn a_key_is_read_before_the_connection_field_is_obeyed() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"header:x-user\"");
    let plain = Ask::get("/").field("X-User", "a");
    let nominated = plain.clone().field("Connection", "keep-alive, X-User");
    assert!(same(&gateway, &plain, &nominated));
}

#[test]
fn every_loopback_address_is_a_caller() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"ip\"");
    let from = |last: u8| {
        let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, last), gateway.addr());
        Limits::of(&client.get("/")).remaining
    };
    assert_eq!([from(2), from(3), from(2), from(3)], [999, 999, 998, 998]);
}

#[test]
fn credentials_stay_out_of_everything_that_is_written() {
    let upstream = Upstream::start();
    let secret = "s3cr3t-t0k3n";
    let gateway = Gateway::start(&Config::new(&upstream).log("level = \"debug\"").and(&rule(
        "r",
        "fixed-window",
        1,
        "1d",
        "key = [\"header:authorization\", \"query:token\", \"cookie:sid\"]",
    )));
    let ask = Ask::get(&format!("/?token={secret}"))
        .field("Authorization", format!("Bearer {secret}"))
        .field("Cookie", format!("sid={secret}"));
    assert_eq!(gateway.ask(&ask).status, 200);
    let refused = gateway.ask(&ask);
    assert_eq!(refused.status, 429);
    gateway.await_metric("tollgate_decisions_total{rule=\"r\",verdict=\"admit\"}", 1.0);
    let mut answer = String::from_utf8_lossy(&refused.head).into_owned();
    answer.push_str(&refused.text());
    for (place, text) in [
        ("the log", gateway.log()),
        ("the metrics", gateway.admin(&Ask::get("/metrics")).text()),
        ("the 429", answer),
    ] {
        assert!(!text.contains(secret), "{place}: {text}");
    }
}

#[test]
fn methods_are_told_apart_to_the_letter() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "gets",
        "fixed-window",
        1_000,
        "1d",
        "match = { methods = [\"GET\", \"PURGE\"] }",
    )));
    for (method, limited) in [
        ("GET", true),
        ("PURGE", true),
        ("get", false),
        ("HEAD", false),
        ("GETS", false),
    ] {
        let answer = gateway.ask(&Ask::new(method, "/"));
        assert_eq!(answer.status, 200, "{method}");
        assert_eq!(upstream.last().method, method);
        assert_eq!(answer.field("ratelimit").is_some(), limited, "{method}");
    }
}

#[test]
fn a_host_may_be_an_address() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "\"host\"");
    let host = |host: &str| Ask::get("/").host(host);
    assert!(same(
        &gateway,
        &host("[2001:db8::1]:8080"),
        &host("[2001:db8::1]")
    ));
    assert!(!same(&gateway, &host("[2001:db8::1]"), &host("[2001:db8::2]")));
    assert!(same(&gateway, &host("192.0.2.1:1"), &host("192.0.2.1")));
}

#[test]
fn one_captured_segment_has_one_key_however_it_is_encoded() {
    let upstream = Upstream::start();
    let lines = "match = { path = \"/t/{tenant}/{*rest}\" }\nkey = [\"path:tenant\"]";
    let gateway = Gateway::start(&Config::new(&upstream).and(&once_a_day("r", 3, lines)));
    for target in ["/t/a@b/1", "/t/a%40b/2", "/t/%61%40%62"] {
        assert_eq!(gateway.get(target).status, 200, "{target}");
    }
    assert_eq!(gateway.get("/t/a@b").status, 429);
    for target in ["/t/%c3%a9", "/t/%C3%A9", "/t/%C3%a9"] {
        assert_eq!(gateway.get(target).status, 200, "{target}");
    }
    assert_eq!(gateway.get("/t/%c3%a9").status, 429);
}

#[test]
fn one_source_of_a_user_does_not_imitate_another() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .and("[identity]\nuser = [\"header:x-user\", \"cookie:sid\"]\n")
            .and(&once_a_day("r", 1, "key = [\"user\"]")),
    );
    assert_eq!(gateway.ask(&Ask::get("/").field("cookie", "sid=ann")).status, 200);
    assert_eq!(gateway.ask(&Ask::get("/").field("x-user", "ann")).status, 200);
    assert_eq!(gateway.ask(&Ask::get("/").field("x-user", "ann")).status, 429);
}

/// A rule of `limit` a day with a key of its own.
fn once_a_day(name: &str, limit: u64, lines: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nalgorithm = \"fixed-window\"\nlimit = {limit}\nwindow = \"1d\"\n{lines}\n"
    )
}
