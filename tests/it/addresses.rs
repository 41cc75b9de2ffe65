//! Which client address counts: the peer's, or one that a trusted proxy reports.

use crate::support::{Ask, Config, Gateway, Limits, Upstream, rule};

/// A gateway that believes proxies in 127.0.0.0/8 and 10.0.0.0/8.
fn trusting(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(
        &Config::new(upstream)
            .server(
                "workers = 1\ntrusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\", \"2001:db8:ffff::/48\"]",
            )
            .and(more)
            .and(&rule("r", "fixed-window", 1_000, "1d", "key = [\"ip\"]")),
    )
}

/// Whether a request counts as one from `address`, which the test has not used before.
#[track_caller]
fn counts_as(gateway: &Gateway, ask: &Ask, address: &str) -> bool {
    let plain = Ask::get("/").field("X-Forwarded-For", address);
    let before = Limits::of(&gateway.ask(&plain)).remaining;
    gateway.ask(ask);
    let after = Limits::of(&gateway.ask(&plain)).remaining;
    match before - after {
        2 => true,
        1 => false,
        other => panic!("{other} charges"),
    }
}

/// Whether a request counts as one from the peer itself.
#[track_caller]
fn counts_as_peer(gateway: &Gateway, ask: &Ask) -> bool {
    let before = Limits::of(&gateway.get("/")).remaining;
    gateway.ask(ask);
    let after = Limits::of(&gateway.get("/")).remaining;
    before - after == 2
}

fn via(chain: &str) -> Ask {
    Ask::get("/").field("X-Forwarded-For", chain)
}

#[test]
fn a_stranger_cannot_say_who_it_is() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &Config::new(&upstream)
            .server("workers = 1\ntrusted_proxies = [\"10.0.0.0/8\"]")
            .and(&rule("r", "fixed-window", 1_000, "1d", "key = [\"ip\"]")),
    );
    for (name, value) in [
        ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-For", "1.2.3.4, 10.0.0.1"),
        ("Forwarded", "for=1.2.3.4"),
        ("X-Real-IP", "1.2.3.4"),
        ("CF-Connecting-IP", "1.2.3.4"),
        ("True-Client-IP", "1.2.3.4"),
        ("X-Client-IP", "1.2.3.4"),
    ] {
        assert!(
            counts_as_peer(&gateway, &Ask::get("/").field(name, value)),
            "{name}: {value}"
        );
    }
}

#[test]
fn nobody_is_trusted_by_default() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&Config::new(&upstream).and(&rule("r", "fixed-window", 9, "1d", "key = [\"ip\"]")));
    assert!(counts_as_peer(&gateway, &via("1.2.3.4")));
}

#[test]
fn the_first_untrusted_address_from_the_right_is_the_client() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream, "");
    for (chain, client) in [
        ("1.0.0.1", "1.0.0.1"),
        ("9.9.9.9, 1.0.0.2", "1.0.0.2"),
        ("9.9.9.9, 1.0.0.3, 10.0.0.1", "1.0.0.3"),
        ("9.9.9.9,1.0.0.4,10.0.0.1,10.0.0.2", "1.0.0.4"),
        ("10.0.0.9, 1.0.0.5", "1.0.0.5"),
        ("junk, 1.0.0.6", "1.0.0.6"),
        ("unknown, , 1.0.0.7, 10.0.0.1", "1.0.0.7"),
        ("10.0.0.7, 10.0.0.8", "10.0.0.7"),
    ] {
        assert!(counts_as(&gateway, &via(chain), client), "{chain} is {client}");
    }
}

#[test]
fn several_lines_are_one_list() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream, "");
    let two = via("9.9.9.9").field("X-Forwarded-For", "1.1.0.1, 10.0.0.1");
    assert!(counts_as(&gateway, &two, "1.1.0.1"));
    let other = via("1.1.0.2").field("X-Forwarded-For", "10.0.0.1");
    assert!(counts_as(&gateway, &other, "1.1.0.2"));
    let long = vec!["9.9.9.9"; 400].join(",") + ",1.1.0.3";
    assert!(counts_as(&gateway, &via(&long), "1.1.0.3"));
}

