//! Which fields change between client and upstream: the ones of the hop, and those that say who asked. No others.

use crate::support::{Ask, Config, Gateway, H2, Limits, Upstream, rule};

fn plain(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream))
}

fn trusting(upstream: &Upstream) -> Gateway {
    Gateway::start(&Config::new(upstream).server("workers = 1\ntrusted_proxies = [\"127.0.0.0/8\"]"))
}

/// The elements of a list field, over all of its lines.
fn elements(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .flat_map(|line| line.split(','))
        .map(|element| element.trim().to_owned())
        .collect()
}

#[test]
fn fields_of_the_hop_stay_on_their_side() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    let answer = gateway.ask(
        &Ask::get("/")
            .field("Connection", "keep-alive, X-Mine, x-other")
            .field("Connection", "X-Third")
            .field("X-Mine", "1")
            .field("X-Other", "2")
            .field("X-Third", "3")
            .field("Keep-Alive", "timeout=5")
            .field("Proxy-Connection", "keep-alive")
            .field("Proxy-Authorization", "Basic Zm9v")
            .field("TE", "gzip")
            .field("Upgrade", "h2c")
            .field("X-Kept", "yes"),
    );
    assert_eq!(answer.status, 200);
    let seen = upstream.last();
    for name in [
        "x-mine",
        "x-other",
        "x-third",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "upgrade",
        "transfer-encoding",
        "content-length",
    ] {
        assert_eq!(seen.field(name), None, "{name} reached the upstream");
    }
    assert!(
        !seen
            .all("connection")
            .iter()
            .any(|value| value.to_ascii_lowercase().contains("x-")),
        "{seen:?}"
    );
    assert_eq!(seen.field("x-kept").as_deref(), Some("yes"));
}

#[test]
fn what_connection_names_cannot_take_the_gateways_own_fields_away() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    let answer = gateway.ask(
        &Ask::get("/")
            .host("h.example")
            .field("Connection", "close, Host, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, Forwarded, Via, Content-Length")
            .body("body"),
    );
    assert_eq!(answer.status, 200);
    let seen = upstream.last();
    assert_eq!(seen.field("host").as_deref(), Some("h.example"));
    assert_eq!(seen.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(seen.body, b"body");
    for name in ["x-forwarded-host", "x-forwarded-proto", "forwarded", "via"] {
        assert!(seen.field(name).is_some(), "{name}");
    }
}

#[test]
fn te_trailers_stays_and_nothing_else_of_te() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    for (te, kept) in [
        ("trailers", Some("trailers")),
        ("Trailers", Some("trailers")),
        ("gzip, trailers;q=0.5", Some("trailers")),
        ("gzip;q=1.0", None),
    ] {
        gateway.ask(&Ask::get("/").field("TE", te).field("Connection", "TE"));
        let seen = upstream.last().field("te").map(|te| te.to_ascii_lowercase());
        assert_eq!(seen.as_deref(), kept, "TE: {te}");
    }
    let mut h2 = H2::connect(gateway.addr());
    h2.ask(&Ask::get("/").field("te", "trailers"));
    assert_eq!(upstream.last().field("te").as_deref(), Some("trailers"));
}

