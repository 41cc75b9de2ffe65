//! TOML as far as it can be read: all faults of the syntax, and the tree without the lines that have them.

use std::collections::HashSet;

use toml::de::{DeTable, Error};

use super::finding::{Finding, Severity};
use super::source::{Source, Span, lines};

/// Each round takes away at least one line; a file that needs more of them is not worth a closer look.
const ROUNDS: usize = 16;

/// What the parser says of a value that is nothing at all, too.
const UNQUOTED: &str = "string values must be quoted";
const NO_COMMA: &str = "missing comma between array elements";
const UNCLOSED: &str = "unclosed array";
const DUPLICATE: &str = "duplicate key";

/// A file as far as it is TOML.
pub(super) struct Readable {
    /// The file's text with the lines blanked that are no TOML, so that all places stay the same.
    pub(super) text: String,
    /// The lines that are blanked.
    pub(super) unread: String,
    /// What is wrong with them.
    pub(super) findings: Vec<Finding>,
}

/// Looks for faults of the syntax.
pub(super) fn readable(source: &Source) -> Readable {
    let mut errors = faults(&source.text);
    let mut readable = Readable {
        text: source.text.clone(),
        unread: String::new(),
        findings: told(&errors).map(|error| finding(source, error)).collect(),
    };
    for _ in 0..ROUNDS {
        if errors.is_empty() {
            return readable;
        }
        blank(source, &mut readable, &errors);
        errors = faults(&readable.text);
        let more = errors
            .iter()
            .filter(|error| sure(error))
            .map(|error| finding(source, error));
        readable.findings.extend(more);
    }
    Readable {
        text: String::new(),
        unread: source.text.clone(),
        ..readable
    }
}

fn faults(text: &str) -> Vec<Error> {
    DeTable::parse_recoverable(text).1
}

/// The errors worth telling: in a list that is never closed, the first, since all that follows is read as its elements.
fn told(errors: &[Error]) -> impl Iterator<Item = &Error> {
    let unclosed = errors.iter().any(|error| error.message().starts_with(UNCLOSED));
    let first = errors
        .iter()
        .filter(|error| unclosed && error.message().starts_with(NO_COMMA))
        .map(|error| span(error).start)
        .min();
    let sense = move |error: &&Error| first.is_none_or(|first| span(error).start <= first);
    errors.iter().filter(sense)
}

/// Whether an error that shows when other lines are blanked was there before: one of a key and its value alone, and not
/// what is left of a list or a text of several lines.
fn sure(error: &Error) -> bool {
    let message = error.message();
    let value = message.starts_with("invalid ") && !message.starts_with("invalid unquoted key");
    value || message.starts_with(UNQUOTED) || message.starts_with(DUPLICATE)
}

fn finding(source: &Source, error: &Error) -> Finding {
    let span = span(error);
    let (problem, expected) = match error.message().split_once(", expected ") {
        Some((problem, "nothing")) => (problem, None),
        Some((problem, expected)) => (problem, Some(expected)),
        None => (error.message(), None),
    };
    let (problem, hint) = match problem {
        UNQUOTED if span.start == span.end => ("the value is missing", Some("a value behind `=`".to_owned())),
        UNQUOTED => (
            "this is no value",
            Some("a text stands in quotes, like \"1m\"".to_owned()),
        ),
        NO_COMMA => (
            problem,
            Some("`,` between elements, or `]` behind the last".to_owned()),
        ),
        DUPLICATE => ("this key or table was there before", Some("each once".to_owned())),
        _ => (
            problem,
            expected.map(|expected| format!("expected {}", or(expected))),
        ),
    };
    Finding {
        severity: Severity::Error,
        file: source.name.clone(),
        place: Some(source.place(span)),
        problem: problem.to_owned(),
        hint,
    }
}

fn span(error: &Error) -> Span {
    error.span().map(Span::from).unwrap_or_default()
}

/// `a, b, c` with its last comma spoken.
fn or(expected: &str) -> String {
    match expected.rsplit_once(", ") {
        Some((first, last)) => format!("{first} or {last}"),
        None => expected.to_owned(),
    }
}

/// Blanks the lines that errors begin in; with a table's header also the keys under it, which would be another's.
fn blank(source: &Source, readable: &mut Readable, errors: &[Error]) {
    let last = readable.text.len().saturating_sub(1);
    let at_fault: HashSet<usize> = errors
        .iter()
        .map(|error| source.line(span(error).start.min(last)))
        .collect();
    let mut text = String::with_capacity(readable.text.len());
    let mut headless = false;
    for (start, line) in lines(&readable.text) {
        let at_fault = at_fault.contains(&source.line(start));
        if line.trim_start().starts_with('[') {
            headless = at_fault;
        }
        if !at_fault && !headless {
            text.push_str(line);
            continue;
        }
        readable.unread.push_str(line);
        for c in line.chars() {
            match c {
                '\n' | '\r' => text.push(c),
                _ => text.extend(std::iter::repeat_n(' ', c.len_utf8())),
            }
        }
    }
    readable.text = text;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_read() {
        let text = "a = 1\nb 2\n[x\nc = 3\n[y]\nd = é\r\ne = 5\n";
        let readable = readable(&Source::new("f", text));
        assert_eq!(readable.text, "a = 1\n   \n  \n     \n[y]\n      \r\ne = 5\n");
        assert_eq!(readable.text.len(), text.len());
        assert_eq!(readable.unread, "b 2\n[x\nc = 3\nd = é\r\n");
        let lines: Vec<usize> = readable
            .findings
            .iter()
            .filter_map(|finding| Some(finding.place?.line))
            .collect();
        assert_eq!(lines, [2, 3, 6]);
    }
}
