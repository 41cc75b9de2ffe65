//! The header fields that tell a client where it stands.
//!
//! `github` writes `X-RateLimit-*`; `draft` writes the two fields of draft-ietf-httpapi-ratelimit-headers-10.

use bytes::BytesMut;
use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{ListEntry, Parser};

use super::Profile;
use super::labels::Label;
use crate::clock::Micros;
use crate::limit::Standing;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESOURCE: HeaderName = HeaderName::from_static("x-ratelimit-resource");
const DRAFT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT: HeaderName = HeaderName::from_static("ratelimit");

/// Fields that one response can gain.
const MOST: usize = 7;
/// Bytes for what a response tells of one limiter, names of usual length.
const TEXT: usize = 128;

/// One limiter, as a client may see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// What does not change from request to request.
    pub label: &'a Label,
    /// Where the client stands.
    pub standing: Standing,
    /// If the limiter refused: when it would admit.
    pub retry: Option<Micros>,
    /// The instant now on the clock that the limiter is told by.
    pub now: Micros,
}

/// The limiter that single-valued fields describe: on a rejection the refusing one with the latest retry, else the one
/// with the least remaining, on a tie the one that is full later (after those that no instant can be told for), on a tie
/// the first.
fn tightest<'l, 'a>(lines: &'l [Line<'a>]) -> Option<&'l Line<'a>> {
    // Each line has a clock of its own: instants are compared by how far off they are.
    let refusing = lines
        .iter()
        .rev()
        .filter(|line| line.retry.is_some())
        .max_by_key(|line| line.off(line.retry));
    refusing.or_else(|| {
        lines.iter().min_by_key(|line| {
            (
                line.standing.remaining,
                std::cmp::Reverse(line.off(line.standing.full)),
            )
        })
    })
}

impl Line<'_> {
    /// How far off an instant is.
    fn off(&self, instant: Option<Micros>) -> Option<Micros> {
        instant.map(|instant| instant.since(self.now))
    }
}

/// Writes the fields of `profiles` for `lines`, the limiters of one request in table order. The `X-RateLimit` fields
/// replace what is there; the draft's lists are appended to.
pub(super) fn write(headers: &mut HeaderMap, profiles: &[Profile], lines: &[Line<'_>]) {
    let Some(tightest) = tightest(lines) else { return };
    headers.reserve(MOST);
    let mut text = BytesMut::with_capacity(TEXT);
    for profile in profiles {
        match profile {
            Profile::Github => write_github(headers, &mut text, tightest),
            Profile::Draft => write_draft(headers, &mut text, lines),
        }
    }
}

fn write_github(headers: &mut HeaderMap, text: &mut BytesMut, Line { label, standing, .. }: &Line<'_>) {
    let used = label.quota.saturating_sub(standing.remaining);
    headers.insert(LIMIT, label.limit.clone());
    let reset = standing.full.map(|full| (RESET, full.secs_up()));
    if reset.is_none() {
        // An upstream's does not stay.
        headers.remove(RESET);
    }
    for (name, number) in [(REMAINING, standing.remaining), (USED, used)]
        .into_iter()
        .chain(reset)
    {
        text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        if let Some(value) = value(text) {
            headers.insert(name, value);
        }
    }
    headers.insert(RESOURCE, label.resource.clone());
}

fn write_draft(headers: &mut HeaderMap, text: &mut BytesMut, lines: &[Line<'_>]) {
    match (headers.entry(DRAFT_POLICY), lines) {
        (Entry::Vacant(entry), [line]) => {
            entry.insert(line.label.policy.clone());
        }
        (entry, _) => extend(entry, text, |list| {
            add_policies(list, lines.iter().map(|line| line.label));
        }),
    }
    extend(headers.entry(DRAFT), text, |list| {
        for Line {
            label, standing, now, ..
        } in lines
        {
            separate(list);
            list.extend_from_slice(label.member.as_bytes());
            parameter(list, b";r=", standing.remaining);
            if let Some(next) = standing.next {
                // It may have come while the request was forwarded; `remaining` is from before, and so is not yet it.
                parameter(list, b";t=", next.since(*now).secs_up().max(1));
            }
        }
    });
}

/// The value of `RateLimit-Policy` for the limiters with these labels; `None` without any.
pub(super) fn policies<'l>(labels: impl Iterator<Item = &'l Label>) -> Option<HeaderValue> {
    let mut list = BytesMut::new();
    add_policies(&mut list, labels);
    value(&mut list).filter(|value| !value.is_empty())
}

fn add_policies<'l>(list: &mut BytesMut, labels: impl Iterator<Item = &'l Label>) {
    for label in labels {
        separate(list);
        list.extend_from_slice(label.policy.as_bytes());
    }
}