#[test]
fn fields_of_the_upstreams_hop_do_not_reach_the_client() {
    let upstream = Upstream::script(|exchange| {
        exchange.reply(
            200,
            "Connection: X-Mine, close\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\n\
             Upgrade: h2c\r\nX-Kept: yes\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: scripted\r\n\
             Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n",
            b"ok",
        );
        exchange.close();
    });
    let gateway = plain(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let mut client = gateway.client();
    for answer in [client.get("/"), h2.get("/")] {
        assert_eq!(answer.status, 200);
        for name in [
            "x-mine",
            "keep-alive",
            "proxy-connection",
            "upgrade",
            "connection",
        ] {
            assert_eq!(answer.field(name), None, "{name}");
        }
        assert_eq!(answer.must("x-kept"), "yes");
        assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"], "lines are not joined");
        assert_eq!(answer.must("server"), "scripted");
        assert_eq!(answer.must("date"), "Mon, 01 Jan 2024 00:00:00 GMT");
        assert_eq!(answer.body, b"ok");
    }
    assert_eq!(
        client.get("/").status,
        200,
        "the client's connection outlives the upstream's"
    );
}

#[test]
fn end_to_end_fields_keep_their_bytes_and_their_order() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    let answer = gateway.ask(
        &Ask::get("/")
            .field("X-List", "one")
            .field("Accept", "*/*;q=0.1")
            .field("X-List", "two, three")
            .field("X-Bytes", b"\xc3\xa9\xff\t~")
            .field("X-Empty", "")
            .field("User-Agent", "raw/1")
            .field("Authorization", "Bearer abc")
            .field("Cookie", "a=1; b=2")
            .field("x-answer-X-Back", "\u{e9}"),
    );
    let seen = upstream.last();
    assert_eq!(seen.all("x-list"), ["one", "two, three"]);
    assert_eq!(seen.field("accept").as_deref(), Some("*/*;q=0.1"));
    let bytes = seen
        .fields
        .iter()
        .find(|(name, _)| name == "x-bytes")
        .map(|(_, value)| value.clone());
    assert_eq!(bytes.as_deref(), Some(&b"\xc3\xa9\xff\t~"[..]));
    assert_eq!(seen.field("x-empty").as_deref(), Some(""));
    assert_eq!(seen.field("user-agent").as_deref(), Some("raw/1"));
    assert_eq!(seen.field("authorization").as_deref(), Some("Bearer abc"));
    assert_eq!(seen.field("cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!(answer.must("x-back"), "\u{e9}");
    gateway.get("/bare");
    let bare = upstream.last();
    assert_eq!(
        (bare.field("user-agent"), bare.field("accept")),
        (None, None),
        "nothing is made up"
    );
}

#[test]
fn a_strangers_word_about_itself_is_replaced() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    for ask in [
        Ask::get("/").host("h.example:8080"),
        Ask::get("/")
            .host("h.example:8080")
            .field("X-Forwarded-For", "1.2.3.4")
            .field("X-Forwarded-For", "5.6.7.8, 9.9.9.9")
            .field("X-Forwarded-Proto", "https")
            .field("X-Forwarded-Host", "evil.example")
            .field("Forwarded", "for=1.2.3.4;host=evil.example"),
    ] {
        gateway.ask(&ask);
        let seen = upstream.last();
        assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(seen.all("x-forwarded-proto"), ["http"]);
        assert_eq!(seen.all("x-forwarded-host"), ["h.example:8080"]);
        let forwarded = seen.all("forwarded");
        assert_eq!(forwarded.len(), 1, "{forwarded:?}");
        let mut pairs: Vec<_> = forwarded[0]
            .split(';')
            .map(|pair| pair.trim().to_ascii_lowercase())
            .collect();
        pairs.retain(|pair| !pair.starts_with("by="));
        pairs.sort();
        assert_eq!(pairs, ["for=127.0.0.1", "host=\"h.example:8080\"", "proto=http"]);
        assert_eq!(
            seen.field("host").as_deref(),
            Some("h.example:8080"),
            "Host stays"
        );
    }
}

#[test]
fn a_trusted_proxys_word_is_added_to() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream);
    gateway.ask(
        &Ask::get("/")
            .host("inner.example")
            .field("X-Forwarded-For", "1.2.3.4")
            .field("X-Forwarded-For", "5.6.7.8")
            .field("X-Forwarded-Proto", "https")
            .field("X-Forwarded-Host", "outer.example")
            .field("Forwarded", "for=1.2.3.4;proto=https"),
    );
    let seen = upstream.last();
    assert_eq!(
        elements(&[seen.field("x-forwarded-for").unwrap()]),
        ["1.2.3.4", "5.6.7.8", "127.0.0.1"],
        "one line, the peer last"
    );
    assert!(seen.field("x-forwarded-proto").unwrap().starts_with("https"));
    assert!(
        seen.field("x-forwarded-host")
            .unwrap()
            .starts_with("outer.example")
    );
    let forwarded = elements(&seen.all("forwarded"));
    assert_eq!(forwarded.len(), 2, "{forwarded:?}");
    assert_eq!(forwarded[0], "for=1.2.3.4;proto=https");
    assert!(
        forwarded[1].to_ascii_lowercase().contains("for=127.0.0.1"),
        "{forwarded:?}"
    );
    gateway.get("/");
    assert_eq!(upstream.last().all("x-forwarded-for"), ["127.0.0.1"]);
}

