//! Patterns for paths and hosts, and the normal form of a path that they are matched against.

use std::borrow::Cow;
use std::fmt;

use matchit::Router;
use percent_encoding::percent_decode_str;

/// A path pattern: `/v1/users/{id}`, `/files/{*rest}`. It matches a [normal](normal_path) path.
#[derive(Clone)]
pub struct PathPattern {
    text: String,
    names: Vec<String>,
    router: Router<()>,
}

/// The text is not a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It does not begin with a slash.
    #[error("a path pattern begins with \"/\"")]
    NoSlash,
    /// It can match nothing, since paths are matched in their normal form.
    #[error("no path can match it: paths are matched as \"{0}\"")]
    NotNormal(String),
    /// It holds what no path holds.
    #[error("a path has no \"{0}\"")]
    NoPath(char),
    /// It is written as for another matcher, and would match nothing but itself.
    #[error("here this is written \"{0}\"")]
    Foreign(String),
    /// The braces in it make no sense.
    #[error("{0}")]
    Syntax(String),
}

impl fmt::Debug for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathPattern({:?})", self.text)
    }
}

impl PathPattern {
    /// Reads a pattern. `{name}` stands for one segment or a part of one, `{*name}` for the rest of the path, also an
    /// empty one.
    ///
    /// # Errors
    /// The text is not a pattern, or one that no path can match.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if !text.starts_with('/') {
            return Err(PatternError::NoSlash);
        }
        let normal = normal_path(text);
        if normal != text {
            return Err(PatternError::NotNormal(normal.into_owned()));
        }
        if let Some(stray) = text.chars().find(|c| matches!(c, '?' | '#')) {
            return Err(PatternError::NoPath(stray));
        }
        if let Some(own) = own_spelling(text) {
            return Err(PatternError::Foreign(own));
        }
        let mut router = Router::new();
        for spelling in spellings(text) {
            router
                .insert(spelling, ())
                .map_err(|error| PatternError::Syntax(error.to_string()))?;
        }
        Ok(Self {
            text: text.to_owned(),
            names: capture_names(text),
            router,
        })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names that the pattern captures, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The pattern with the names of its captures left out: two rules may write one pattern with other names.
    pub fn shape(&self) -> String {
        let mut shape = self.text.clone();
        for name in &self.names {
            shape = shape
                .replace(&format!("{{{name}}}"), "{}")
                .replace(&format!("{{*{name}}}"), "{*}");
        }
        shape
    }

    /// Whether a normal path fits.
    pub fn matches(&self, path: &str) -> bool {
        self.router.at(path).is_ok()
    }

    /// What the pattern's `name` captures of a normal path that fits. A `{*name}` that matched nothing captures the
    /// empty text.
    pub fn capture<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        let found = self.router.at(path).ok()?;
        if let Some(value) = found.params.get(name) {
            return Some(value);
        }
        self.names.iter().any(|known| known == name).then_some("")
    }
}

/// The patterns that a router must hold for one that is written `text`: `{*rest}` matches nothing, too.
pub fn spellings(text: &str) -> impl Iterator<Item = &str> {
    let bare = text
        .rsplit_once("/{*")
        .map(|(before, _)| if before.is_empty() { "/" } else { before });
    std::iter::once(text).chain(bare)
}

/// How `/a/*` and `/a/:id`, as others write them, are written here; `None` if nothing of that kind is in the text.
fn own_spelling(text: &str) -> Option<String> {
    let mut foreign = false;
    let segments: Vec<String> = text
        .split('/')
        .map(|segment| match (segment, segment.strip_prefix(':')) {
            ("*" | "**", _) => (true, "{*rest}".to_owned()),
            (_, Some(name)) => (true, format!("{{{name}}}")),
            _ => (false, segment.to_owned()),
        })
        .map(|(own, segment)| {
            foreign |= own;
            segment
        })
        .collect();
    foreign.then(|| segments.join("/"))
}

fn capture_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('{') {
        if let Some(escaped) = after.strip_prefix('{') {
            rest = escaped;
        } else if let Some((name, after)) = after.split_once('}') {
            names.push(name.trim_start_matches('*').to_owned());
            rest = after;
        } else {
            break;
        }
    }
    names
}

/// The normal form of a path: unreserved characters decoded, double slashes and dot segments resolved, a trailing slash
/// ignored. Everything else stays as the client wrote it, so that an encoded slash is not a slash. What is forwarded is
/// the original.
pub fn normal_path(path: &str) -> Cow<'_, str> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    if segments.is_empty() {
        return Cow::Borrowed("/");
    }
    let mut normal = String::with_capacity(decoded.len());
    for segment in segments {
        normal.push('/');
        normal.push_str(segment);
    }
    Cow::Owned(normal)
}

fn is_normal(path: &str) -> bool {
    let mut after_slash = false;
    for byte in path.bytes() {
        match byte {
            b'%' => return false,
            b'/' | b'.' if after_slash => return false,
            _ => after_slash = byte == b'/',
        }
    }
    path.starts_with('/') && (!after_slash || path.len() == 1)
}

