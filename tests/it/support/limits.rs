//! The limit fields of a response, with what must hold of them on every response.

use sfv::{BareItem, List, ListEntry, Parser};

use super::{Answer, epoch_seconds};

/// What the limit fields say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) used: u64,
    /// Epoch seconds.
    pub(crate) reset: u64,
    pub(crate) resource: String,
    /// `RateLimit-Policy`: name, q, w.
    pub(crate) policies: Vec<(String, u64, Option<u64>)>,
    /// `RateLimit`: name, r, t.
    pub(crate) members: Vec<(String, u64, Option<u64>)>,
    pub(crate) retry_after: Option<u64>,
}

const GITHUB: [&str; 5] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-used",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
];

impl Limits {
    /// Reads the fields of both default profiles and checks that they agree.
    #[track_caller]
    pub(crate) fn of(answer: &Answer) -> Self {
        let number = |name: &str| -> u64 {
            let text = answer.must(name);
            assert!(
                text.bytes().all(|byte| byte.is_ascii_digit()),
                "{name} is not a whole number: {text}"
            );
            text.parse().unwrap()
        };
        let limits = Self {
            limit: number("x-ratelimit-limit"),
            remaining: number("x-ratelimit-remaining"),
            used: number("x-ratelimit-used"),
            reset: number("x-ratelimit-reset"),
            resource: answer.must("x-ratelimit-resource").to_owned(),
            policies: members(answer, "ratelimit-policy", "q", "w"),
            members: members(answer, "ratelimit", "r", "t"),
            retry_after: retry_after(answer),
        };
        limits.check(answer);
        limits
    }

    #[track_caller]
    fn check(&self, answer: &Answer) {
        assert!(self.remaining <= self.limit, "{self:?}");
        assert_eq!(self.used, self.limit - self.remaining, "{self:?}");
        let now = epoch_seconds();
        assert!(self.reset + 1 >= now, "reset is in the past: {self:?}, now {now}");
        let policy = self.policies.iter().find(|(name, ..)| *name == self.resource);
        let member = self.members.iter().find(|(name, ..)| *name == self.resource);
        let (Some((_, q, _)), Some((_, r, _))) = (policy, member) else {
            panic!("{} is not in the draft's lists: {self:?}", self.resource);
        };
        assert_eq!(
            (*q, *r),
            (self.limit, self.remaining),
            "the profiles differ: {self:?}"
        );
        for (name, r, t) in &self.members {
            let q = self.policies.iter().find(|(known, ..)| known == name);
            let (_, q, _) = q.unwrap_or_else(|| panic!("{name} has no policy: {self:?}"));
            assert!(r <= q, "{self:?}");
            assert!(
                !(r < q && *t == Some(0)),
                "quota that comes back in no time: {self:?}"
            );
        }
        if answer.status == 429 && answer.field("content-type") == Some("application/problem+json") {
            let wait = self.retry_after.expect("a 429 has Retry-After");
            assert!(wait >= 1);
            let (.., t) = member.unwrap();
            assert!(t.is_none_or(|t| wait >= t), "Retry-After is before t: {self:?}");
            assert_eq!(answer.must("cache-control"), "no-store");
            let violated = answer.problem()["violated-policies"].clone();
            for name in violated.as_array().expect("violated-policies is a list") {
                let name = name.as_str().unwrap();
                assert!(
                    self.policies.iter().any(|(known, ..)| known == name),
                    "{name} is violated but not shown: {self:?}"
                );
            }
        }
    }

    /// Whether a rule is in the draft's list.
    pub(crate) fn has(&self, rule: &str) -> bool {
        self.members.iter().any(|(name, ..)| name == rule)
    }

    /// Quota left of a rule by the draft's list.
    #[track_caller]
    pub(crate) fn r(&self, rule: &str) -> u64 {
        self.member(rule).1
    }

    /// Seconds until more quota of a rule.
    #[track_caller]
    pub(crate) fn t(&self, rule: &str) -> Option<u64> {
        self.member(rule).2
    }

    #[track_caller]
    fn member(&self, rule: &str) -> &(String, u64, Option<u64>) {
        self.members
            .iter()
            .find(|(name, ..)| name == rule)
            .unwrap_or_else(|| panic!("{rule} is not in {self:?}"))
    }
}

#[track_caller]
fn retry_after(answer: &Answer) -> Option<u64> {
    let text = answer.field("retry-after")?;
    assert!(
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
        "Retry-After: {text}"
    );
    Some(text.parse().unwrap())
}

#[track_caller]
fn members(answer: &Answer, field: &str, first: &str, second: &str) -> Vec<(String, u64, Option<u64>)> {
    let text = answer.must(field);
    let list: List = Parser::new(text)
        .parse()
        .unwrap_or_else(|error| panic!("{field}: {text}: {error}"));
    list.iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else {
                panic!("{field}: {text}: an inner list");
            };
            let BareItem::String(name) = &item.bare_item else {
                panic!("{field}: {text}: a name that is no string");
            };
            let number = |wanted: &str| {
                let (_, value) = item.params.iter().find(|(key, _)| key.as_str() == wanted)?;
                let value = value.as_integer().expect("an integer");
                Some(u64::try_from(i64::from(value)).expect("never negative"))
            };
            let one = number(first).unwrap_or_else(|| panic!("{field}: {text}: no {first}"));
            (name.as_str().to_owned(), one, number(second))
        })
        .collect()
}

/// That no limiter left a word on a response.
#[track_caller]
pub(crate) fn assert_no_limits(answer: &Answer) {
    for name in GITHUB.into_iter().chain(["ratelimit", "ratelimit-policy"]) {
        assert_eq!(answer.field(name), None, "{} has {name}", answer.status);
    }
}
