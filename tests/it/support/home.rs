//! Where limits are kept that a test does not say the place of.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{OnceLock, mpsc};

use super::redis::servers_end_with_this_thread;
use super::{Cluster, Redis, Watched, on_cluster, on_redis};

/// Where one gateway keeps its limits, if not in its memory.
pub(crate) struct Home {
    /// Its `[store]` table.
    pub(crate) store: String,
    _own: Option<Redis>,
}

/// The variable that says it: `redis` for a server of each gateway's own; `shards`, `cluster` or `sentinel` for servers
/// that all share, each under a prefix of its own. Without it, in memory.
const STORE: &str = "TOLLGATE_TEST_STORE";
/// What a call may take: the machine is busy.
const DEADLINE: &str = "deadline = \"2s\"";

impl Home {
    /// The home that a gateway with this config gets.
    #[track_caller]
    pub(crate) fn of(config: &str) -> Option<Self> {
        if config.contains("[store]") {
            return None;
        }
        let wanted = std::env::var(STORE).ok()?;
        if wanted == "redis" {
            let own = Redis::start();
            let store = on_redis(&[&own.url()], DEADLINE);
            return Some(Self {
                store,
                _own: Some(own),
            });
        }
        static SHARED: OnceLock<String> = OnceLock::new();
        static PREFIXES: AtomicUsize = AtomicUsize::new(0);
        let shared = SHARED.get_or_init(|| shared(wanted));
        let prefix = PREFIXES.fetch_add(1, Relaxed);
        let store = format!("{shared}prefix = \"gateway-{prefix}\"\n");
        Some(Self { store, _own: None })
    }
}

/// Starts servers that go on until the tests end; the table that says where they are.
fn shared(wanted: String) -> String {
    let (started, store) = mpsc::channel();
    std::thread::spawn(move || {
        servers_end_with_this_thread();
        match wanted.as_str() {
            "shards" => {
                let shards: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
                let urls: Vec<String> = shards.iter().map(Redis::url).collect();
                let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
                stay(&started, on_redis(&urls, DEADLINE), shards)
            }
            "cluster" => {
                let cluster = Cluster::start(3, 0);
                stay(&started, on_cluster(&cluster.urls(), DEADLINE), cluster)
            }
            "sentinel" => {
                let watched = Watched::start(1);
                stay(&started, watched.store(DEADLINE), watched)
            }
            other => panic!("{STORE} is {other}, and not redis, shards, cluster or sentinel"),
        }
    });
    store.recv().expect("servers that start")
}

/// Tells where the servers are, and keeps them.
fn stay<T>(started: &mpsc::Sender<String>, store: String, _servers: T) -> ! {
    started.send(store).unwrap();
    loop {
        std::thread::park();
    }
}
