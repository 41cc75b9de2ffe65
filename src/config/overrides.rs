//! `override` of a rule: callers with numbers of their own.

use super::item::Item;
use super::limiter::Limiter;
use super::reader::Section;
use super::server::network;
use super::words::{quoted, suggestion};
use crate::identity::{KeyPart, Source};
use crate::rules::{Allowance, Override, Wanted};

const ANY: &str = "*";
pub(super) const UNLIMITED: &str = "unlimited";
pub(super) const BLOCKED: &str = "blocked";
const LIMIT: &str = "an integer, \"unlimited\" or \"blocked\"";
const ADDRESS: &str = "an address, a CIDR like \"10.0.0.0/8\", or \"*\"";

/// Reads `override`. `parts` is `None` if the rule's key is at fault itself.
pub(super) fn read(rule: &Section<'_>, limiter: &Limiter, parts: Option<&[KeyPart]>) -> Vec<Override> {
    let items = rule.list("override").unwrap_or_default();
    let read = |item: &Item<'_>| one(&Section::inline(item)?, limiter, parts);
    items.iter().filter_map(read).collect()
}

fn one(section: &Section<'_>, limiter: &Limiter, parts: Option<&[KeyPart]>) -> Option<Override> {
    let key = section.required(
        "key",
        "the caller's key: a text, or a list with a text for each part",
    );
    let key = key.and_then(|item| wanted(&item, parts?));
    let allowance = allowance(section, limiter);
    section.finish();
    Some(Override {
        key: key?,
        allowance: allowance?,
    })
}

fn wanted(item: &Item<'_>, parts: &[KeyPart]) -> Option<Vec<Wanted>> {
    let list = match item.is_list() {
        true => item.list()?,
        false => {
            if !item.is_text() {
                return item.wrong_type("a text or a list", "\"acme\"");
            }
            Vec::new()
        }
    };
    let items: Vec<&Item<'_>> = match item.is_list() {
        true => list.iter().collect(),
        false => vec![item],
    };
    if items.len() != parts.len() {
        let problem = format!(
            "the key has {}, and the rule's {}",
            count(items.len()),
            count(parts.len())
        );
        item.refuse(problem, "a text for each part of the rule's `key`, \"*\" for any");
        return None;
    }
    let wanted: Vec<Option<Wanted>> = items
        .iter()
        .zip(parts)
        .map(|(item, part)| wanted_part(item, part))
        .collect();
    wanted.into_iter().collect()
}

fn count(parts: usize) -> String {
    match parts {
        1 => "1 part".to_owned(),
        _ => format!("{parts} parts"),
    }
}

fn wanted_part(item: &Item<'_>, part: &KeyPart) -> Option<Wanted> {
    let text = item.text()?;
    if text == ANY {
        return Some(Wanted::Any);
    }
    if !part.alternatives.contains(&Source::Ip) {
        return Some(Wanted::Text(text.to_owned()));
    }
    match network(text) {
        Some(network) => Some(Wanted::Net(network)),
        None if part.alternatives.len() > 1 => Some(Wanted::Text(text.to_owned())),
        None => {
            item.refuse(format!("{} is not an address", quoted(text)), ADDRESS);
            None
        }
    }
}

fn allowance(section: &Section<'_>, limiter: &Limiter) -> Option<Allowance> {
    let limit = section.required("limit", LIMIT);
    let burst = limiter.burst(section);
    let limit = limit?;
    if limit.is_integer() {
        let policy = limiter.overridden(section, limit.integer(), burst)?;
        return Some(Allowance::Limit(policy));
    }
    if !limit.is_text() {
        return limit.wrong_type(LIMIT, "1000");
    }
    let (allowance, who) = match limit.text()? {
        UNLIMITED => (Allowance::Unlimited, "a caller without a limit"),
        BLOCKED => (Allowance::Blocked, "a blocked caller"),
        word => {
            let known = suggestion(word, &[UNLIMITED, BLOCKED]);
            limit.refuse(
                format!("{} is not a limit", quoted(word)),
                format!("an integer, or a word; {known}"),
            );
            return None;
        }
    };
    if matches!(burst, Ok(Some(_))) {
        let span = section.key_span("burst").unwrap_or(section.header);
        let problem = format!("{who} has no burst");
        section.notes.error(span, problem, "leave it out");
    }
    Some(allowance)
}