/// Decodes `%41` to `A` and leaves `%2F` alone: only characters that mean the same either way are decoded (RFC 3986,
/// section 2.3).
fn decode_unreserved(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let triplet = rest.get(before.len()..before.len() + 3);
        let byte = triplet.and_then(|triplet| {
            let mut bytes = percent_decode_str(triplet);
            bytes.next().filter(|_| bytes.next().is_none())
        });
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') => {
                decoded.push(char::from(byte));
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

/// A host pattern: `api.example.com`, or `*.example.com` for every name below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    text: String,
    /// In lower case; without the `*` where `below`.
    name: String,
    below: bool,
}

/// The text is not a host pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// A port is in it.
    #[error("a host is matched without its port")]
    Port,
    /// It is empty, or has a `*` that is not its first label.
    #[error("a host is a name, an address, or \"*.\" and a name")]
    Syntax,
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The text is not a host pattern.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let bracketed = name.starts_with('[') && name.ends_with(']');
        if !bracketed && name.contains(':') {
            return Err(HostError::Port);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.is_empty() || (!bracketed && !name.chars().all(plain)) {
            return Err(HostError::Syntax);
        }
        Ok(Self {
            text: text.to_owned(),
            name: name.trim_end_matches('.').to_ascii_lowercase(),
            below,
        })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name in lower case, without the `*.`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it names one host.
    pub fn is_exact(&self) -> bool {
        !self.below
    }

    /// Whether a host, without port and trailing dot and in any case, fits.
    pub fn matches(&self, host: &str) -> bool {
        if !self.below {
            return host.eq_ignore_ascii_case(&self.name);
        }
        let Some(cut) = host.len().checked_sub(self.name.len() + 1) else {
            return false;
        };
        let (label, rest) = host.as_bytes().split_at(cut);
        !label.is_empty()
            && rest.first() == Some(&b'.')
            && rest[1..].eq_ignore_ascii_case(self.name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_normal_form() {
        for (path, normal) in [
            ("/login", "/login"),
            ("/", "/"),
            ("//", "/"),
            ("/login/", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/a/%2e%2e/login", "/login"),
            ("/login%2F", "/login%2F"),
            ("/login%2f", "/login%2f"),
            ("/login%00", "/login%00"),
            ("/LOGIN", "/LOGIN"),
            ("/login;x=1", "/login;x=1"),
            ("/%252e%252e", "/%252e%252e"),
            ("/%", "/%"),
            ("/%zz", "/%zz"),
            ("/%4", "/%4"),
            ("/é%41", "/éA"),
            ("/%é1", "/%é1"),
            ("/a.b/.c", "/a.b/.c"),
            ("/...", "/..."),
            ("*", "/*"),
        ] {
            assert_eq!(normal_path(path), normal, "{path}");
            assert_eq!(normal_path(normal), normal, "{path} twice");
        }
    }

    #[test]
    fn patterns_match_and_capture() {
        let pattern = PathPattern::parse("/v1/users/{id}/{*rest}").unwrap();
        assert_eq!(pattern.capture("/v1/users/7/a/b", "id"), Some("7"));
        assert_eq!(pattern.capture("/v1/users/7/a/b", "rest"), Some("a/b"));
        assert_eq!(pattern.capture("/v1/users/7", "rest"), Some(""));
        assert_eq!(pattern.capture("/v1/users/7", "other"), None);
        assert!(!pattern.matches("/v1/users"));
        let all = PathPattern::parse("/{*rest}").unwrap();
        assert!(all.matches("/") && all.matches("/a/b"));
        let renamed = PathPattern::parse("/v1/users/{name}/{*more}").unwrap();
        assert_eq!(pattern.shape(), "/v1/users/{}/{*}");
        assert_eq!(renamed.shape(), pattern.shape());
    }

    #[test]
    fn patterns_that_can_match_nothing_are_faults() {
        for text in [
            "login",
            "",
            "/a//b",
            "/a/",
            "/a/../b",
            "/%6Cogin",
            "/a?b=1",
            "/a#b",
            "/{a}{b}",
            "/{",
            "/{*rest}/x",
            "/{}",
        ] {
            assert!(PathPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_of_other_matchers_are_told_apart() {
        for (text, own) in [
            ("/v1/*", "/v1/{*rest}"),
            ("/**", "/{*rest}"),
            ("/users/:id/x", "/users/{id}/x"),
        ] {
            assert_eq!(
                PathPattern::parse(text).unwrap_err(),
                PatternError::Foreign(own.to_owned())
            );
        }
        assert!(PathPattern::parse("/v1/things:export").is_ok());
    }

    #[test]
    fn hosts_match_without_regard_to_case() {
        let exact = HostPattern::parse("API.example.com").unwrap();
        assert!(exact.matches("api.Example.com") && !exact.matches("x.api.example.com"));
        let below = HostPattern::parse("*.example.com").unwrap();
        assert!(below.matches("a.example.com") && below.matches("a.b.Example.COM"));
        assert!(
            !below.matches("example.com") && !below.matches(".example.com") && !below.matches("aexample.com")
        );
        for text in ["", "*", "*.", "a.*.b", "example.com:80", "a b"] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }
}
