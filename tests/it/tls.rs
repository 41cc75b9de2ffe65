//! Redis by TLS: whom the gateway trusts, and what becomes of requests while nobody is there whom it does.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Ask, Authority, ByTls, Cluster, Config, Gateway, Limits, OF_A_CLUSTER, OWN_WORK, RECOVERY, Redis,
    Sentinel, Upstream, on_cluster, on_redis, on_sentinel, rule, threads, three, timed, wait_until,
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
        Self::with(url, trusted, STORE)
    }

    /// The same, with these lines for `[store]`.
    #[track_caller]
    fn with(url: &str, trusted: &Authority, lines: &str) -> Self {
        let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("ca.pem"), trusted.pem()).unwrap();
        let config = config(&upstream, url, &folder, lines);
        Self {
            gateway: Gateway::start(&config),
            upstream,
            url: url.to_owned(),
            folder,
        }
    }

    /// Names another server, and trusts somebody else.
    #[track_caller]
    fn moves_to(&mut self, url: &str, trusted: &Authority) {
        url.clone_into(&mut self.url);
        std::fs::write(self.folder.path().join("ca.pem"), trusted.pem()).unwrap();
        let config = config(&self.upstream, url, &self.folder, STORE);
        self.gateway.reload(&config);
    }

    /// Waits until the metric says so of the server.
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

fn config(upstream: &Upstream, url: &str, folder: &TempDir, lines: &str) -> Config {
    let ca = match url.starts_with("rediss:") {
        true => format!("ca = {:?}", folder.path().join("ca.pem")),
        false => String::new(),
    };
    let store = on_redis(&[url], &format!("{lines}\n{ca}"));
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
    let url = server.url("localhost");
    let mut site = Site::new(&url, &authority);
    site.is_in_trouble("signed by nobody who is trusted");
    // The same file with something else in it is another store.
    site.moves_to(&url, &other);
    site.recovers();
    site.moves_to(&url, &authority);
    site.is_in_trouble("signed by nobody who is trusted");
}

#[test]
fn a_port_without_tls_is_told_from_one_with() {
    let authority = Authority::new("one");
    let server = ByTls::start(authority.signs(&["127.0.0.1"]), &[]);
    let plain = server.redis.url().replace("redis:", "rediss:");
    let mut site = Site::new(&plain, &authority);
    site.is_in_trouble("as from a port without TLS");
    site.moves_to(&server.url("127.0.0.1"), &authority);
    site.recovers();
    site.moves_to(&server.url("127.0.0.1").replace("rediss:", "redis:"), &authority);
    site.is_in_trouble("the connection ended");
    site.moves_to(&server.redis.url(), &authority);
    site.recovers();
}

#[test]
fn killed_and_back() {
    let authority = Authority::new("one");
    let mut server = ByTls::start(authority.signs(&["127.0.0.1"]), &[]);
    let site = Site::new(&server.url("127.0.0.1"), &authority);
    assert_eq!(Limits::of(&site.gateway.get("/deny")).remaining, 999);
    server.redis.kill();
    for _ in 0..4 {
        assert_eq!(site.gateway.get("/deny").status, 503);
    }
    site.is_in_trouble("Connection refused");
    server.redis.revive();
    site.recovers();
    let left = Limits::of(&site.gateway.get("/deny")).remaining;
    assert_eq!(left, 998, "the server forgot, and counts again");
}

#[test]
fn frozen_and_thawed() {
    let authority = Authority::new("one");
    let server = ByTls::start(authority.signs(&["127.0.0.1"]), &[]);
    let deadline = Duration::from_millis(300);
    let site = Site::with(&server.url("127.0.0.1"), &authority, "deadline = \"300ms\"");
    assert_eq!(Limits::of(&site.gateway.get("/deny")).remaining, 999);
    server.redis.freeze();
    for _ in 0..3 {
        let (answer, time) = timed(&site.gateway, "/deny");
        assert_eq!(answer.status, 503);
        assert!(time < deadline + OWN_WORK, "{time:?}");
    }
    site.is_in_trouble("no answer to a handshake");
    server.redis.thaw();
    site.recovers();
    let left = Limits::of(&site.gateway.get("/deny")).remaining;
    assert_eq!(left, 997, "what was asked in vain is not charged");
}

