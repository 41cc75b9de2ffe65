//! Why a server gave no decision.

use std::io;
use std::time::Duration;

use super::recount::WrongShape;
use super::settings::Address;
use crate::tls;

/// Why a server gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    /// Nobody has said where it listens.
    #[error("no Sentinel names it")]
    Unknown,
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// There is a connection, but no TLS over it, or not with whom it should be.
    #[error("no TLS: {0}")]
    Tls(String),
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
    /// Servers of a cluster name one another without end.
    #[error("the servers of the cluster name one another for the same key")]
    Circle,
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

/// Where else a call is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// The server.
    pub(super) address: Address,
    /// Whether only this call is, and later ones still come here.
    pub(super) once: bool,
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

    /// Whether a connection has to log in first.
    pub(super) fn wants_login(&self) -> bool {
        self.code == "NOAUTH"
    }

    /// Whether the server belongs to no cluster.
    pub(super) fn is_no_cluster(&self) -> bool {
        self.text.contains("cluster support disabled")
    }

    /// Whether the Sentinel knows no such master.
    pub(super) fn is_no_master(&self) -> bool {
        self.text.contains("No such master with that name")
    }

    /// Whether the keys of the call are on their way from one server to another.
    pub(super) fn is_tryagain(&self) -> bool {
        self.code == "TRYAGAIN"
    }

    /// The server of the cluster that has the keys, as one that listens at `here` names it.
    pub(super) fn redirect(&self, here: &Address) -> Option<Redirect> {
        let once = match self.code.as_str() {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let (host, port) = self.text.split(' ').nth(2)?.rsplit_once(':')?;
        Some(Redirect {
            address: here.neighbour(host, port.parse().ok()?),
            once,
        })
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

impl Cause {
    /// The connection ended, by the server's will as far as is known.
    pub(super) fn closed() -> Self {
        Self::Cut("closed by the server".to_owned())
    }
}

impl From<Refused> for Cause {
    fn from(refused: Refused) -> Self {
        Self::Answered(refused.text)
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        match tls::fault(&error) {
            Some(fault) => Self::Tls(fault),
            // A server that ends without a word of TLS.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::closed(),
            None => Self::Cut(error.to_string()),
        }
    }
}

impl From<WrongShape> for Cause {
    fn from(_: WrongShape) -> Self {
        Self::Odd
    }
}
