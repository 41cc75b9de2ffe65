//! `store.snapshot`: counts outlive a restart, and nothing but a snapshot is believed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{ALGORITHMS, Ask, Config, Gateway, Limits, Upstream, rule, tollgate};

const PATIENCE: Duration = Duration::from_secs(10);

struct Bench {
    upstream: Upstream,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            upstream: Upstream::start(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("limits.snap")
    }

    fn config(&self, store: &str, algorithm: &str) -> Config {
        self.at(&self.path(), store, algorithm)
    }

    fn at(&self, path: &Path, store: &str, algorithm: &str) -> Config {
        Config::new(&self.upstream)
            .and(&format!("[store]\nsnapshot = {path:?}\n{store}\n"))
            .and(&rule("r", algorithm, 2, "1h", "").replace("key = []", "key = [\"header:x-user\"]"))
    }
}

fn ann() -> Ask {
    Ask::get("/").field("x-user", "ann")
}

/// Uses up what the caller may do.
#[track_caller]
fn exhaust(gateway: &Gateway) {
    let mut client = gateway.client();
    let last = (0..5).map(|_| client.ask(&ann()).status).last();
    assert_eq!(last, Some(429));
}

#[track_caller]
fn stop(mut gateway: Gateway) {
    gateway.term();
    assert!(gateway.ended_within(PATIENCE).success());
}

#[test]
fn who_was_over_the_limit_still_is_after_a_restart() {
    for algorithm in ALGORITHMS {
        for store in ["", "hash_key = \"s3cret\""] {
            let bench = Bench::new();
            let config = bench.config(store, algorithm);
            let gateway = Gateway::start(&config);
            gateway.await_log("no snapshot yet");
            exhaust(&gateway);
            let before = Limits::of(&gateway.ask(&ann()));
            stop(gateway);
            let mode = fs::metadata(bench.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let gateway = Gateway::start(&config);
            gateway.await_log("snapshot read");
            let answer = gateway.ask(&ann());
            assert_eq!(answer.status, 429, "{algorithm} {store}");
            let after = Limits::of(&answer);
            assert_eq!(after.limit, before.limit);
            let (was, is) = (before.retry_after.unwrap(), after.retry_after.unwrap());
            assert!(
                is <= was && is + 10 > was,
                "{algorithm}: {was} s before, {is} s after"
            );
            let bob = Ask::get("/").field("x-user", "bob");
            assert_eq!(gateway.ask(&bob).status, 200);
        }
    }
}

#[test]
fn a_relative_name_begins_at_the_configs_folder() {
    let bench = Bench::new();
    let mut gateway = Gateway::start(&bench.at(Path::new("my.snap"), "", "gcra"));
    gateway.term();
    assert!(gateway.ended_within(PATIENCE).success());
    assert!(gateway.folder().join("my.snap").is_file());
}

#[test]
fn a_file_that_is_no_snapshot_is_said_to_be_and_the_store_starts_empty() {
    let bench = Bench::new();
    let config = bench.config("", "fixed-window");
    let gateway = Gateway::start(&config);
    exhaust(&gateway);
    stop(gateway);
    let whole = fs::read(bench.path()).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut newer = whole.clone();
    newer[8] = 9;
    for (bytes, why) in [
        (damaged.as_slice(), "it is damaged"),
        (&whole[..whole.len() - 1], "it is damaged"),
        (newer.as_slice(), "it is of version 9"),
        (b"", "it is not a snapshot"),
        (b"[server]\nlisten = []\n", "it is not a snapshot"),
    ] {
        fs::write(bench.path(), bytes).unwrap();
        let gateway = Gateway::start(&config);
        let line = gateway.await_log("snapshot not used: starting empty");
        assert!(line.contains("WARN") && line.contains(why), "{line}");
        assert_eq!(gateway.ask(&ann()).status, 200, "{why}");
    }
    fs::write(bench.path(), &whole).unwrap();
    let gateway = Gateway::start(&bench.config("hash_key = \"other\"", "fixed-window"));
    let line = gateway.await_log("snapshot not used");
    assert!(line.contains("another secret"), "{line}");
}

#[test]
fn a_kill_writes_nothing_and_the_one_before_is_read() {
    let bench = Bench::new();
    let config = bench.config("", "sliding-log");
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.ask(&ann()).status, 200);
    stop(gateway);
    let before = fs::read(bench.path()).unwrap();
    let gateway = Gateway::start(&config);
    assert_eq!(Limits::of(&gateway.ask(&ann())).remaining, 0);
    drop(gateway);
    assert_eq!(fs::read(bench.path()).unwrap(), before);
    let gateway = Gateway::start(&config);
    assert_eq!(
        Limits::of(&gateway.ask(&ann())).remaining,
        0,
        "what was counted since is forgotten"
    );
}

#[test]
fn a_reload_changes_where_it_is_written() {
    let bench = Bench::new();
    let gateway = Gateway::start(&bench.config("", "token-bucket"));
    exhaust(&gateway);
    let other = bench.folder.path().join("other.snap");
    let config = bench.at(&other, "", "token-bucket");
    gateway.reload(&config);
    stop(gateway);
    assert!(other.is_file() && !bench.path().exists());
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.ask(&ann()).status, 429);
}

#[test]
fn what_cannot_be_written_is_said_at_the_start_and_at_the_end() {
    let bench = Bench::new();
    let nowhere = bench.folder.path().join("none/limits.snap");
    let mut gateway = Gateway::start(&bench.at(&nowhere, "", "gcra"));
    let line = gateway.await_log("the snapshot cannot be written there");
    assert!(line.contains("WARN"), "{line}");
    let from = gateway.log().lines().count();
    gateway.reload(&bench.at(&nowhere, "max_keys = 5", "gcra"));
    gateway.await_log_from(from, "the snapshot cannot be written there");
    gateway.term();
    assert!(gateway.ended_within(PATIENCE).success());
    let line = gateway.await_log("snapshot not written");
    assert!(line.contains("ERROR"), "{line}");
}

#[test]
fn an_explanation_hashes_with_the_secret_of_the_snapshot() {
    let bench = Bench::new();
    let config = bench.config("", "gcra");
    stop(Gateway::start(&config));
    let file = bench.folder.path().join("gateway.toml");
    fs::write(&file, config.text()).unwrap();
    let explain = || {
        let output = tollgate(&["explain", "GET", "/", "--config", file.to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap()
    };
    let told = explain();
    assert!(told.contains("hash") && !told.contains("of this run"), "{told}");
    assert_eq!(told, explain());
}