#[test]
fn a_server_that_wants_a_certificate_of_the_gateway_says_so() {
    let authority = Authority::new("one");
    let shown = authority.signs(&["127.0.0.1"]);
    let ca = shown.beside("ca.pem", authority.pem());
    let demand = ["--tls-auth-clients", "yes", "--tls-ca-cert-file", &ca];
    let server = ByTls::start(shown, &demand);
    let site = Site::new(&server.url("127.0.0.1"), &authority);
    site.is_in_trouble("CertificateRequired");
    server
        .redis
        .ask::<()>(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    site.recovers();
}

#[test]
fn two_versions_of_tls_are_spoken_and_older_ones_are_not() {
    let authority = Authority::new("one");
    for (version, is_spoken) in [("TLSv1.2", true), ("TLSv1.3", true), ("TLSv1.1", false)] {
        // The library of the server would refuse it as well.
        let weak = ["--tls-ciphers", "DEFAULT:@SECLEVEL=0"];
        let options = ["--tls-protocols", version, weak[0], weak[1]];
        let server = ByTls::start(authority.signs(&["127.0.0.1"]), &options);
        let site = Site::new(&server.url("127.0.0.1"), &authority);
        match is_spoken {
            true => assert_eq!(Limits::of(&site.gateway.get("/deny")).remaining, 999, "{version}"),
            false => site.is_in_trouble("ProtocolVersion"),
        }
    }
}

#[test]
fn without_ca_those_are_trusted_whom_the_system_trusts() {
    let authority = Authority::new("one");
    let shown = authority.signs(&["127.0.0.1"]);
    let (ca, empty) = (
        shown.beside("ca.pem", authority.pem()),
        shown.beside("empty.pem", ""),
    );
    let server = ByTls::start(shown, &[]);
    let upstream = Upstream::start();
    let config = Config::new(&upstream)
        .and(&on_redis(&[&server.url("127.0.0.1")], STORE))
        .and(&three());
    let gateway = Gateway::start_text(&config.text(), &[("SSL_CERT_FILE", &ca)]);
    assert_eq!(Limits::of(&gateway.get("/deny")).remaining, 999);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    std::fs::write(&path, config.text()).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--config"])
        .arg(&path)
        .env("SSL_CERT_FILE", &empty)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("the system has no CA certificates"), "{said}");
}

#[test]
fn a_flood_over_servers_with_and_without_tls_gets_the_limit_and_no_more() {
    let authority = Authority::new("one");
    let server = ByTls::start(authority.signs(&["127.0.0.1"]), &[]);
    let plain = Redis::start();
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let urls = [plain.url(), server.url("127.0.0.1")];
    let store = on_redis(&[&urls[0], &urls[1]], &format!("deadline = \"2s\"\nca = {ca:?}"));
    let limit = rule("r", "sliding-log", 20, "1d", "key = [\"header:x-user\"]");
    let config = Config::new(&upstream).and(&store).and(&limit);
    let gateways = [Gateway::start(&config), Gateway::start(&config)];
    let admitted = threads((0..16_usize).collect(), |client| {
        let mut link = gateways[client % 2].client();
        let asks = (0..64).map(|turn| Ask::get("/").field("x-user", (turn % 16).to_string()));
        let statuses = asks.map(|ask| link.ask(&ask).status);
        statuses.filter(|status| *status == 200).count()
    });
    assert_eq!(admitted.into_iter().sum::<usize>(), 16 * 20);
    let keys = [&plain, &server.redis].map(|redis| redis.ask::<usize>(&["DBSIZE"]));
    assert_eq!(keys[0] + keys[1], 16);
    assert!(keys[0] > 0 && keys[1] > 0, "{keys:?}");
}

#[test]
fn the_servers_of_a_cluster_are_found_and_spoken_to_by_tls() {
    let authority = Authority::new("one");
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    // Else its members announce the ports where they do not speak TLS.
    let by_tls = ["--tls-cluster", "yes", "--tls-ca-cert-file", ca.to_str().unwrap()];
    let options = [&OF_A_CLUSTER[..], &by_tls].concat();
    let mut shown = Vec::new();
    let nodes = (0..2).map(|_| {
        let node = ByTls::start(authority.signs(&["127.0.0.1"]), &options);
        shown.push((node.port, node.shown));
        node.redis
    });
    let nodes: Vec<Redis> = nodes.collect();
    let first = shown[0].0;
    let cluster = Cluster::join(nodes, 2, first);
    let seed = format!("rediss://127.0.0.1:{first}");
    let store = on_cluster(&[seed], &format!("{STORE}\nca = {ca:?}"));
    let upstream = Upstream::start();
    let users = rule("user", "fixed-window", 3, "1d", "key = [\"header:x-user\"]");
    let gateway = Gateway::start(&Config::new(&upstream).and(&store).and(&users));
    for user in 0..20 {
        let ask = Ask::get("/").field("x-user", format!("user-{user}"));
        let statuses: Vec<u16> = (0..4).map(|_| gateway.ask(&ask).status).collect();
        assert_eq!(statuses, [200, 200, 200, 429]);
        assert_eq!(Limits::of(&gateway.ask(&ask)).resource, "user");
    }
    assert!(
        cluster
            .nodes()
            .iter()
            .all(|node| node.ask::<usize>(&["DBSIZE"]) > 0)
    );
}

#[test]
fn sentinels_and_the_primary_that_they_name_are_spoken_to_by_tls() {
    let authority = Authority::new("one");
    let server = ByTls::start(authority.signs(&["127.0.0.1"]), &[]);
    let sentinel = Sentinel::over(server.port, 1, |port| server.sentinel(&authority, port));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let node = format!("rediss://127.0.0.1:{}", sentinel.port());
    let ca = format!("{STORE}\nca = {:?}", folder.path().join("ca.pem"));
    let upstream = Upstream::start();
    let config = Config::new(&upstream)
        .and(&on_sentinel(&[node], &ca))
        .and(&three());
    let gateway = Gateway::start(&config);
    for left in (995..1_000).rev() {
        assert_eq!(Limits::of(&gateway.get("/deny")).remaining, left);
    }
    assert_eq!(server.redis.ask::<usize>(&["DBSIZE"]), 1);
}
