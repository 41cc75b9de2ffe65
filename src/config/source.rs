//! The text of a config file, and where a byte is in it.

use std::ops::Range;

/// A piece of a config file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Its first byte.
    pub start: usize,
    /// The byte behind its last.
    pub end: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// Where a finding is, for people and for editors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In bytes, not counting a byte order mark.
    pub span: Span,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

/// A config file's name and text. There is no `Debug`: the text may hold secrets.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl Source {
    /// A byte order mark is dropped: it is in no column.
    pub(super) fn new(name: &str, text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let starts = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self {
            name: name.to_owned(),
            lines: std::iter::once(0).chain(starts).collect(),
            text,
        }
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|&start| start <= at)
    }

    pub(super) fn place(&self, span: Span) -> Place {
        let start = boundary(&self.text, span.start);
        let line = self.line(start);
        let line_start = self.lines.get(line - 1).copied().unwrap_or_default();
        Place {
            span,
            line,
            column: self.text[line_start..start].chars().count() + 1,
        }
    }

    /// The text with `secrets` covered up, and whatever else follows the name of a secret key: a file that is not
    /// TOML has no values to go by. Every byte stays where it is.
    pub(super) fn without(&self, secrets: &[Span]) -> String {
        let mut covered = secrets.to_vec();
        for (start, line) in lines(&self.text) {
            covered.extend(loose_secrets(line).chain(passwords(line)).map(|span| Span {
                start: start + span.start,
                end: start + span.end,
            }));
        }
        covered.sort_unstable();
        let mut spans = covered.iter().peekable();
        let mut text = String::with_capacity(self.text.len());
        for (at, c) in self.text.char_indices() {
            while spans.next_if(|span| span.end <= at).is_some() {}
            let cover = spans.peek().is_some_and(|span| span.start <= at);
            text.push(if cover { cover_up(c) } else { c });
        }
        text
    }
}

/// The keys whose values are secrets, also those that are refused.
const SECRET_KEYS: [&str; 4] = ["token", "hash_key", "password", "webhook"];

/// The last place in a text, at `at` or before, that is not inside a character.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The lines of a text and where each begins, with their ends.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    text.split_inclusive('\n').map(move |line| {
        let at = start;
        start += line.len();
        (at, line)
    })
}

/// What follows `token =` in a line, unless it only names a place that holds the secret.
fn loose_secrets(line: &str) -> impl Iterator<Item = Span> {
    SECRET_KEYS.iter().flat_map(move |key| {
        line.match_indices(key).filter_map(move |(at, _)| {
            let behind = &line[at + key.len()..];
            let rest = behind.trim_start_matches(['"', '\'', ' ', '\t']);
            let value = rest.strip_prefix('=')?.trim_start_matches(['=', ' ', '\t']);
            let bare = value.trim_start_matches(['"', '\'']);
            if bare.starts_with("env:") || bare.starts_with("file:") {
                return None;
            }
            let start = line.len() - value.len();
            let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
            let closed = quote.and_then(|quote| value[1..].find(quote));
            let length = match closed {
                Some(length) if length > 0 => length + 2,
                _ => value.len(),
            };
            Some(Span {
                start,
                end: start + length,
            })
        })
    })
}

/// What stands before the host in a URL of a line.
fn passwords(line: &str) -> impl Iterator<Item = Span> {
    line.match_indices("://").filter_map(|(at, slashes)| {
        let start = at + slashes.len();
        let authority = line[start..].split(['/', '"', '\'', ' ', '\t']).next()?;
        let end = start + authority.rfind('@')?;
        Some(Span { start, end })
    })
}

/// A character of the same length that tells nothing.
fn cover_up(c: char) -> char {
    match c {
        '\n' | '\r' => c,
        _ => match c.len_utf8() {
            1 => '*',
            2 => '·',
            3 => '•',
            _ => '𝄀',
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters() {
        let source = Source::new("f", "\u{feff}a = 1\r\n\té€ = \"𝄞\" # x\n");
        for (start, line, column) in [
            (0, 1, 1),
            (4, 1, 5),
            (7, 2, 1),
            (8, 2, 2),
            (13, 2, 4),
            (14, 2, 5),
            (999, 3, 1),
        ] {
            let place = source.place(Span { start, end: start });
            assert_eq!((place.line, place.column), (line, column), "byte {start}");
        }
    }

    #[test]
    fn secrets_are_covered_wherever_they_are() {
        for (text, covered) in [
            ("token = \"s3cret\"\n", "token = ********\n"),
            ("token = 's3' # é\n", "token = **** # é\n"),
            ("token = \"s3cret", "token = *******"),
            ("a = { token = \"s3\", b = 1 }", "a = { token = ****, b = 1 }"),
            ("\"token\" == s3cr€t", "\"token\" == ****•*"),
            ("token = \"env:TOKEN\"", "token = \"env:TOKEN\""),
            ("tokens are good", "tokens are good"),
            (
                "a = [\"http://u:p@h\", \"http://h\"]",
                "a = [\"http://***@h\", \"http://h\"]",
            ),
        ] {
            assert_eq!(Source::new("f", text).without(&[]), covered);
        }
        let text = "token = \"\"\"\ns3cret\"\"\"\nb = 1";
        let covered = Source::new("f", text).without(&[Span { start: 8, end: 21 }]);
        assert_eq!(covered, "token = ***\n*********\nb = 1");
    }
}
