//! Why a server gave no decision.

use std::io;
use std::time::Duration;

use super::recount::WrongShape;

/// Why a server gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Cut(String),
    /// Nothing came in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// An error reply.
    #[error("it answers {0}")]
    Answered(String),
    /// A reply that no script of ours gives.
    #[error("it answers what no script of ours says")]
    Odd,
    /// It does not serve as a store.
    #[error("{0}")]
    Unfit(String),
}

/// Codes of error replies that are given before a script has changed anything: by the server before it runs it, or by
/// the first command that would write.
const BEFORE: [&str; 15] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOPERM",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "WRONGPASS",
    "MOVED",
    "ASK",
    "TRYAGAIN",
];

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// Its first word.
    code: String,
    text: String,
}

impl Refused {
    /// The reply with this code and what follows it.
    pub(super) fn new(code: &str, detail: Option<&str>) -> Self {
        let text = format!("{code} {}", detail.unwrap_or_default());
        Self {
            code: code.to_owned(),
            text: text.trim_end().chars().take(200).collect(),
        }
    }

    /// Whether the script is not known.
    pub(super) fn is_noscript(&self) -> bool {
        self.code == "NOSCRIPT"
    }

    /// Whether nothing can have been changed.
    pub(super) fn is_before(&self) -> bool {
        BEFORE.contains(&self.code.as_str())
    }

    /// Whether another connection may be answered otherwise: this one is not, or no longer, logged in, or it leads to a
    /// server that is no primary any more.
    pub(super) fn is_of_connection(&self) -> bool {
        ["NOAUTH", "NOPERM", "WRONGPASS", "READONLY", "MASTERDOWN"].contains(&self.code.as_str())
    }
}

impl From<Refused> for Cause {
    fn from(refused: Refused) -> Self {
        Self::Answered(refused.text)
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::Cut(error.to_string())
    }
}

impl From<WrongShape> for Cause {
    fn from(_: WrongShape) -> Self {
        Self::Odd
    }
}
