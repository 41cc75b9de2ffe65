//! A fault of every kind.

use super::{misjudged, parse_snippet};

#[test]
fn every_fault_is_told_at_its_place() {
    let wrong = misjudged(include_str!("faults.txt"));
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn all_faults_are_told_at_once() {
    let text = "\
[server]
lisen = []
[server.timeouts]
idle = 5
[store]
kind = \"redis\"
[[rule]]
name = \"a\"
limit = 0
window = \"1m\"
key = [\"user\", \"ipp\"]
algorithm = \"fixed\"
[[rule]]
name = \"a\"
limit = 1
key = []
window = \"1w\"
[[route]]
upstream = \"b\"
[upstream.api]
targets = [\"ftp://x\"]
[log]
level = loud
";
    let report = parse_snippet(text).unwrap_err();
    let places: Vec<(usize, usize)> = report
        .findings()
        .iter()
        .map(|finding| finding.place.map(|place| (place.line, place.column)).unwrap())
        .collect();
    assert_eq!(
        places,
        [
            (2, 1),
            (4, 8),
            (5, 1),
            (9, 9),
            (11, 8),
            (11, 16),
            (12, 13),
            (14, 8),
            (17, 10),
            (19, 12),
            (21, 12),
            (23, 9),
        ],
        "{report}"
    );
}

#[test]
fn what_could_not_be_read_is_not_missed() {
    let text = "\
[[rule]]
name = \"a\"
key = [\"user\"]
limit = 5x
window \"1m\"
[identity
user = [\"header:x-user\"]
[upstream.a]
targets = [
  \"http://h\"
  http://h,
]
[[route]]
upstream = \"b\"
";
    let report = parse_snippet(text).unwrap_err();
    let lines: Vec<usize> = report
        .findings()
        .iter()
        .filter_map(|finding| Some(finding.place?.line))
        .collect();
    assert_eq!(lines, [4, 5, 6, 11, 14], "{report}");
    let text = text.replace("window \"1m\"\n", "");
    let report = parse_snippet(&text).unwrap_err().to_string();
    assert!(
        report.starts_with("g.toml:1:1: error: `window` is missing in [[rule]]"),
        "{report}"
    );
}
