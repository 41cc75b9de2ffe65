//! Gateway configs for tests: any port, one worker, the tables that a test asks for.

use std::net::SocketAddr;

use super::Upstream;

/// All algorithms that have a window.
pub(crate) const ALGORITHMS: [&str; 5] = [
    "fixed-window",
    "sliding-log",
    "sliding-window",
    "token-bucket",
    "gcra",
];

/// The text of a config.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    server: String,
    timeouts: String,
    limits: String,
    admin: String,
    log: String,
    upstream: String,
    rest: String,
}

impl Config {
    pub(crate) fn new(upstream: &Upstream) -> Self {
        Self::to(upstream.addr())
    }

    pub(crate) fn to(upstream: SocketAddr) -> Self {
        Self {
            server: "workers = 1".to_owned(),
            timeouts: String::new(),
            limits: String::new(),
            admin: "listen = \"127.0.0.1:0\"".to_owned(),
            log: "level = \"info\"".to_owned(),
            upstream: format!("[upstream.api]\ntargets = [\"http://{upstream}\"]"),
            rest: String::new(),
        }
    }

    /// Lines for `[server]`.
    pub(crate) fn server(mut self, lines: &str) -> Self {
        self.server = lines.to_owned();
        self
    }

    /// Lines for `[server.timeouts]`.
    pub(crate) fn timeouts(mut self, lines: &str) -> Self {
        self.timeouts = lines.to_owned();
        self
    }

    /// Lines for `[server.limits]`.
    pub(crate) fn limits(mut self, lines: &str) -> Self {
        self.limits = lines.to_owned();
        self
    }

    /// Lines for `[admin]` instead of a free port.
    pub(crate) fn admin(mut self, lines: &str) -> Self {
        self.admin = lines.to_owned();
        self
    }

    /// Lines for `[log]`.
    pub(crate) fn log(mut self, lines: &str) -> Self {
        self.log = lines.to_owned();
        self
    }

    /// Everything about upstreams, instead of the one.
    pub(crate) fn upstream(mut self, tables: &str) -> Self {
        self.upstream = tables.to_owned();
        self
    }

    /// More tables: rules, routes, `[identity]`, …
    pub(crate) fn and(mut self, tables: &str) -> Self {
        self.rest.push_str(tables);
        self.rest.push('\n');
        self
    }

    pub(crate) fn text(&self) -> String {
        let Self {
            server,
            timeouts,
            limits,
            admin,
            log,
            upstream,
            rest,
        } = self;
        format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n{server}\n[server.timeouts]\n{timeouts}\n\
             [server.limits]\n{limits}\n[admin]\n{admin}\n[log]\n{log}\n{upstream}\n{rest}"
        )
    }
}

/// A rule for all requests, with one bucket for all callers: `lines` add to it, `key` included where they name one.
pub(crate) fn rule(name: &str, algorithm: &str, limit: u64, window: &str, lines: &str) -> String {
    let key = if lines.lines().any(|line| line.trim_start().starts_with("key")) {
        ""
    } else {
        "key = []\n"
    };
    let burst = if algorithm == "gcra" && !lines.contains("burst") {
        format!("burst = {limit}\n")
    } else {
        String::new()
    };
    format!(
        "[[rule]]\nname = \"{name}\"\nalgorithm = \"{algorithm}\"\nlimit = {limit}\nwindow = \"{window}\"\n{burst}{key}{lines}\n"
    )
}
