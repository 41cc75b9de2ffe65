//! Whether patterns can match the same requests, where that is plain to see.

use crate::rules::{HostPattern, PathPattern};

use super::upstream::host_key;

/// One segment of a path pattern's shape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment<'s> {
    /// Exactly this.
    Literal(&'s str),
    /// Any one segment.
    Any,
    /// Some one segment: a capture with text around it.
    Some(&'s str),
    /// Whatever is left, also nothing.
    Rest,
}

/// Whether `general` matches every path that `special` does. If in doubt, no.
pub(super) fn covers(general: &PathPattern, special: &PathPattern) -> bool {
    let (general, special) = (general.shape(), special.shape());
    let (mut general, mut special) = (segments(&general), segments(&special));
    loop {
        match (general.next(), special.next()) {
            (Some(Segment::Rest), _) | (None, None) => return true,
            (Some(Segment::Any), Some(one)) if one != Segment::Rest => {}
            (Some(general), Some(special)) if general == special => {}
            _ => return false,
        }
    }
}

/// Whether no path matches both. If in doubt, no.
pub(super) fn disjoint(a: &PathPattern, b: &PathPattern) -> bool {
    let (a, b) = (a.shape(), b.shape());
    let (mut a, mut b) = (segments(&a), segments(&b));
    loop {
        match (a.next(), b.next()) {
            (Some(Segment::Rest), _) | (_, Some(Segment::Rest)) | (None, None) => return false,
            (Some(Segment::Literal(a)), Some(Segment::Literal(b))) if a != b => return true,
            (Some(_), Some(_)) => {}
            (Some(_), None) | (None, Some(_)) => return true,
        }
    }
}

/// Whether a host can match both.
pub(super) fn hosts_meet(a: &HostPattern, b: &HostPattern) -> bool {
    let (a_key, b_key) = (host_key(a), host_key(b));
    match (a_key.strip_prefix('*'), b_key.strip_prefix('*')) {
        (None, None) => a_key == b_key,
        (Some(_), None) => a.matches(&b_key),
        (None, Some(_)) => b.matches(&a_key),
        (Some(a), Some(b)) => a.ends_with(b) || b.ends_with(a),
    }
}

fn segments(shape: &str) -> impl Iterator<Item = Segment<'_>> {
    let path = shape.strip_prefix('/').unwrap_or(shape);
    let segment = |text| match text {
        "{}" => Segment::Any,
        "{*}" => Segment::Rest,
        _ if text.contains(['{', '}']) => Segment::Some(text),
        _ => Segment::Literal(text),
    };
    path.split('/').filter(|text| !text.is_empty()).map(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathPattern {
        PathPattern::parse(text).unwrap()
    }

    #[test]
    fn a_pattern_covers_what_it_surely_covers() {
        for (general, special, covered) in [
            ("/a", "/a", true),
            ("/{*rest}", "/a/{id}", true),
            ("/{*rest}", "/", true),
            ("/a/{*rest}", "/a", true),
            ("/a/{*rest}", "/a/b/{*more}", true),
            ("/a/{id}", "/a/{name}", true),
            ("/a/{id}", "/a/b", true),
            ("/a/{id}", "/a/b{x}", true),
            ("/a/b{x}", "/a/b{y}", true),
            ("/a/b", "/a/{id}", false),
            ("/a/{id}", "/a/{*rest}", false),
            ("/a/{id}", "/a", false),
            ("/a", "/a/b", false),
            ("/b/{*rest}", "/a", false),
        ] {
            assert_eq!(
                covers(&path(general), &path(special)),
                covered,
                "{general} {special}"
            );
        }
    }

    #[test]
    fn patterns_are_disjoint_if_they_surely_are() {
        for (a, b, apart) in [
            ("/a", "/b", true),
            ("/a/{id}", "/a", true),
            ("/a/{id}", "/a/b/c", true),
            ("/a/x", "/a/x/{*rest}", false),
            ("/a/{*rest}", "/b/{*rest}", true),
            ("/a/{*rest}", "/a/b", false),
            ("/a/{id}", "/a/b", false),
            ("/a/b{x}", "/a/c", false),
            ("/{*rest}", "/", false),
        ] {
            assert_eq!(disjoint(&path(a), &path(b)), apart, "{a} {b}");
            assert_eq!(disjoint(&path(b), &path(a)), apart, "{b} {a}");
        }
    }

    #[test]
    fn hosts_meet_below_a_common_name() {
        for (a, b, meet) in [
            ("api.example.com", "API.example.com.", true),
            ("api.example.com", "*.example.com", true),
            ("example.com", "*.example.com", false),
            ("*.api.example.com", "*.example.com", true),
            ("*.example.com", "*.example.org", false),
            ("*.ample.com", "*.example.com", false),
        ] {
            let host = |text| HostPattern::parse(text).unwrap();
            assert_eq!(hosts_meet(&host(a), &host(b)), meet, "{a} {b}");
            assert_eq!(hosts_meet(&host(b), &host(a)), meet, "{b} {a}");
        }
    }
}
