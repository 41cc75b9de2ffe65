//! The algorithm of a rule and its numbers.

use super::item::Item;
use super::reader::Section;
use super::source::Span;
use super::words::{either, quoted, suggestion};
use crate::clock::Micros;
use crate::limit::{Fault, Kind, Policy, RANGE, Spec};

const LIMIT: &str = "limit";
const WINDOW: &str = "window";
const PRECISION: &str = "precision";
const BLEND: &str = "blend";
const BURST: &str = "burst";
const QUEUE: &str = "queue";
const COST: &str = "cost";
const REFUND: &str = "refund";

/// The algorithm of a rule that does not say.
pub(super) const DEFAULT: Kind = Kind::SlidingWindow;
/// So much that nothing else is wrong because of it.
const HARMLESS_LIMIT: u64 = RANGE - 1;
/// So short that nothing else is wrong because of it.
const HARMLESS_WINDOW: Micros = Micros::from_millis(1);

/// What a rule says of its limiter, as far as it can be read.
pub(super) struct Limiter {
    pub(super) spec: Spec,
    /// Without it nothing is known of the numbers.
    pub(super) kind: Option<Kind>,
    /// The keys that could not be read; what `spec` has for them is harmless.
    unread: Vec<&'static str>,
    /// What is wrong with `spec`, as the rule was told.
    faults: Vec<Fault>,
    pub(super) policy: Option<Policy>,
}

/// Whether an optional number is there, and is one.
type Number = Result<Option<u64>, ()>;

/// Reads the keys of a rule that make its limiter.
pub(super) fn read(rule: &Section<'_>) -> Limiter {
    let kind = match rule.item("algorithm") {
        Some(item) => algorithm(&item),
        None => Some(DEFAULT),
    };
    let limit = rule.required(LIMIT, "`limit = 100`, the cost that is admitted in a window");
    let (window, cost) = (window(rule, kind), rule.item(COST));
    let precision = used(rule, PRECISION, kind);
    let blend = used(rule, BLEND, kind)
        .and_then(|item| item.flag())
        .unwrap_or(true);
    let queue = length(used(rule, QUEUE, kind));
    let mut unread = Vec::new();
    let mut known = |key, number: Number, harmless| match number {
        Ok(number) => number,
        Err(()) => {
            unread.push(key);
            harmless
        }
    };
    let required =
        |item: Option<Item<'_>>| item.ok_or(()).and_then(|item| item.integer().ok_or(()).map(Some));
    let limit = known(LIMIT, required(limit), None);
    let window = known(WINDOW, window, Some(HARMLESS_WINDOW.0));
    let cost = known(COST, optional(cost), Some(0));
    let precision = known(PRECISION, optional(precision), Some(1));
    let queue = known(QUEUE, queue, None);
    let burst = known(BURST, burst(rule, kind), cost.filter(|&cost| cost > 0));
    let mut limiter = Limiter {
        spec: Spec {
            kind: kind.unwrap_or(Kind::SlidingWindow),
            limit: limit.unwrap_or(HARMLESS_LIMIT),
            window: window.map(Micros),
            precision: precision.unwrap_or(1),
            blend,
            burst,
            queue: queue.map(Micros),
            cost: cost.unwrap_or(1),
        },
        kind,
        unread,
        faults: Vec::new(),
        policy: None,
    };
    (limiter.policy, limiter.faults) = limiter.judge(&limiter.spec, &limiter.unread);
    for fault in &limiter.faults {
        let span = rule.value_span(fault.field);
        rule.notes
            .error(span, fault.problem.as_str(), fault.hint.as_str());
    }
    limiter
}

impl Limiter {
    /// `burst` of an override.
    pub(super) fn burst(&self, section: &Section<'_>) -> Number {
        burst(section, self.kind)
    }

    /// The limiter with the limit of an override and perhaps its burst; says in its `section` what is wrong with them.
    pub(super) fn overridden(
        &self,
        section: &Section<'_>,
        limit: Option<u64>,
        burst: Number,
    ) -> Option<Policy> {
        let own_burst = matches!(burst, Ok(Some(_)));
        let spec = Spec {
            limit: limit?,
            burst: burst.unwrap_or_default().or(self.spec.burst),
            ..self.spec.clone()
        };
        let own_key = |key: &&str| *key == LIMIT || (*key == BURST && own_burst);
        let unread: Vec<&'static str> = self.unread.iter().copied().filter(|key| !own_key(key)).collect();
        let (policy, faults) = self.judge(&spec, &unread);
        for fault in faults {
            let own = own_key(&fault.field);
            let said = self.faults.iter().any(|known| known.field == fault.field);
            if own || !(said || burst.is_err()) {
                let field = if own { fault.field } else { LIMIT };
                section
                    .notes
                    .error(section.value_span(field), fault.problem, fault.hint);
            }
        }
        policy
    }

