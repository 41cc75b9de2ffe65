//! An explanation as people read it.

use std::fmt;
use std::time::Duration;

use crate::app::Explanation;
use crate::clock::Micros;
use crate::config::{Settings, show_duration};
use crate::identity::{Found, Named};
use crate::limit::Policy;
use crate::rules::{Charge, Exempt, Explained, Finding, Match, Mismatch, Rule, Scope};

/// An explanation, and what it is about.
pub(super) struct Shown<'a> {
    pub(super) title: &'a str,
    pub(super) settings: &'a Settings,
    pub(super) explanation: &'a Explanation,
    pub(super) colour: bool,
}

#[derive(Clone, Copy)]
enum Ink {
    Bold,
    Good,
    Faint,
    Bad,
}

/// Columns of the words before a value.
const WORD: usize = 9;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = &self.explanation.explained;
        writeln!(f, "{}", self.ink(Ink::Bold, self.title))?;
        let client = format!("{} ({})", told.caller.client, self.found());
        self.line(f, "client", &client)?;
        match told.route.and_then(|place| self.settings.proxy.routes.get(place)) {
            Some(route) => {
                let host = route.host.as_ref().map_or("", |host| host.text());
                let to = format!("{host}{} to upstream {}", route.path.text(), route.upstream);
                self.line(f, "route", &to)?;
            }
            None => match &told.refused {
                Some((status, _)) if status.as_u16() == 404 => self.line(f, "route", "no route (404)")?,
                _ => self.line(f, "route", "not asked for")?,
            },
        }
        for rule in &told.rules {
            self.rule(f, rule)?;
        }
        self.answer(f)
    }
}

impl Shown<'_> {
    fn ink(&self, ink: Ink, text: &str) -> String {
        let code = match ink {
            _ if !self.colour => return text.to_owned(),
            Ink::Bold => "1",
            Ink::Faint => "2",
            Ink::Bad => "31",
            Ink::Good => "32",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, word: &str, value: &str) -> fmt::Result {
        let word = self.ink(Ink::Faint, &format!("{word:<WORD$}"));
        writeln!(f, "{word} {value}")
    }

    fn found(&self) -> String {
        let field = |named| match named {
            Named::XForwardedFor => "X-Forwarded-For",
            Named::Forwarded => "Forwarded",
        };
        match self.explanation.explained.found {
            Found::Peer => "the peer; it is no trusted proxy".to_owned(),
            Found::Unnamed => "the peer; a trusted proxy that names no client".to_owned(),
            Found::Unreadable(named) => {
                format!("the peer; an entry of {} cannot be read", field(named))
            }
            Found::Untrusted(named) => {
                format!("{}: from the right, the first that is not trusted", field(named))
            }
            Found::Leftmost(named) => format!("{}: the leftmost; all are trusted", field(named)),
        }
    }

    fn answer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = &self.explanation.explained;
        writeln!(f)?;
        if let Some((status, detail)) = &told.refused {
            let refused = self.ink(Ink::Bad, &format!("{status}: {detail}"));
            self.line(f, "answer", &refused)?;
            return self.line(f, "charged", "nothing");
        }
        let charges = told.rules.iter().filter(|told| match told.finding {
            Finding::Charge(_) => true,
            Finding::Exempt(_) | Finding::Deny(_) => false,
        });
        match charges.count() {
            0 => self.line(f, "answer", "the upstream's: no rule applies")?,
            1 => self.line(f, "answer", "the upstream's, if 1 rule has room; else 429")?,
            count => {
                let answer = format!("the upstream's, if all {count} rules have room; else 429");
                self.line(f, "answer", &answer)?;
            }
        }
        match &told.policies {
            Some(policies) => {
                let policies = policies.to_str().unwrap_or_default();
                self.line(f, "headers", &format!("RateLimit-Policy: {policies}"))
            }
            None => Ok(()),
        }
    }

    fn rule(&self, f: &mut fmt::Formatter<'_>, told: &Explained) -> fmt::Result {
        let Some(rule) = self.explanation.rules.rule(told.rule) else {
            return Ok(());
        };
        let (ink, verdict) = verdict(rule, told);
        let name = self.ink(Ink::Bold, &rule.name);
        writeln!(f, "\n{name}: {}", self.ink(ink, &verdict))?;
        if let Finding::Exempt(Exempt::Mismatch(_)) = told.finding {
            return Ok(());
        }
        if rule.key.is_empty() {
            self.line(f, "  key", "none: one bucket for all")?;
        }
        for (place, part) in told.parts.iter().enumerate() {
            let value = match &part.value {
                None => format!("{} is absent", part.text),
                Some(value) if value.source == part.text => format!("{} = {}", part.text, value.text),
                Some(value) => format!("{} = {} (of {})", value.source, value.text, part.text),
            };
            self.line(f, if place == 0 { "  key" } else { "" }, &value)?;
        }
        if let Finding::Charge(charge) = &told.finding {
            let whose = match self.explanation.same_hashes {
                true => "",
                false => " (of this run alone: no store.hash_key)",
            };
            self.line(f, "  hash", &format!("{}{whose}", charge.key))?;
            self.line(f, "  limit", &numbers(rule, charge))?;
        }
        let overridden = match &told.finding {
            Finding::Charge(charge) => charge.allowance,
            Finding::Exempt(Exempt::Unlimited(place)) => Some(*place),
            Finding::Exempt(_) | Finding::Deny(_) => None,
        };
        if let Some(place) = overridden {
            self.line(f, "  override", &format!("number {} of the rule", place + 1))?;
        }
        Ok(())
    }
}

