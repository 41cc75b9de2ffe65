//! Where findings are, in files of all kinds; and that no text is too much.

use proptest::prelude::*;

use super::{parse_text, said};
use crate::config::{Report, Severity};

fn report(text: &str) -> Report {
    match parse_text(text) {
        Ok(loaded) => loaded.report,
        Err(report) => report,
    }
}

#[test]
fn columns_count_characters() {
    for (text, place) in [
        ("[log]\nlevel = \"x\"", "2:9"),
        ("\u{feff}log.level = \"x\"", "1:13"),
        ("[log]\r\n\r\nlevel = \"x\"\r\n", "3:9"),
        ("[log]\n\tlevel\t=\t\"x\"", "2:10"),
        ("[log]\nformat = \"text\"#é€𝄞\nlevel = \"x\"", "3:9"),
        ("log = { \"lével€𝄞\" = 1 }", "1:9"),
        ("log = { format = \"é€𝄞\", level = 1 }", "1:33"),
        ("[headers]\nsend = [\n  \"github\",\n  \"é\",\n]", "4:3"),
        ("[log]\nlevel = \"\"\"\nx\"\"\"", "2:9"),
        ("[log]\nlevel = ", "2:9"),
    ] {
        let said = said(text);
        let of_interest = said.last().unwrap();
        assert!(
            of_interest.starts_with(&format!("{place}: error: ")),
            "{text:?}: {said:?}"
        );
    }
}

#[test]
fn findings_are_shown_under_their_line() {
    let text = "[server]\r\nlisten = [\"[::1]:80\"]\r\n\tworkers = \"é\" # ten\r\n";
    let shown = report(&format!("{text}{}", super::REST)).render(false);
    assert_eq!(
        shown,
        "\
error: `workers` must be an integer, not a text
 --> g.toml:3:12
  |
3 |     workers = \"é\" # ten
  |               ^^^
  |
  = help: write it like `workers = 100`

g.toml: 1 error"
    );
    let coloured = report("upstream = 1").render(true);
    assert!(coloured.contains("\u{1b}["), "{coloured}");
    assert!(!report("upstream = 1").render(false).contains('\u{1b}'));
}

#[test]
fn secrets_are_never_shown() {
    for text in [
        "admin = { token = \"s3cret\", bogus = 1 }",
        "admin = { token = \"a s3cret\" }",
        "[admin]\ntoken = \"s3cret",
        "[admin]\ntoken = s3cret",
        "[admin]\ntoken = [\"s3cret\"]",
        "[admin]\ntoken = { is = \"s3cret\" }",
        "[admin]\n\"token\" = '''\ns3cret'''\ntoken = \"s3cret\"",
        "[admin]\ntoken = \"s3cret\"\nlisten = \"0.0.0.0:1\"\nx = 1",
        "store = { hash_key = \"s3cret\", kind = \"file\" }",
        "store = { password = \"s3cret\", kind = \"file\" }",
        "store = { shards = [\"redis://:s3cret@h\"] }",
        "[store]\nhash_key = \"s3cret\" kind = 1",
        "[upstream.a]\ntargets = [\"http://u:s3cret@h\"]",
        "alarm = { webhook = \"https://hooks/s3cret\" }",
        "[admin]\ntoken = \"env:TOLLGATE_ADMIN\"\nx = 1",
    ] {
        let report = report(text);
        for shown in [report.to_string(), report.render(false), format!("{report:?}")] {
            assert!(shown.contains("error") || shown.contains("Error"), "{shown}");
            assert!(!shown.contains("s3cret"), "{text}\n{shown}");
        }
    }
    let loaded = super::parse_snippet("admin.token = \"s3cret\"\nstore.hash_key = \"s3cret\"").unwrap();
    assert_eq!(loaded.settings.admin.token.as_deref(), Some("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
}

const KEYS: [&str; 17] = [
    "listen",
    "limit",
    "window",
    "key",
    "match",
    "override",
    "burst",
    "name",
    "targets",
    "host",
    "path",
    "user",
    "send",
    "refund",
    "token",
    "é",
    "algorithm",
];
const VALUES: [&str; 26] = [
    "1",
    "-1",
    "\"1m\"",
    "[]",
    "[\"ip\"]",
    "{}",
    "[{}]",
    "\"",
    "[",
    "true",
    "\"*\"",
    "\"gcra\"",
    "''",
    "\"é\"",
    "\"env:\"",
    "\"env:a=b\"",
    "[\"http://\"]",
    "[[]]",
    "{ path = \"/{\" }",
    "18446744073709551615",
    "0x10",
    "\"18446744073709551615d\"",
    "[{ key = [], limit = 1 }]",
    "[\"http://h\"]",
    "\"{\"",
    "\"/{*}\"",
];
const HEADERS: [&str; 12] = [
    "[server]",
    "[[rule]]",
    "[upstream.a]",
    "[[route]]",
    "[identity]",
    "[admin]",
    "[headers]",
    "[",
    "[[",
    "[rule]",
    "[store]",
    "[upstream]",
];

#[test]
fn a_file_of_another_kind_is_refused_in_no_time() {
    let log = "10.0.0.1 - - [01/Jan/2024] \"GET / HTTP/1.1\" 200 = 5x [[\n".repeat(20_000);
    let report = report(&log);
    assert!(report.count(Severity::Error) >= 20_000);
    assert_eq!(report.findings().last().unwrap().place.unwrap().line, 20_000);
}

/// Texts that get past the parser now and then.
fn nearly_toml() -> impl Strategy<Value = String> {
    let key = prop::sample::select(&KEYS);
    let value = prop::sample::select(&VALUES);
    let header = prop::sample::select(&HEADERS);
    let line = prop_oneof![
        3 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        1 => header.prop_map(|header| header.to_owned()),
        1 => "\\PC{0,12}",
    ];
    prop::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_is_too_much(text in prop_oneof![any::<String>(), nearly_toml()]) {
        match parse_text(&text) {
            Ok(loaded) => prop_assert_eq!(loaded.report.count(Severity::Error), 0),
            Err(report) => {
                prop_assert!(report.count(Severity::Error) > 0);
                for finding in report.findings() {
                    let place = finding.place.unwrap();
                    prop_assert!(place.line <= text.split('\n').count() && place.column >= 1);
                    let shown = finding.to_string();
                    prop_assert!(!shown.chars().any(char::is_control), "{:?}", shown);
                }
                let shown = report.render(false);
                prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{:?}", shown);
            }
        }
    }
}
