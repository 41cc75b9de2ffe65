//! The source tree keeps to its floors: lower modules never import higher ones, neighbours do not import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The floor of each module; a module may name those of lower floors and itself.
const FLOORS: [(&str, u8); 19] = [
    ("clock", 0),
    ("inbound", 0),
    ("telemetry", 0),
    ("limit", 1),
    ("tls", 1),
    ("identity", 2),
    ("rules", 3),
    ("store", 4),
    ("upstream", 4),
    ("decide", 5),
    ("proxy", 6),
    ("admin", 6),
    ("server", 6),
    ("config", 7),
    ("app", 8),
    ("cli", 9),
    ("lib", 10),
    ("main", 10),
    ("tollgate", 10),
];

const LONGEST_FILE: usize = 400;

struct Source {
    path: PathBuf,
    /// The module at the root that the file belongs to.
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap();
                if is_test(&path) {
                    continue;
                }
                let first = below.components().next().unwrap().as_os_str().to_string_lossy();
                found.push(Source {
                    module: first.trim_end_matches(".rs").to_owned(),
                    text: std::fs::read_to_string(&path).unwrap(),
                    path: below.to_owned(),
                });
            }
        }
    }
    assert!(found.len() > 10, "no sources");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Whether a file, or a folder above it, is declared as a module of tests.
fn is_test(path: &Path) -> bool {
    path.ancestors()
        .take_while(|path| !path.ends_with("src"))
        .any(|path| {
            let name = path.file_stem().unwrap().to_string_lossy();
            let folder = path.parent().unwrap();
            let heads = [
                folder.join("mod.rs"),
                folder.join("lib.rs"),
                folder.with_extension("rs"),
            ];
            heads
                .iter()
                .filter_map(|head| std::fs::read_to_string(head).ok())
                .any(|head| {
                    head.contains(&format!("#[cfg(test)]\nmod {name};"))
                        || head.contains(&format!("#[cfg(test)]\npub(crate) mod {name};"))
                })
        })
}

fn floor(module: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, floor)| *floor)
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Code without comments and doc comments; strings are left in.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| {
            let line = line.trim_start();
            if line.starts_with("//") { "" } else { line }
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// The modules that follow each `crate::`, also those in braces.
fn named_modules(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        // `$crate::` and `tollgate_crate::` are something else.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        names.extend(heads(&code[at + found.len()..]));
    }
    names
}

/// The first segments of a path, or of each path of a group in braces.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![word(path)];
    };
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut item = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(word(&std::mem::take(&mut item))),
            _ => {}
        }
        item.push(c);
        if c == ',' && depth == 0 {
            item.clear();
        }
    }
    heads.push(word(&item));
    heads.retain(|head| !head.is_empty());
    heads
}

#[test]
fn every_module_has_a_floor() {
    for source in sources() {
        assert!(
            floor(&source.module).is_some(),
            "{} is on no floor",
            source.path.display()
        );
    }
}

#[test]
fn lower_floors_do_not_know_higher_ones_and_neighbours_not_each_other() {
    let mut faults = Vec::new();
    for source in sources() {
        let own = floor(&source.module).unwrap_or(0);
        for name in named_modules(&code(&source.text)) {
            let Some(other) = floor(&name) else { continue };
            if name != source.module && other >= own {
                faults.push(format!(
                    "{} (floor {own}) names {name} (floor {other})",
                    source.path.display()
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_files_of_a_module_do_not_import_each_other_in_a_circle() {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        let name = |path: &Path| {
            let path = path.with_extension("");
            let path = path.to_string_lossy().replace('/', "::");
            path.trim_end_matches("::mod").to_owned()
        };
        let own = name(&source.path);
        let text = code(without_tests(&source.text));
        let parent = own
            .rsplit_once("::")
            .map_or(String::new(), |(parent, _)| parent.to_owned());
        let mut named = BTreeSet::new();
        // Siblings only: a module's head gathers its files, and they may use its types.
        for (at, found) in text.match_indices("super::") {
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == ':') {
                continue;
            }
            for head in heads(&text[at + found.len()..]) {
                named.insert(format!("{parent}::{head}"));
            }
        }
        if let Some((module, _)) = own.split_once("::") {
            let full = format!("crate::{module}::");
            for (at, found) in text.match_indices(&full) {
                for head in heads(&text[at + found.len()..]) {
                    named.insert(format!("{module}::{head}"));
                }
            }
        }
        named.remove(&own);
        if own.contains("::") {
            edges.insert(own, named);
        }
    }
    let mut circles = Vec::new();
    for start in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut open: Vec<_> = edges[start].iter().collect();
        while let Some(next) = open.pop() {
            if let (true, Some(more)) = (seen.insert(next), edges.get(next)) {
                open.extend(more);
            }
        }
        if seen.contains(start) {
            let known: Vec<_> = edges[start]
                .iter()
                .filter(|name| edges.contains_key(*name))
                .collect();
            circles.push(format!("{start} is in a circle; it imports {known:?}"));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

#[test]
fn files_are_short_and_nothing_is_left_to_do() {
    let mut faults = Vec::new();
    for source in sources() {
        let path = source.path.display();
        let lines = without_tests(&source.text).lines().count();
        if lines > LONGEST_FILE {
            faults.push(format!("{path} has {lines} lines without its tests"));
        }
        for (number, line) in source.text.lines().enumerate() {
            for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
                if line.contains(word) {
                    faults.push(format!("{path}:{}: {word}", number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn everything_from_above_is_imported_in_tests_only() {
    for source in sources() {
        assert!(
            !code(without_tests(&source.text)).contains("use super::*"),
            "{} imports all of its parent outside its tests",
            source.path.display()
        );
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    for source in sources() {
        assert!(
            source.text.starts_with("//!"),
            "{} does not begin with what it is for",
            source.path.display()
        );
    }
}

#[test]
fn imports_are_found_in_all_their_forms() {
    let code = "use crate::clock::Micros;\nuse crate::{limit::{Cost, Policy}, rules::Plan, tls};\nlet x = crate::store::new();";
    let found: Vec<_> = named_modules(code).into_iter().collect();
    assert_eq!(found, ["clock", "limit", "rules", "store", "tls"]);
}