fn verdict(rule: &Rule, told: &Explained) -> (Ink, String) {
    match &told.finding {
        Finding::Charge(charge) => {
            let units = match charge.cost {
                0 => "applies, and charges nothing: cost = 0".to_owned(),
                1 => "charges 1 unit".to_owned(),
                cost => format!("charges {cost} units"),
            };
            let dry = if rule.dry_run {
                " (dry run: never refuses)"
            } else {
                ""
            };
            (Ink::Good, format!("{units}{dry}"))
        }
        Finding::Exempt(Exempt::Mismatch(mismatch)) => (
            Ink::Faint,
            format!("not for it: {}", reason(*mismatch, &rule.matches)),
        ),
        Finding::Exempt(Exempt::Missing(place)) => {
            let part = rule.key.get(*place).map_or("", |part| part.text.as_str());
            (
                Ink::Faint,
                format!("skipped: there is no {part} (missing = \"skip\")"),
            )
        }
        Finding::Exempt(Exempt::Unlimited(_)) => (Ink::Faint, "skipped: the caller is unlimited".to_owned()),
        Finding::Deny(denied) if rule.dry_run => {
            (Ink::Faint, format!("skipped: {denied} (dry run: never refuses)"))
        }
        Finding::Deny(denied) => (Ink::Bad, format!("refuses: {denied}")),
    }
}

fn reason(mismatch: Mismatch, matches: &Match) -> String {
    let list = |words: Vec<&str>| words.join(", ");
    match mismatch {
        Mismatch::Methods => {
            let methods = matches.methods.iter().map(|method| method.as_str()).collect();
            format!("the method is not in methods ({})", list(methods))
        }
        Mismatch::NotMethods => "the method is in not_methods".to_owned(),
        Mismatch::Path => {
            let path = matches.path.as_ref().map_or("", |path| path.text());
            format!("the path does not fit path ({path})")
        }
        Mismatch::NotPath => {
            let paths = matches.not_path.iter().map(|path| path.text()).collect();
            format!("the path fits not_path ({})", list(paths))
        }
        Mismatch::Host => {
            let host = matches.host.as_ref().map_or("", |host| host.text());
            format!("the host does not fit host ({host})")
        }
    }
}

/// The limiter that is asked, in words of the rule table.
fn numbers(rule: &Rule, charge: &Charge) -> String {
    let spec = &rule.spec;
    let length = |length: Micros| show_duration(Duration::from_micros(length.0));
    let window = match spec.window {
        Some(window) => format!("in {}", length(window)),
        None => "at once".to_owned(),
    };
    let mut words = format!("{} {window}, {}", charge.policy.limit(), spec.kind.name());
    if let Some(queue) = spec.queue {
        words.push_str(&format!(", queue {}", length(queue)));
    }
    match charge.policy {
        Policy::Bucket(_) => words.push_str(&format!(", burst {}", charge.policy.quota())),
        Policy::SlidingWindow(_) if spec.precision > 1 => {
            words.push_str(&format!(", precision {}", spec.precision));
        }
        _ => {}
    }
    if let Policy::SlidingWindow(_) = charge.policy
        && !spec.blend
    {
        words.push_str(", blend = false");
    }
    words.push_str(match rule.scope {
        Scope::Store => "; scope store",
        Scope::Gateway => "; scope gateway",
    });
    if !rule.visible {
        words.push_str("; not visible");
    }
    words
}
