//! `[[rule]]`.

use super::identity;
use super::item::{At, Item, Word};
use super::limiter::{self, Limiter};
use super::matching::{self, ReadMatch};
use super::overrides;
use super::reader::Section;
use super::source::Span;
use super::words::{quoted, suggestion};
use crate::identity::{KeyPart, Settings};
use crate::limit::Kind;
use crate::rules::{Missing, OnOutage, REFUND_WORDS, RefundOn, Rule, Scope, Share};

const MISSING: [Word<Missing>; 3] = [
    ("share", Missing::Share),
    ("skip", Missing::Skip),
    ("reject", Missing::Reject),
];
const SCOPES: [Word<Scope>; 2] = [("store", Scope::Store), ("gateway", Scope::Gateway)];
const LATER: [&str; 1] = ["lease"];
const OUTAGES: [Word<OnOutage>; 3] = [
    ("local", OnOutage::Local(Share::HALF)),
    ("allow", OnOutage::Allow),
    ("deny", OnOutage::Deny),
];
const NAME: &str = "1 to 64 letters, digits, dots, underscores and hyphens, like \"per-user\"";
pub(super) const NAME_MOST: usize = 64;

/// A rule and where its parts are.
pub(super) struct ReadRule {
    pub(super) rule: Rule,
    pub(super) matches: ReadMatch,
    /// As many as the rule's key has parts.
    pub(super) key: Vec<Span>,
    pub(super) limit: Span,
    /// As many as the rule has outcomes to give back for; none if they are the default.
    pub(super) refund: Vec<Span>,
}

/// Reads all rules.
pub(super) fn rules(root: &Section<'_>, identity: &Settings) -> Vec<ReadRule> {
    let mut names: Vec<At<String>> = Vec::new();
    let mut rules = Vec::new();
    for section in root.sections("rule") {
        let name = name(&section);
        if let Some(name) = &name {
            if let Some(first) = names.iter().find(|other| other.value == name.value) {
                let line = section.notes.line(first.span);
                let problem = format!("the rule in line {line} is named {} too", quoted(&name.value));
                section
                    .notes
                    .error(name.span, problem, "a name of its own for each rule");
            }
            names.push(name.clone());
        }
        rules.extend(rule(&section, name, identity));
    }
    rules
}

fn rule(section: &Section<'_>, name: Option<At<String>>, identity: &Settings) -> Option<ReadRule> {
    let matches = matching::read(section);
    let key = section.required("key", "`key = [\"ip\"]`, or `key = []` for one bucket for all");
    let key = key.and_then(|item| identity::key(&item, matches.value.path.as_ref(), identity));
    let parts: Option<Vec<KeyPart>> = key
        .as_ref()
        .map(|parts| parts.iter().map(|part| part.value.clone()).collect());
    let missing = section.word("missing", &MISSING, &[], Missing::Share);
    let limiter = limiter::read(section);
    let overrides = overrides::read(section, &limiter, parts.as_deref());
    let refund = refund(section, &limiter);
    let scope = section.word("scope", &SCOPES, &[], Scope::Store);
    let on_outage = on_outage(
        section,
        scope == Scope::Gateway || !limiter.spec.kind.has_window(),
    );
    let dry_run = section.flag("dry_run", false);
    let visible = section.flag("visible", true);
    section.later(&LATER);
    section.finish();

    let (refund, refund_spans) = match refund {
        Some(refund) => refund.into_iter().map(|on| (on.value, on.span)).unzip(),
        None => (default_refund(limiter.spec.kind), Vec::new()),
    };
    Some(ReadRule {
        rule: Rule {
            name: name?.value,
            matches: matches.value.clone(),
            key: parts?,
            missing,
            policy: limiter.policy?,
            spec: limiter.spec,
            refund,
            overrides,
            scope,
            on_outage,
            dry_run,
            visible,
        },
        matches,
        key: key?.iter().map(|part| part.span).collect(),
        limit: Limiter::limit_span(section),
        refund: refund_spans,
    })
}

/// What is done without the store; `is_here` says that the rule is decided in this process in any case.
fn on_outage(section: &Section<'_>, is_here: bool) -> OnOutage {
    for key in ["on_outage", "outage_share"] {
        if let (true, Some(span)) = (is_here, section.key_span(key)) {
            let problem = format!("`{key}` says nothing here: the rule is decided in this process");
            section.notes.error(span, problem, "leave it out");
        }
    }
    let on_outage = section.word("on_outage", &OUTAGES, &[], OnOutage::default());
    let Some(item) = section.item("outage_share") else {
        return on_outage;
    };
    let OnOutage::Local(_) = on_outage else {
        let span = section.key_span("outage_share").unwrap_or(item.span);
        let problem = "`outage_share` is for `on_outage = \"local\"` alone";
        section.notes.error(span, problem, "leave it out");
        return on_outage;
    };
    item.share().map_or(on_outage, OnOutage::Local)
}

fn name(section: &Section<'_>) -> Option<At<String>> {
    let item = section.required("name", NAME)?;
    let name = item.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > NAME_MOST || !name.chars().all(plain) {
        item.refuse(format!("{} is no name for a rule", quoted(name)), NAME);
        return None;
    }
    Some(item.at(name.to_owned()))
}

fn default_refund(kind: Kind) -> Vec<RefundOn> {
    match kind.has_window() {
        true => vec![RefundOn::UpstreamError],
        false => Vec::new(),
    }
}

fn refund(section: &Section<'_>, limiter: &Limiter) -> Option<Vec<At<RefundOn>>> {
    let items = limiter::used(section, "refund", limiter.kind)?.list()?;
    Some(items.iter().filter_map(outcome).collect())
}

fn outcome(item: &Item<'_>) -> Option<At<RefundOn>> {
    let word = match item.is_integer() {
        true => item.integer::<u64>()?.to_string(),
        false => item.text()?.to_owned(),
    };
    let outcome = word.parse().ok();
    if outcome.is_none() {
        let problem = format!("{} is no outcome to give back for", quoted(&word));
        let hint = format!(
            "a status like 304, or a word; {}",
            suggestion(&word, &REFUND_WORDS)
        );
        item.refuse(problem, hint);
    }
    outcome.map(|outcome| item.at(outcome))
}