    /// The limiter of a spec, if all of it is known; and what is wrong with it.
    fn judge(&self, spec: &Spec, unread: &[&'static str]) -> (Option<Policy>, Vec<Fault>) {
        if self.kind.is_none() {
            return (None, faults(&of_no_kind(spec), unread));
        }
        match spec.policy() {
            Ok(policy) => (Some(policy).filter(|_| unread.is_empty()), Vec::new()),
            Err(_) => (None, faults(spec, unread)),
        }
    }

    /// Where a number of the rule is, for warnings.
    pub(super) fn limit_span(rule: &Section<'_>) -> Span {
        rule.value_span(LIMIT)
    }
}

/// Everything that is wrong with a spec whose `unread` fields are harmless: a fault of one field does not hide another's.
fn faults(spec: &Spec, unread: &[&'static str]) -> Vec<Fault> {
    let mut spec = spec.clone();
    let mut settled = unread.to_vec();
    let mut found: Vec<Fault> = Vec::new();
    while let Err(faults) = spec.policy() {
        let before = found.len();
        found.extend(faults.into_iter().filter(|fault| !settled.contains(&fault.field)));
        if found.len() == before {
            break;
        }
        for fault in &found[before..] {
            settled.push(fault.field);
            match fault.field {
                LIMIT => spec.limit = HARMLESS_LIMIT,
                WINDOW => spec.window = spec.kind.has_window().then_some(HARMLESS_WINDOW),
                QUEUE => spec.queue = None,
                PRECISION => spec.precision = 1,
                COST => spec.cost = 0,
                _ => spec.burst = Some(spec.cost.clamp(1, HARMLESS_LIMIT)).filter(|_| spec.kind.is_bucket()),
            }
        }
    }
    found
}

/// What can be judged of a spec whatever its algorithm is.
fn of_no_kind(spec: &Spec) -> Spec {
    Spec {
        kind: Kind::FixedWindow,
        burst: None,
        queue: None,
        precision: 1,
        cost: if spec.cost < RANGE { 0 } else { spec.cost },
        ..spec.clone()
    }
}

fn algorithm(item: &Item<'_>) -> Option<Kind> {
    let name = item.text()?;
    let kind = name.parse().ok();
    if kind.is_none() {
        let known = Kind::ALL.map(Kind::name);
        let problem = format!("there is no algorithm {}", quoted(name));
        item.refuse(problem, suggestion(name, &known));
    }
    kind
}

fn optional(item: Option<Item<'_>>) -> Number {
    item.map(|item| item.integer().ok_or(())).transpose()
}

/// A length of time in microseconds.
fn length(item: Option<Item<'_>>) -> Number {
    let micros = |item: Item<'_>| item.duration().map(|length| Micros::from(length).0).ok_or(());
    item.map(micros).transpose()
}

/// `window`, which an algorithm that has one must have.
fn window(rule: &Section<'_>, kind: Option<Kind>) -> Number {
    if kind.is_some_and(|kind| !kind.has_window()) {
        used(rule, WINDOW, kind);
        return Ok(None);
    }
    let item = rule.required(WINDOW, "`window = \"1m\"`").ok_or(())?;
    length(Some(item))
}

/// `burst`, which only a bucket has.
fn burst(section: &Section<'_>, kind: Option<Kind>) -> Number {
    optional(used(section, BURST, kind))
}

/// A key that not every algorithm uses; says so if the one of the rule does not.
pub(super) fn used<'a>(section: &Section<'a>, key: &'static str, kind: Option<Kind>) -> Option<Item<'a>> {
    let item = section.item(key)?;
    let Some(kind) = kind.filter(|kind| !uses(*kind, key)) else {
        return Some(item);
    };
    let users = users(key);
    let problem = format!("the algorithm `{}` does not use `{key}`", kind.name());
    let hint = format!("leave it out, or choose {}", either(&users));
    let span = section.key_span(key).unwrap_or(item.span);
    section.notes.error(span, problem, hint);
    None
}

fn uses(kind: Kind, key: &str) -> bool {
    match key {
        PRECISION | BLEND => kind == Kind::SlidingWindow,
        BURST => kind.is_bucket(),
        QUEUE => kind == Kind::Gcra,
        // What is held is released in any case, and is nothing else to give back.
        WINDOW | REFUND => kind.has_window(),
        _ => true,
    }
}

/// The algorithms that use a key which not all do.
fn users(key: &str) -> Vec<&'static str> {
    let users = Kind::ALL.into_iter().filter(|kind| uses(*kind, key));
    users.map(Kind::name).collect()
}

/// The keys that not all algorithms use, each with those that do.
pub(super) fn particular() -> [(&'static str, Vec<&'static str>); 6] {
    [PRECISION, BLEND, BURST, QUEUE, WINDOW, REFUND].map(|key| (key, users(key)))
}
