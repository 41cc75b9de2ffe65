//! Redis by TLS: whom the gateway trusts, and what becomes of requests while it trusts nobody who is there.

use tempfile::TempDir;

use crate::support::{
    Ask, Authority, ByTls, Config, Gateway, Limits, RECOVERY, Upstream, on_redis, three, wait_until,
};

/// Long enough for a handshake by binaries that were not made to be fast.
const STORE: &str = "deadline = \"1s\"";

/// A gateway whose limits are at this URL, and which trusts one authority.
struct Site {
    gateway: Gateway,
    upstream: Upstream,
    url: String,
    folder: TempDir,
}

impl Site {
    #[track_caller]
    fn new(url: &str, trusted: &Authority) -> Self {
        let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("ca.pem"), trusted.pem()).unwrap();
        let config = config(&upstream, url, &folder);
        Self {
            gateway: Gateway::start(&config),
            upstream,
            url: url.to_owned(),
            folder,
        }
    }

    /// What `tollgate_store_degraded` of the server is waited for to be.
    #[track_caller]
    fn await_degraded(&self, value: f64) {
        let shard = self.url.split("//").last().unwrap();
        let series = format!("tollgate_store_degraded{{shard=\"{shard}\"}}");
        self.gateway.await_metric(&series, value);
    }

    /// Checks that requests go on without the server, and that the operator is told why.
    #[track_caller]
    fn is_in_trouble(&self, why: &str) {
        self.await_degraded(1.0);
        assert_eq!(self.gateway.get("/deny").status, 503);
        assert_eq!(self.gateway.get("/allow").status, 200);
        let local = Limits::of(&self.gateway.get("/local"));
        assert_eq!(local.resource, "local;fallback");
        let ready = || self.gateway.admin(&Ask::get("/readyz"));
        wait_until(why, RECOVERY, || ready().text().contains(why));
        assert_eq!(ready().status, 200);
        let log = self.gateway.log();
        assert!(log.contains(why), "{why} in {log}");
    }

    /// Waits until the server decides, which is without a restart of the gateway.
    #[track_caller]
    fn recovers(&self) {
        self.await_degraded(0.0);
        assert_eq!(Limits::of(&self.gateway.get("/deny")).limit, 1_000);
    }
}

fn config(upstream: &Upstream, url: &str, folder: &TempDir) -> Config {
    let ca = folder.path().join("ca.pem");
    let store = on_redis(&[url], &format!("{STORE}\nca = {ca:?}"));
    Config::new(upstream).and(&store).and(&three())
}

#[test]
fn requests_are_counted() {
    let authority = Authority::new("one");
    let server = ByTls::start(authority.signs(&["localhost", "127.0.0.1"]), &[]);
    for host in ["localhost", "127.0.0.1"] {
        let site = Site::new(&server.url(host), &authority);
        server.redis.ask::<()>(&["FLUSHALL"]);
        for left in [999, 998, 997] {
            assert_eq!(Limits::of(&site.gateway.get("/deny")).remaining, left, "{host}");
        }
        assert_eq!(server.redis.ask::<usize>(&["DBSIZE"]), 1);
    }
}

#[test]
fn a_certificate_for_another_host_is_none() {
    let authority = Authority::new("one");
    for (host, other) in [("localhost", "other.example"), ("127.0.0.1", "127.0.0.2")] {
        let mut server = ByTls::start(authority.signs(&[other]), &[]);
        let site = Site::new(&server.url(host), &authority);
        site.is_in_trouble("certificate not valid for name");
        server.restart_as(&authority, &[host]);
        site.recovers();
    }
}

#[test]
fn a_certificate_by_somebody_else_is_none() {
    let (authority, other) = (Authority::new("one"), Authority::new("other"));
    let server = ByTls::start(other.signs(&["localhost"]), &[]);
    let site = Site::new(&server.url("localhost"), &authority);
    site.is_in_trouble("signed by nobody who is trusted");
    // The same file with something else in it is another store.
    std::fs::write(site.folder.path().join("ca.pem"), other.pem()).unwrap();
    site.gateway
        .reload(&config(&site.upstream, &site.url, &site.folder));
    site.recovers();
}