#[test]
fn ports_and_brackets_do_not_make_another_client() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream, "");
    for (written, client) in [
        ("1.2.0.1:5678", "1.2.0.1"),
        ("1.2.0.1:5679", "1.2.0.1"),
        ("  1.2.0.2  ", "1.2.0.2"),
        ("[2001:db8:1::1]:443", "2001:db8:1::1"),
        ("[2001:db8:2::1]", "2001:db8:2::1"),
        ("2001:DB8:3:0:0:0:0:1", "2001:db8:3::1"),
        ("::ffff:1.2.0.3", "1.2.0.3"),
    ] {
        assert!(
            counts_as(&gateway, &via(written), client),
            "{written} is {client}"
        );
    }
}

#[test]
fn an_entry_that_is_no_address_leaves_the_peer() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream, "");
    for chain in [
        "unknown",
        "1.2.3",
        "01.2.3.4.5",
        "1.2.3.4, nonsense",
        "1.2.3.4, nonsense, 10.0.0.1",
        "\"1.2.3.4",
        "_hidden",
        "1.2.3.4:port",
    ] {
        assert!(counts_as_peer(&gateway, &via(chain)), "{chain}");
    }
}

#[test]
fn forwarded_is_read_where_there_is_no_x_forwarded_for() {
    let upstream = Upstream::start();
    let gateway = trusting(&upstream, "");
    let forwarded = |value: &str| Ask::get("/").field("Forwarded", value);
    for (value, client) in [
        ("for=1.3.0.1", "1.3.0.1"),
        ("for=9.9.9.9, for=1.3.0.2;proto=https, for=10.0.0.1", "1.3.0.2"),
        ("For=\"[2001:db8:4::17]:4711\"", "2001:db8:4::1"),
        ("by=9.9.9.9;FOR=\"1.3.0.3:80\";host=\"a,b;c\"", "1.3.0.3"),
        ("for=1.3.0.4;host=\"a, for=9.9.9.9\"", "1.3.0.4"),
        ("for=1.3.0.8;host=\"\\\", for=9.9.9.9;\"", "1.3.0.8"),
    ] {
        assert!(
            counts_as(&gateway, &forwarded(value), client),
            "{value} is {client}"
        );
    }
    let lines = forwarded("for=9.9.9.9").field("Forwarded", "for=1.3.0.5");
    assert!(counts_as(&gateway, &lines, "1.3.0.5"));
    let both = forwarded("for=9.9.9.9").field("X-Forwarded-For", "1.3.0.6");
    assert!(counts_as(&gateway, &both, "1.3.0.6"), "X-Forwarded-For wins");
    for value in [
        "for=unknown",
        "for=_secret",
        "for=",
        "=;=",
        "proto=https",
        "for=\"1.3.0.7",
    ] {
        assert!(counts_as_peer(&gateway, &forwarded(value)), "{value}");
    }
}

#[test]
fn an_ipv6_client_is_its_network() {
    let upstream = Upstream::start();
    for (more, prefix) in [
        ("", 64),
        ("[identity]\nipv6_prefix = 48\n", 48),
        ("[identity]\nipv6_prefix = 128\n", 128),
    ] {
        let gateway = trusting(&upstream, more);
        for (other, shared) in [
            ("2001:db8:1:1::2", prefix <= 64),
            ("2001:db8:1:1:ffff:ffff:ffff:ffff", prefix <= 64),
            ("2001:db8:1:2::1", prefix <= 48),
            ("2001:db8:2:1::1", false),
        ] {
            assert_eq!(
                counts_as(&gateway, &via(other), "2001:db8:1:1::1"),
                shared,
                "{other} with /{prefix}"
            );
        }
    }
}
