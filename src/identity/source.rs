//! What a key is made of: the sources that a rule's key parts read.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

/// One place in a request that a key part can be read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address, an IPv6 address cut to its prefix.
    Ip,
    /// Whatever `[identity] user` lists, the first that is present.
    User,
    /// The method and the path pattern that matched, never the literal path.
    Endpoint,
    /// The host that was asked for, without port, in lower case.
    Host,
    /// The method.
    Method,
    /// A header field.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A query parameter, percent-decoded.
    Query(String),
    /// A segment that the rule's own path pattern captures.
    Path(String),
}

/// A part of a key: the first of its alternatives that the request has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// As it is written, `a|b`, in one form however it was.
    pub text: String,
    /// In order of preference; at least one.
    pub alternatives: Vec<Source>,
}

/// The text is not a key part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// An unknown word.
    #[error("unknown key part \"{0}\"")]
    Unknown(String),
    /// `header:` with something that cannot be a field name.
    #[error("\"{0}\" is not a header field name")]
    FieldName(String),
    /// `header:`, `cookie:`, `query:` or `path:` with nothing behind it.
    #[error("\"{0}:\" needs a name")]
    NoName(String),
}

/// The words that a key part may begin with, as they are written.
pub const SOURCES: [&str; 9] = [
    "ip", "user", "endpoint", "host", "method", "header:", "cookie:", "query:", "path:",
];

impl Source {
    /// As the rule table writes it.
    pub fn word(&self) -> String {
        match self {
            Self::Ip => "ip".to_owned(),
            Self::User => "user".to_owned(),
            Self::Endpoint => "endpoint".to_owned(),
            Self::Host => "host".to_owned(),
            Self::Method => "method".to_owned(),
            Self::Header(name) => format!("header:{name}"),
            Self::Cookie(name) => format!("cookie:{name}"),
            Self::Query(name) => format!("query:{name}"),
            Self::Path(name) => format!("path:{name}"),
        }
    }
}

/// As a person would say it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip => f.write_str("an address"),
            Self::User => f.write_str("a user"),
            Self::Endpoint => f.write_str("an endpoint"),
            Self::Host => f.write_str("a host"),
            Self::Method => f.write_str("a method"),
            Self::Header(name) => write!(f, "the header field {name}"),
            Self::Cookie(name) => write!(f, "the cookie {name}"),
            Self::Query(name) => write!(f, "the query parameter {name}"),
            Self::Path(name) => write!(f, "the path segment {name}"),
        }
    }
}

/// As a person would say it.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, source) in self.alternatives.iter().enumerate() {
            if place > 0 {
                f.write_str(" or ")?;
            }
            source.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (word, name) = match text.split_once(':') {
            Some((word, name)) => (word, Some(name)),
            None => (text, None),
        };
        let named = |name: &str| match name {
            "" => Err(SourceError::NoName(word.to_owned())),
            _ => Ok(name.to_owned()),
        };
        match (word, name) {
            ("ip", None) => Ok(Self::Ip),
            ("user", None) => Ok(Self::User),
            ("endpoint", None) => Ok(Self::Endpoint),
            ("host", None) => Ok(Self::Host),
            ("method", None) => Ok(Self::Method),
            ("header", Some(name)) => {
                let name = named(name)?;
                HeaderName::from_str(&name)
                    .map(Self::Header)
                    .map_err(|_| SourceError::FieldName(name))
            }
            ("cookie", Some(name)) => named(name).map(Self::Cookie),
            ("query", Some(name)) => named(name).map(Self::Query),
            ("path", Some(name)) => named(name).map(Self::Path),
            ("header" | "cookie" | "query" | "path", None) => Err(SourceError::NoName(word.to_owned())),
            _ => Err(SourceError::Unknown(text.to_owned())),
        }
    }
}

impl FromStr for KeyPart {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let alternatives = text
            .split('|')
            .map(|word| word.trim().parse())
            .collect::<Result<Vec<Source>, _>>()?;
        let words: Vec<String> = alternatives.iter().map(Source::word).collect();
        Ok(Self {
            text: words.join("|"),
            alternatives,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_alternatives_in_order() {
        let part: KeyPart = "header:X-Api-Key | cookie:sid|ip".parse().unwrap();
        assert_eq!(part.text, "header:x-api-key|cookie:sid|ip");
        assert_eq!(
            part.to_string(),
            "the header field x-api-key or the cookie sid or an address"
        );
        assert_eq!(
            part.alternatives,
            [
                Source::Header(HeaderName::from_static("x-api-key")),
                Source::Cookie("sid".to_owned()),
                Source::Ip
            ]
        );
    }

    #[test]
    fn says_what_is_wrong_with_a_part() {
        for (text, message) in [
            ("ipp", "unknown key part \"ipp\""),
            ("ip:4", "unknown key part \"ip:4\""),
            ("", "unknown key part \"\""),
            ("ip|", "unknown key part \"\""),
            ("header", "\"header:\" needs a name"),
            ("query:", "\"query:\" needs a name"),
            ("header:a b", "\"a b\" is not a header field name"),
        ] {
            assert_eq!(
                text.parse::<KeyPart>().unwrap_err().to_string(),
                message,
                "{text:?}"
            );
        }
    }
}