#[test]
fn via_names_every_gateway_on_the_way() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    gateway.get("/");
    let via = elements(&upstream.last().all("via"));
    assert_eq!(via.len(), 1);
    assert!(via[0].starts_with("1.1 "), "{via:?}");
    gateway.ask(&Ask::get("/").field("Via", "1.0 fred, 1.1 barney"));
    let via = elements(&upstream.last().all("via"));
    assert_eq!(via.len(), 3, "{via:?}");
    assert_eq!(via[..2], ["1.0 fred", "1.1 barney"]);
    let mut h2 = H2::connect(gateway.addr());
    h2.get("/");
    let via = elements(&upstream.last().all("via"));
    assert!(via[0].starts_with("2 ") || via[0].starts_with("2.0 "), "{via:?}");
}

#[test]
fn http2_fields_are_written_as_http1_wants_them() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream);
    let mut h2 = H2::connect(gateway.addr());
    let answer = h2.ask(
        &Ask::get("/x?y=1")
            .host("h2.example")
            .field("cookie", "a=1")
            .field("cookie", "b=2")
            .field("x-kept", "yes")
            .field("cookie", "c=3"),
    );
    assert_eq!(answer.status, 200);
    let seen = upstream.last();
    assert!(seen.head.starts_with(b"GET /x?y=1 HTTP/1.1\r\n"), "{seen:?}");
    assert_eq!(seen.all("host"), ["h2.example"]);
    assert_eq!(seen.all("cookie"), ["a=1; b=2; c=3"]);
    assert_eq!(seen.all("x-forwarded-host"), ["h2.example"]);
    assert!(
        !seen.fields.iter().any(|(name, _)| name.starts_with(':')),
        "{seen:?}"
    );
}

#[test]
fn host_and_authority_are_one_or_the_request_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule(
        "r",
        "fixed-window",
        100,
        "1d",
        "key = [\"host\"]",
    )));
    let mut h2 = H2::connect(gateway.addr());
    let both = h2.ask(&Ask::get("/").host("a.example").field("host", "a.example"));
    assert_eq!(both.status, 200);
    assert_eq!(upstream.last().all("host"), ["a.example"]);
    let left = Limits::of(&both).remaining;
    let count = upstream.count();
    match h2.try_ask(&Ask::get("/").host("a.example").field("host", "b.example")) {
        Ok(answer) if answer.status == 400 => assert_eq!(upstream.count(), count),
        Ok(answer) => {
            assert_eq!(answer.status, 200);
            assert_eq!(upstream.last().all("host"), ["a.example"], ":authority wins");
            assert_eq!(Limits::of(&answer).remaining, left - 1);
        }
        Err(_) => assert_eq!(upstream.count(), count),
    }
}

#[test]
fn a_request_without_one_clear_host_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 100, "1d", "")));
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.send(head);
        let answer = client.answer();
        assert_eq!(answer.status, 400, "{head:?}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(
        Limits::of(&gateway.get("/")).remaining,
        99,
        "none of them was charged"
    );
}
