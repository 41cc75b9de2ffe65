//! What is allowed and odd.

use super::{misjudged, parse_snippet, rule};
use crate::config::Severity;

#[test]
fn every_oddity_is_told_at_its_place() {
    let wrong = misjudged(include_str!("warnings.txt"));
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_warning_refuses_nothing() {
    let loaded = parse_snippet(&rule("refund = [\"client-abort\"]")).unwrap();
    assert_eq!(loaded.report.count(Severity::Warning), 1);
    let shown = loaded.render(false);
    assert!(shown.starts_with("warning: "), "{shown}");
    assert!(
        shown.ends_with("\n\ng.toml: 1 rule, 1 route, 1 upstream; 1 warning"),
        "{shown}"
    );
}
