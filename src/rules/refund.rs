//! What an outcome owes: which charges are given back.

use std::fmt;
use std::str::FromStr;

use http::StatusCode;

/// An outcome that a rule gives its charge back for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundOn {
    /// A status that the upstream sent.
    Status(StatusCode),
    /// A class of statuses that the upstream sent, 1 to 5.
    Class(u8),
    /// A 502, 503 or 504 that the gateway made because the upstream failed.
    UpstreamError,
    /// A client that left before it had its answer.
    ClientAbort,
}

/// How a forwarded request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The upstream answered with this status.
    Answered(StatusCode),
    /// The gateway answered with this status for an upstream that failed.
    Failed(StatusCode),
    /// The gateway answered with this status, and the upstream was not to blame.
    Faulted(StatusCode),
    /// The client left before it had its answer.
    Abandoned,
    /// The request never reached the upstream.
    Unsent,
}

/// The text is nothing that a rule can give back for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown outcome \"{0}\"")]
pub struct RefundError(String);

/// The words that `refund` may list beside statuses.
pub const REFUND_WORDS: [&str; 7] = [
    "upstream-error",
    "client-abort",
    "1xx",
    "2xx",
    "3xx",
    "4xx",
    "5xx",
];

impl FromStr for RefundOn {
    type Err = RefundError;

    fn from_str(text: &str) -> Result<Self, RefundError> {
        match text {
            "upstream-error" => Ok(Self::UpstreamError),
            "client-abort" => Ok(Self::ClientAbort),
            "1xx" => Ok(Self::Class(1)),
            "2xx" => Ok(Self::Class(2)),
            "3xx" => Ok(Self::Class(3)),
            "4xx" => Ok(Self::Class(4)),
            "5xx" => Ok(Self::Class(5)),
            _ => StatusCode::from_bytes(text.as_bytes())
                .ok()
                .filter(|status| status.as_u16() < 600)
                .map(Self::Status)
                .ok_or_else(|| RefundError(text.to_owned())),
        }
    }
}

impl fmt::Display for RefundOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{}", status.as_u16()),
            Self::Class(class) => write!(f, "{class}xx"),
            Self::UpstreamError => f.write_str("upstream-error"),
            Self::ClientAbort => f.write_str("client-abort"),
        }
    }
}

impl Outcome {
    /// Whether a rule that gives back for `refund` owes this outcome its charge.
    pub fn owes(self, refund: &[RefundOn]) -> bool {
        match self {
            Self::Unsent => true,
            Self::Faulted(_) => false,
            Self::Abandoned => refund.contains(&RefundOn::ClientAbort),
            Self::Failed(status) => {
                matches!(status.as_u16(), 502..=504) && refund.contains(&RefundOn::UpstreamError)
            }
            Self::Answered(status) => refund.iter().any(|on| match on {
                RefundOn::Status(wanted) => *wanted == status,
                RefundOn::Class(class) => status.as_u16() / 100 == u16::from(*class),
                RefundOn::UpstreamError | RefundOn::ClientAbort => false,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(words: &[&str]) -> Vec<RefundOn> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    fn status(code: u16) -> StatusCode {
        StatusCode::from_u16(code).unwrap()
    }

    #[test]
    fn the_gateways_own_502_is_not_the_upstreams() {
        let errors = on(&["upstream-error"]);
        assert!(Outcome::Failed(status(502)).owes(&errors));
        assert!(Outcome::Failed(status(504)).owes(&errors));
        assert!(!Outcome::Answered(status(502)).owes(&errors));
        let class = on(&["5xx"]);
        assert!(Outcome::Answered(status(502)).owes(&class));
        assert!(Outcome::Answered(status(599)).owes(&class));
        assert!(!Outcome::Failed(status(502)).owes(&class));
    }

    #[test]
    fn statuses_and_classes_match_what_the_upstream_sent() {
        let listed = on(&["304", "4xx"]);
        for (code, owed) in [
            (304, true),
            (303, false),
            (400, true),
            (429, true),
            (500, false),
            (200, false),
        ] {
            assert_eq!(Outcome::Answered(status(code)).owes(&listed), owed, "{code}");
        }
    }

    #[test]
    fn a_client_that_leaves_is_charged_unless_the_rule_says_otherwise() {
        assert!(!Outcome::Abandoned.owes(&on(&["upstream-error", "5xx"])));
        assert!(Outcome::Abandoned.owes(&on(&["client-abort"])));
    }

    #[test]
    fn what_never_reached_the_upstream_is_always_given_back() {
        assert!(Outcome::Unsent.owes(&[]));
    }

    #[test]
    fn a_fault_of_the_client_is_never_given_back() {
        assert!(!Outcome::Faulted(status(413)).owes(&on(&["4xx", "413", "upstream-error", "client-abort"])));
    }

    #[test]
    fn refuses_words_that_mean_nothing() {
        for text in ["6xx", "99", "600", "+200", "", "errors", "4XX"] {
            assert!(text.parse::<RefundOn>().is_err(), "{text}");
        }
        assert_eq!("503".parse::<RefundOn>().unwrap().to_string(), "503");
    }
}
