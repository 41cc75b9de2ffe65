//! `[identity]`, and the key parts of a rule.

use ipnet::IpNet;

use super::item::{At, Item};
use super::reader::Section;
use super::words::{quoted, suggestion};
use crate::identity::{KeyPart, SOURCES, Settings, Source, SourceError};
use crate::rules::PathPattern;

/// Words that a part will begin with.
const LATER: [&str; 2] = ["jwt:", "cert:"];
const USER: &str = "user";

/// Reads `[identity]`.
pub(super) fn identity(root: &Section<'_>, trusted_proxies: Vec<IpNet>) -> Settings {
    let identity = root.section("identity");
    let items = identity.list(USER).unwrap_or_default();
    let user = items.iter().filter_map(user_source).collect();
    let ipv6_prefix = identity.number("ipv6_prefix", Settings::default().ipv6_prefix.into(), 1, 128);
    identity.finish();
    Settings {
        trusted_proxies,
        user,
        ipv6_prefix: u8::try_from(ipv6_prefix).unwrap_or(128),
    }
}

fn user_source(item: &Item<'_>) -> Option<Source> {
    let text = item.text()?;
    match text.parse() {
        Ok(Source::User) => {
            item.refuse("`user` cannot be made of itself", "like \"header:x-api-key\"");
            None
        }
        Ok(Source::Path(_)) => {
            let problem = "a segment is captured by the pattern of one rule, and names no user";
            item.refuse(problem, format!("{} in the key of that rule", quoted(text)));
            None
        }
        Ok(source) => Some(source),
        Err(_) if text.contains('|') => {
            let problem = format!("{} is more than one source", quoted(text));
            item.refuse(problem, "an element for each: the first that is present counts");
            None
        }
        Err(error) => {
            refuse(item, text, &error);
            None
        }
    }
}

/// The parts of a rule's key, each with its place. `path` is the pattern of the rule itself.
pub(super) fn key(
    item: &Item<'_>,
    path: Option<&PathPattern>,
    identity: &Settings,
) -> Option<Vec<At<KeyPart>>> {
    let parts = item.list()?;
    let read = |item: &Item<'_>| {
        let part = part(item)?;
        for source in &part.alternatives {
            usable(item, source, path, identity);
        }
        Some(item.at(part))
    };
    let parts: Vec<Option<_>> = parts.iter().map(read).collect();
    parts.into_iter().collect()
}

fn part(item: &Item<'_>) -> Option<KeyPart> {
    let text = item.text()?;
    text.parse().inspect_err(|error| refuse(item, text, error)).ok()
}

/// Refuses a source that nothing stands behind.
fn usable(item: &Item<'_>, source: &Source, path: Option<&PathPattern>, identity: &Settings) {
    match source {
        Source::User if identity.user.is_empty() => {
            let problem = "the key part `user` needs `user` in [identity]";
            item.notes.absent(
                USER,
                item.span,
                problem,
                "`user = [\"header:x-api-key\"]` in [identity]",
            );
        }
        Source::Path(name) if !path.is_some_and(|path| path.names().any(|known| known == name)) => {
            let problem = match path {
                Some(path) => format!("{} captures no {}", quoted(path.text()), quoted(name)),
                None => format!("no `path` in the `match` of this rule captures {}", quoted(name)),
            };
            let hint = format!("`match = {{ path = \"/…/{{{}}}\" }}`", name.escape_debug());
            item.notes.absent(name, item.span, problem, hint);
        }
        _ => {}
    }
}

fn refuse(item: &Item<'_>, text: &str, error: &SourceError) {
    let later = |word: &str| LATER.iter().any(|later| word.trim().starts_with(later));
    match error {
        SourceError::Unknown(word) if later(word) => {
            item.refuse(
                format!("the key part {} is not supported yet", quoted(word)),
                "leave it out",
            );
        }
        SourceError::Unknown(word) => {
            item.refuse(
                format!("unknown key part {}", quoted(word)),
                suggestion(word, &SOURCES),
            );
        }
        SourceError::FieldName(name) => {
            let problem = format!("{} is not a header field name", quoted(name));
            item.refuse(problem, "like \"header:x-api-key\"");
        }
        SourceError::NoName(word) => {
            item.refuse(
                format!("{} lacks the name behind \"{word}:\"", quoted(text)),
                format!("\"{word}:NAME\""),
            );
        }
    }
}
