//! `match` of a rule: which requests it is for.

use http::Method;

use super::item::Item;
use super::reader::Section;
use super::source::Span;
use super::upstream::{host, path};
use super::words::quoted;
use crate::rules::Match;

const STANDARD: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// A [`Match`] and where its parts are.
#[derive(Default)]
pub(super) struct ReadMatch {
    pub(super) value: Match,
    pub(super) path: Span,
    pub(super) host: Span,
    pub(super) methods: Span,
    /// As many as `value.not_path` has patterns.
    pub(super) not_path: Vec<Span>,
}

/// Reads `match`; nothing in it means every request.
pub(super) fn read(rule: &Section<'_>) -> ReadMatch {
    let Some(section) = rule.item("match").and_then(|item| Section::inline(&item)) else {
        return ReadMatch::default();
    };
    let path_item = section.item("path");
    let host_item = section.item("host");
    let methods = section.item("methods");
    let not_path: Vec<_> = section
        .list("not_path")
        .unwrap_or_default()
        .iter()
        .filter_map(|item| Some((path(item)?, item.span)))
        .collect();
    let not_methods = section.item("not_methods");
    section.finish();
    let span = |item: &Option<Item<'_>>| item.as_ref().map_or(section.header, |item| item.span);
    let (path_span, host_span, methods_span) = (span(&path_item), span(&host_item), span(&methods));
    let (not_path, not_path_spans) = not_path.into_iter().unzip();
    ReadMatch {
        value: Match {
            path: path_item.and_then(|item| path(&item)),
            host: host_item.and_then(|item| host(&item)),
            methods: methods.map(|item| list(&item)).unwrap_or_default(),
            not_path,
            not_methods: not_methods.map(|item| list(&item)).unwrap_or_default(),
        },
        path: path_span,
        host: host_span,
        methods: methods_span,
        not_path: not_path_spans,
    }
}

fn list(item: &Item<'_>) -> Vec<Method> {
    let items = item.list().unwrap_or_default();
    items.iter().filter_map(method).collect()
}

fn method(item: &Item<'_>) -> Option<Method> {
    let text = item.text()?;
    let upper = text.to_ascii_uppercase();
    if upper != text && STANDARD.contains(&upper.as_str()) {
        let problem = format!("no request has the method {}: case matters", quoted(text));
        item.refuse(problem, format!("\"{upper}\""));
        return None;
    }
    let method = Method::from_bytes(text.as_bytes()).ok();
    if method.is_none() {
        item.refuse(format!("{} is not a method", quoted(text)), "like \"GET\"");
    }
    method
}
