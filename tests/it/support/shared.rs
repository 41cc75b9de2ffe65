//! Gateways whose limits are in Redis.

use std::time::{Duration, Instant};

use super::{Answer, Config, Fault, Faulty, Gateway, Limits, Redis, Upstream, rule, wait_until};

/// How long a call may take here.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);
/// How soon limits are exact again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(5);
/// What a request may take beside: the machine may be busy.
pub(crate) const OWN_WORK: Duration = Duration::from_millis(700);
/// The `[store]` lines for it.
pub(crate) const STORE: &str = "deadline = \"100ms\"";
/// Of a thousand a day, what is local in an outage: five.
const SHARE: &str = "outage_share = 0.005";

/// The `[store]` table for these servers, with more lines.
pub(crate) fn on_redis(urls: &[&str], lines: &str) -> String {
    format!("[store]\nkind = \"redis\"\nshards = {urls:?}\n{lines}\n")
}

/// The `[store]` table for the cluster that these servers belong to, with more lines.
pub(crate) fn on_cluster(urls: &[String], lines: &str) -> String {
    format!("[store]\nkind = \"redis\"\ncluster = {urls:?}\n{lines}\n")
}

/// One rule for each thing that may be done without the store, at the path of its name.
pub(crate) fn three() -> String {
    let on = |name: &str, lines: &str| {
        let lines = format!("match = {{ path = \"/{name}\" }}\n{lines}");
        rule(name, "fixed-window", 1_000, "1d", &lines)
    };
    [
        on("local", SHARE),
        on("allow", "on_outage = \"allow\""),
        on("deny", "on_outage = \"deny\""),
    ]
    .concat()
}

/// One request, and how long it took.
#[track_caller]
pub(crate) fn timed(gateway: &Gateway, target: &str) -> (Answer, Duration) {
    let began = Instant::now();
    let answer = gateway.get(target);
    (answer, began.elapsed())
}

/// A gateway, its upstream, and its server behind a proxy that gets in the way when asked.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    pub(crate) proxy: Faulty,
    pub(crate) redis: Redis,
    pub(crate) upstream: Upstream,
}

impl Site {
    /// With a deadline of [`DEADLINE`], and these rules and other tables.
    #[track_caller]
    pub(crate) fn new(tables: &str) -> Self {
        Self::with(STORE, tables)
    }

    /// The same, with other lines for `[store]`.
    #[track_caller]
    pub(crate) fn with(store: &str, tables: &str) -> Self {
        Self::on(Redis::start(), store, tables)
    }

    /// The same, on this server.
    #[track_caller]
    pub(crate) fn on(redis: Redis, store: &str, tables: &str) -> Self {
        let upstream = Upstream::start();
        let proxy = Faulty::before(redis.port());
        let config = Config::new(&upstream)
            .and(&on_redis(&[&proxy.url()], store))
            .and(tables);
        Self {
            gateway: Gateway::start(&config),
            proxy,
            redis,
            upstream,
        }
    }

    /// The name of a metric of the one server, as `/metrics` writes it.
    pub(crate) fn series(&self, name: &str, labels: &str) -> String {
        let shard = self.proxy.url();
        let shard = shard.trim_start_matches("redis://");
        match labels {
            "" => format!("{name}{{shard=\"{shard}\"}}"),
            labels => format!("{name}{{{labels},shard=\"{shard}\"}}"),
        }
    }

    /// Waits until the gateway decides without the server.
    #[track_caller]
    pub(crate) fn await_trouble(&self) {
        self.gateway
            .await_metric(&self.series("tollgate_store_degraded", ""), 1.0);
    }

    /// Ends what goes wrong, and waits until the server decides again.
    #[track_caller]
    pub(crate) fn await_recovery(&self) {
        self.proxy.set(Fault::None);
        self.gateway
            .await_metric(&self.series("tollgate_store_degraded", ""), 0.0);
    }

    /// What is left of a thousand of the rule at this path before the next request.
    #[track_caller]
    pub(crate) fn left(&self, target: &str) -> u64 {
        let answer = self.gateway.get(target);
        assert_eq!(answer.status, 200);
        let limits = Limits::of(&answer);
        assert_eq!(limits.limit, 1_000, "{limits:?}");
        limits.remaining + 1
    }

    /// Waits until the server decides for [`three`]; what it is asked meanwhile goes on without it.
    #[track_caller]
    pub(crate) fn await_decisions(&self) {
        wait_until("a decision", RECOVERY, || {
            let answer = self.gateway.get("/allow");
            assert_eq!(answer.status, 200);
            answer.field("x-ratelimit-limit").is_some()
        });
    }
}
