//! Configs and what is said of them.

mod example;
mod faults;
mod files;
mod places;
mod schema;
mod values;
mod warnings;

use std::ffi::OsString;
use std::path::Path;

use super::{Loaded, Report, Surroundings, parse};

/// What a snippet needs to be a whole config, unless it has it.
const REST: &str = "\n[upstream.api]\ntargets = [\"http://127.0.0.1:3000\"]\n";
/// What stands for the first lines of a rule in a table of cases.
const RULE: &str = "(rule)\n";
/// What begins a line of what is said in a table of cases.
const SAID: &str = "> ";

fn variable(name: &str) -> Option<OsString> {
    match name {
        "TOLLGATE_ADMIN" | "TOLLGATE_HASH" | "REDIS_PASSWORD" => Some(OsString::from("s3cret")),
        "EMPTY" => Some(OsString::new()),
        _ => None,
    }
}

fn parse_text(text: &str) -> Result<Loaded, Report> {
    let surroundings = Surroundings {
        variable: &variable,
        folder: Path::new("/nonexistent"),
    };
    parse("g.toml", text, &surroundings)
}

fn parse_snippet(snippet: &str) -> Result<Loaded, Report> {
    let rest = if snippet.contains("upstream") { "" } else { REST };
    parse_text(&format!("{snippet}{rest}"))
}

/// A rule with these lines added, from line 6 on.
fn rule(lines: &str) -> String {
    format!("[[rule]]\nname = \"a\"\nkey = []\nlimit = 10\nwindow = \"1m\"\n{lines}\n")
}

/// What is said of a snippet, a line each, without the name of the file.
fn said(snippet: &str) -> Vec<String> {
    let report = match parse_snippet(snippet) {
        Ok(loaded) => loaded.report,
        Err(report) => report,
    };
    let line = |line: &str| line.strip_prefix("g.toml:").unwrap_or(line).to_owned();
    report.to_string().lines().map(line).collect()
}

/// Snippets, each followed by all that is to be said of it and an empty line; gives those of which something else is
/// said.
fn misjudged(cases: &str) -> String {
    let mut wrong = String::new();
    for case in cases.split("\n\n") {
        let (told, snippet): (Vec<&str>, Vec<&str>) =
            case.trim().lines().partition(|line| line.starts_with(SAID));
        let told: Vec<&str> = told.iter().map(|line| &line[SAID.len()..]).collect();
        let snippet = snippet.join("\n");
        let said = match snippet.strip_prefix(RULE) {
            Some(lines) => said(&rule(lines)),
            None => said(&snippet),
        };
        if said != told {
            wrong.push_str(&snippet);
            said.iter()
                .for_each(|line| wrong.push_str(&format!("\n{SAID}{line}")));
            wrong.push_str("\n\n");
        }
    }
    wrong
}