/// Adds members to a list field, which is one line then.
fn extend(entry: Entry<'_, HeaderValue>, text: &mut BytesMut, add: impl FnOnce(&mut BytesMut)) {
    match entry {
        Entry::Vacant(entry) => {
            add(text);
            if let Some(value) = value(text) {
                entry.insert(value);
            }
        }
        Entry::Occupied(mut entry) => {
            if keep(text, entry.iter()).is_none() {
                text.clear();
            }
            add(text);
            if let Some(value) = value(text) {
                entry.insert(value);
            }
        }
    }
}

/// Adds the members of a list that are there; `None` if no client could read it, so that it is to be dropped whole.
fn keep<'v>(list: &mut BytesMut, lines: impl Iterator<Item = &'v HeaderValue>) -> Option<()> {
    for line in lines {
        let members = Parser::new(line.as_bytes()).parse::<Vec<ListEntry>>().ok()?;
        if !members.is_empty() {
            separate(list);
            list.extend_from_slice(line.as_bytes());
        }
    }
    Some(())
}

fn separate(list: &mut BytesMut) {
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
}

/// Adds an integer parameter to the last member of a list.
fn parameter(list: &mut BytesMut, key: &[u8], value: u64) {
    list.extend_from_slice(key);
    list.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Takes out what was written, as a field value: all values of a response lie in one piece of memory.
fn value(text: &mut BytesMut) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(text.split().freeze()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Kind, Spec};

    fn label(rule: &str, kind: Kind, limit: u64, window: u64, burst: Option<u64>) -> Label {
        let window = Micros::from_millis(window);
        let spec = Spec {
            kind,
            limit,
            window: kind.has_window().then_some(window),
            precision: 1,
            blend: true,
            burst,
            queue: None,
            cost: 1,
        };
        Label::new(rule, &spec.policy().unwrap()).unwrap()
    }

    fn standing(remaining: u64, next: Option<u64>, full: u64) -> Standing {
        Standing {
            remaining,
            next: next.map(Micros),
            full: Some(Micros(full)),
        }
    }

    fn fields(headers: &HeaderMap) -> Vec<String> {
        let mut fields: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        fields.sort();
        fields
    }

    const BOTH: [Profile; 2] = [Profile::Github, Profile::Draft];

    #[test]
    fn shows_the_tightest_limiter_and_lists_all() {
        let ip = label("per-ip", Kind::FixedWindow, 100, 60_000, None);
        let user = label("user", Kind::TokenBucket, 10, 1_000, Some(50));
        let odd = label("odd", Kind::FixedWindow, 5, 1_500, None);
        let lines = [
            Line {
                label: &ip,
                standing: standing(7, Some(11_000_001), 11_000_001),
                retry: None,
                now: Micros(10_000_000),
            },
            Line {
                label: &user,
                standing: standing(7, Some(9_999_999), 12_500_000),
                retry: None,
                now: Micros(10_000_000),
            },
            Line {
                label: &odd,
                standing: standing(9, None, 10_000_000),
                retry: None,
                now: Micros(10_000_000),
            },
        ];
        let mut headers = HeaderMap::new();
        write(&mut headers, &BOTH, &lines);
        assert_eq!(
            fields(&headers),
            [
                "ratelimit-policy: \"per-ip\";q=100;w=60, \"user\";q=50;w=5, \"odd\";q=5",
                "ratelimit: \"per-ip\";r=7;t=2, \"user\";r=7;t=1, \"odd\";r=9",
                "x-ratelimit-limit: 50",
                "x-ratelimit-remaining: 7",
                "x-ratelimit-reset: 13",
                "x-ratelimit-resource: user",
                "x-ratelimit-used: 43",
            ]
        );
    }

    #[test]
    fn a_rejection_shows_the_refusing_limiter_with_the_latest_retry() {
        let [a, b, c] = ["a", "b", "c"].map(|rule| label(rule, Kind::FixedWindow, 10, 60_000, None));
        fn line(label: &Label, remaining: u64, retry: Option<u64>) -> Line<'_> {
            let standing = standing(remaining, Some(60_000_000), 60_000_000);
            Line {
                label,
                standing,
                retry: retry.map(Micros),
                now: Micros(0),
            }
        }
        let resource = |lines: &[Line<'_>]| {
            let mut headers = HeaderMap::new();
            write(&mut headers, &[Profile::Github], lines);
            headers[RESOURCE].to_str().unwrap().to_owned()
        };
        assert_eq!(
            resource(&[line(&a, 0, None), line(&b, 2, Some(5)), line(&c, 1, Some(9))]),
            "c"
        );
        assert_eq!(resource(&[line(&a, 0, Some(9)), line(&b, 2, Some(9))]), "a");
        assert_eq!(resource(&[line(&a, 1, None), line(&b, 1, None)]), "a");
    }

    #[test]
    fn requests_in_flight_have_no_instants() {
        let (slots, timed) = (
            label("slots", Kind::Concurrency, 5, 0, None),
            label("timed", Kind::FixedWindow, 10, 60_000, None),
        );
        let line = |label, standing| Line {
            label,
            standing,
            retry: None,
            now: Micros(0),
        };
        let held = Standing {
            remaining: 2,
            next: None,
            full: None,
        };
        let lines = |left| {
            let timed = line(&timed, standing(left, Some(1_000_000), 1_000_000));
            [line(&slots, held), timed]
        };
        let mut headers = HeaderMap::new();
        headers.insert(RESET, HeaderValue::from_static("7"));
        write(&mut headers, &BOTH, &lines(9));
        assert_eq!(
            fields(&headers),
            [
                "ratelimit-policy: \"slots\";q=5;qu=\"concurrent-requests\", \"timed\";q=10;w=60",
                "ratelimit: \"slots\";r=2, \"timed\";r=9;t=1",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 2",
                "x-ratelimit-resource: slots",
                "x-ratelimit-used: 3",
            ],
            "nor does the upstream's reset stay"
        );
        // On a tie, the one that can say when comes first.
        write(&mut headers, &BOTH, &lines(2));
        assert_eq!(
            (&headers[RESOURCE], &headers[RESET]),
            (&"timed".parse().unwrap(), &"1".parse().unwrap())
        );
    }

    #[test]
    fn replaces_the_upstreams_fields_and_appends_to_its_lists() {
        let ours = label("ours", Kind::FixedWindow, 10, 60_000, None);
        let lines = [Line {
            label: &ours,
            standing: standing(9, None, 0),
            retry: None,
            now: Micros(0),
        }];
        let mut headers = HeaderMap::new();
        headers.append(REMAINING, HeaderValue::from_static("999"));
        headers.append(DRAFT, HeaderValue::from_static("\"theirs\";r=1"));
        headers.append(DRAFT, HeaderValue::from_static("\"more\";r=2;t=3"));
        headers.append(DRAFT_POLICY, HeaderValue::from_static("not a structured field"));
        write(&mut headers, &BOTH, &lines);
        assert_eq!(headers[REMAINING], "9");
        assert_eq!(
            headers.get_all(DRAFT).iter().collect::<Vec<_>>(),
            ["\"theirs\";r=1, \"more\";r=2;t=3, \"ours\";r=9"]
        );
        assert_eq!(headers[DRAFT_POLICY], "\"ours\";q=10;w=60");
    }

    #[test]
    fn writes_nothing_without_limiters_or_profiles() {
        let ours = label("ours", Kind::FixedWindow, 10, 60_000, None);
        let lines = [Line {
            label: &ours,
            standing: standing(9, None, 0),
            retry: None,
            now: Micros(0),
        }];
        let mut headers = HeaderMap::new();
        write(&mut headers, &BOTH, &[]);
        write(&mut headers, &[], &lines);
        assert!(headers.is_empty());
    }
}
