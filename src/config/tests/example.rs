//! The config at the root of the repository.

use super::parse_text;

pub(super) const EXAMPLE: &str = include_str!("../../../gateway.toml");
pub(super) const LATER: &str = "not supported yet";
/// Keys that are shown with an example, since they have no default, or one that depends on the machine.
const EXAMPLES: [&str; 9] = [
    "#workers",
    "#token",
    "#host",
    "#hash_key",
    "#snapshot",
    "#queue",
    "#username",
    "#password",
    "#webhook",
];
/// Keys that only this kind of store uses.
const FOR_REDIS: &str = "for kind = \"redis\"";
/// Of lines that say where else the servers are.
const INSTEAD: &str = "instead of shards";

#[test]
fn it_is_accepted_without_a_word() {
    let loaded = parse_text(EXAMPLE).unwrap();
    assert_eq!(loaded.report.to_string(), "");
    assert_eq!(
        loaded.render(false),
        "g.toml: 5 rules, 1 route, 1 upstream; no warnings"
    );
    assert_eq!(loaded.settings.rules.len(), 5);
}

/// Each line that is commented out, with what is to be put in its place; a table's header together with its keys.
pub(super) fn commented_out() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for paragraph in EXAMPLE.split("\n\n") {
        if paragraph.starts_with("#[") {
            let uncommented: Vec<&str> = paragraph.lines().map(|line| &line[1..]).collect();
            found.push((paragraph.to_owned(), uncommented.join("\n")));
            continue;
        }
        let key = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
        // With the line before: some keys are in several rules.
        for line in paragraph.lines().filter(key) {
            let uncommented = paragraph.replacen(line, &line[1..], 1);
            found.push((paragraph.to_owned(), uncommented));
        }
    }
    found
}

#[test]
fn what_is_commented_out_is_the_default_or_does_not_exist_yet() {
    let shown = |text: &str| format!("{:?}", parse_text(text).unwrap().settings);
    let (memory, redis) = (shown(EXAMPLE), shown(&example_on_redis()));
    let cases = commented_out();
    assert!(cases.len() > 40, "{}", cases.len());
    for (paragraph, uncommented) in cases {
        let text = EXAMPLE.replacen(&paragraph, &uncommented, 1);
        let line = differing(EXAMPLE, &text);
        let (text, plain) = match line.contains(FOR_REDIS) {
            true => (example_on_redis().replacen(line, &line[1..], 1), &redis),
            false => (text, &memory),
        };
        if line.starts_with("#ca ") {
            let text = text.replacen("redis://", "rediss://", 1);
            let told = parse_text(&text).unwrap_err().to_string();
            assert!(told.contains("cannot read \"/nonexistent/ca.pem\""), "{told}");
            continue;
        }
        if line.contains(INSTEAD) {
            let text = text.replacen("\nshards", "\n#shards", 1);
            assert_eq!(parse_text(&text).unwrap().report.to_string(), "", "{line}");
            continue;
        }
        match parse_text(&text) {
            Ok(loaded) => {
                assert!(!line.contains(LATER), "{line}");
                assert_eq!(loaded.report.to_string(), "", "{line}");
                if !EXAMPLES.iter().any(|example| line.starts_with(example)) {
                    assert_eq!(&format!("{:?}", loaded.settings), plain, "{line}");
                }
            }
            Err(report) => {
                assert!(line.contains(LATER), "{line}: {report}");
                let told: Vec<&str> = report
                    .findings()
                    .iter()
                    .map(|found| found.problem.as_str())
                    .collect();
                assert!(
                    matches!(told[..], [only] if only.ends_with(LATER)),
                    "{line}: {report}"
                );
            }
        }
    }
}

/// The example with the other kind of store.
pub(super) fn example_on_redis() -> String {
    let redis = EXAMPLE.replacen("#kind = \"memory\"", "kind = \"redis\"", 1);
    redis.replacen("#shards", "shards", 1)
}

/// The first line of `before` that `after` has otherwise.
pub(super) fn differing<'t>(before: &'t str, after: &str) -> &'t str {
    let mut lines = before.lines().zip(after.lines());
    lines
        .find(|(before, after)| before != after)
        .map(|(before, _)| before)
        .unwrap()
}
