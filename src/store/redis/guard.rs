//! What makes a server one to keep limiters on.

use redis::Value;

use super::cause::Cause;
use super::settings::Eviction;

/// What `INFO` says of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Its life: another one may have lost what this one knew.
    pub(super) run_id: String,
    role: String,
    version: String,
    policy: String,
    /// Whether it belongs to a cluster.
    in_cluster: bool,
    loading: bool,
}

/// One thing that a server must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// A primary: a replica takes no charge, and what it knows is late.
    Role,
    /// Of a version that runs the scripts.
    Version,
    /// One that never evicts keys: an evicted limiter is a fresh quota.
    Eviction,
}

/// A check that fails: what is so, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failing {
    /// Which.
    pub(super) check: Check,
    /// What is so, what to set, and why.
    pub(super) why: String,
}

/// The oldest version that serves.
const OLDEST: (u32, u32) = (6, 2);

impl Check {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Role, Self::Version, Self::Eviction];

    /// Its name in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Version => "version",
            Self::Eviction => "eviction",
        }
    }
}

impl Server {
    /// What the answer to `INFO` says.
    ///
    /// # Errors
    /// It does not say what a server is, or the server still loads its data.
    pub(super) fn read(info: &Value) -> Result<Self, Cause> {
        let text = match info {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| Cause::Odd)?,
            _ => return Err(Cause::Odd),
        };
        let find = |name: &str| {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(|value| value.trim_end().to_owned())
        };
        let server = Self {
            run_id: find("run_id").ok_or(Cause::Odd)?,
            role: find("role").ok_or(Cause::Odd)?,
            version: find("redis_version").ok_or(Cause::Odd)?,
            policy: find("maxmemory_policy").ok_or(Cause::Odd)?,
            in_cluster: find("cluster_enabled").is_some_and(|enabled| enabled == "1"),
            loading: find("loading").is_some_and(|loading| loading != "0"),
        };
        match server.loading {
            true => Err(Cause::Answered("LOADING".to_owned())),
            false => Ok(server),
        }
    }

    /// The checks that fail of a server that is to belong to a `cluster`, or not.
    pub(super) fn failing(&self, cluster: bool) -> Vec<Failing> {
        let mut failing = Vec::new();
        let mut fail = |check, why| failing.push(Failing { check, why });
        if self.role != "master" {
            let why = format!(
                "it is a {}: name its primary, for a replica takes no charges and knows late",
                self.role
            );
            fail(Check::Role, why);
        } else if self.in_cluster && !cluster {
            let why = "it belongs to a cluster: list it under `cluster`, for it takes charges for its own slots alone";
            fail(Check::Role, why.to_owned());
        }
        if self.release() < OLDEST {
            let why = format!(
                "it is of version {}: Redis {}.{} or later, or Valkey, serves",
                self.version, OLDEST.0, OLDEST.1
            );
            fail(Check::Version, why);
        }
        if self.policy != "noeviction" {
            let why = format!(
                "its maxmemory-policy is {}: `CONFIG SET maxmemory-policy noeviction`, for an evicted limiter is a fresh \
                 quota; the policy is the server's, so a logical database of its own does not help: give limiters a \
                 server of their own, or set store.eviction = \"allow\"",
                self.policy
            );
            fail(Check::Eviction, why);
        }
        failing
    }

    fn release(&self) -> (u32, u32) {
        let mut numbers = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl Failing {
    /// Whether the server cannot decide: an evicting one can, only not for long.
    pub(super) fn is_trouble(&self) -> bool {
        self.check != Check::Eviction
    }

    /// Whether a gateway does not start with such a server.
    pub(super) fn forbids_start(&self, eviction: Eviction) -> bool {
        self.is_trouble() || eviction == Eviction::Refuse
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{Check, Server};
    use crate::store::redis::cause::Cause;
    use crate::store::redis::settings::Eviction;

    fn info(role: &str, version: &str, policy: &str, loading: u8) -> Value {
        let text = format!(
            "# Server\r\nredis_version:{version}\r\nrun_id:abc\r\n# Persistence\r\nloading:{loading}\r\nasync_loading:0\r\n\
             # Memory\r\nmaxmemory_policy:{policy}\r\n# Replication\r\nrole:{role}\r\n"
        );
        Value::BulkString(text.into_bytes())
    }

    #[test]
    fn a_primary_that_evicts_nothing_serves() {
        for version in ["6.2.0", "7.0.15", "8.2.1", "10.0.0"] {
            let server = Server::read(&info("master", version, "noeviction", 0)).unwrap();
            assert_eq!(
                (server.run_id.as_str(), server.failing(false)),
                ("abc", Vec::new())
            );
        }
    }

    #[test]
    fn what_does_not_serve_is_named_with_what_would() {
        for (check, says, start, server) in [
            (
                Check::Role,
                "name its primary",
                false,
                info("slave", "7.0.0", "noeviction", 0),
            ),
            (
                Check::Version,
                "6.2 or later",
                false,
                info("master", "6.0.16", "noeviction", 0),
            ),
            (
                Check::Version,
                "6.2 or later",
                false,
                info("master", "5.0.1", "noeviction", 0),
            ),
            (
                Check::Eviction,
                "maxmemory-policy noeviction",
                true,
                info("master", "7.0.0", "volatile-ttl", 0),
            ),
        ] {
            let failing = Server::read(&server).unwrap().failing(false);
            assert_eq!(failing.len(), 1);
            assert_eq!(failing[0].check, check);
            assert!(failing[0].why.contains(says), "{}", failing[0].why);
            assert!(failing[0].forbids_start(Eviction::Refuse));
            assert_eq!(!failing[0].forbids_start(Eviction::Allow), start);
        }
    }

    #[test]
    fn one_of_a_cluster_serves_where_a_cluster_is_meant() {
        let mut server = Server::read(&info("master", "7.0.0", "noeviction", 0)).unwrap();
        server.in_cluster = true;
        assert_eq!(server.failing(true), Vec::new());
        assert_eq!(server.failing(false)[0].check, Check::Role);
    }

    #[test]
    fn a_server_that_loads_or_says_nothing_gives_no_answer() {
        let loading = Server::read(&info("master", "7.0.0", "noeviction", 1));
        assert_eq!(loading, Err(Cause::Answered("LOADING".to_owned())));
        assert_eq!(Server::read(&Value::Nil), Err(Cause::Odd));
        assert_eq!(
            Server::read(&Value::BulkString(b"role:master".to_vec())),
            Err(Cause::Odd)
        );
    }
}
