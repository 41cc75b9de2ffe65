//! What the store in Redis is made with.

use std::fmt;
use std::time::Duration;

use crate::tls::TlsClient;

/// What the store in Redis is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the names of all keys begin with.
    pub prefix: String,
    /// Where the keys are.
    pub servers: Servers,
    /// The user to log in as; without one, the server's default user.
    pub username: Option<String>,
    /// The password to log in with; without one and without a user, there is no login.
    pub password: Option<Password>,
    /// How servers are spoken to whose addresses are for TLS; without it they are not.
    pub tls: Option<TlsClient>,
    /// The logical database.
    pub database: u32,
    /// How many partitions the keys fall into, at least one.
    pub partitions: u16,
    /// The longest that a request waits for an answer.
    pub deadline: Duration,
    /// What becomes of a server that may evict limiters.
    pub eviction: Eviction,
}

/// The servers that the keys are shared out to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// These primaries: at least one, each once.
    Shards(Vec<Address>),
    /// The primaries of the cluster that at least one of these belongs to.
    Cluster(Vec<Address>),
    /// The primary that Sentinels name.
    Sentinel {
        /// What they call it.
        master: String,
        /// The Sentinels that are asked first: at least one.
        nodes: Vec<Address>,
    },
}

/// Where a server listens. It is shown, and keys find their home, without regard to TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address, an IPv6 one without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Whether it is spoken to by TLS.
    pub tls: bool,
}

/// What becomes of a server whose `maxmemory-policy` is not `noeviction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The gateway does not start with it.
    Refuse,
    /// A warning.
    Allow,
}

/// A password, which is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Servers {
    /// The servers as they are configured.
    pub fn listed(&self) -> &[Address] {
        match self {
            Self::Shards(listed) | Self::Cluster(listed) | Self::Sentinel { nodes: listed, .. } => listed,
        }
    }
}

impl Settings {
    /// Whether each partition is decided in a call of its own: its server may not be its neighbour's for long.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }
}

impl Address {
    /// The server of the same cluster that it says is at `host`, which is its own host where it says none.
    pub(super) fn neighbour(&self, host: &str, port: u16) -> Self {
        let host = match host {
            "" | "?" => &self.host,
            host => host,
        };
        Self {
            host: host.to_owned(),
            port,
            tls: self.tls,
        }
    }
}

impl Password {
    /// This text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, to be sent.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
