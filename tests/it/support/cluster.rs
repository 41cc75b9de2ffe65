//! A Redis Cluster of a test's own.

use std::time::Duration;

use super::{Redis, wait_until};

/// Running servers that are one cluster: first the primaries, then the replicas of each in turn.
pub(crate) struct Cluster {
    nodes: Vec<Redis>,
    primaries: usize,
}

/// How long a cluster may take to agree.
const AGREEMENT: Duration = Duration::from_secs(20);
/// The options of its members.
pub(crate) const OF_A_CLUSTER: [&str; 8] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    // Else all slots wait for those of a primary that fails.
    "--cluster-require-full-coverage",
    "no",
    "--repl-diskless-sync-delay",
    "0",
];
/// The slots of a cluster.
const SLOTS: usize = 16_384;

impl Cluster {
    /// So many primaries that share the slots evenly, each with so many replicas.
    #[track_caller]
    pub(crate) fn start(primaries: usize, replicas: usize) -> Self {
        let nodes = (0..primaries * (1 + replicas)).map(|_| Redis::with(&OF_A_CLUSTER));
        let nodes: Vec<Redis> = nodes.collect();
        let port = nodes[0].port();
        Self::join(nodes, primaries, port)
    }

    /// Makes one of servers that were started as members and know nobody yet, of which the first are the primaries. All
    /// others meet the first, which announces this port.
    #[track_caller]
    pub(crate) fn join(nodes: Vec<Redis>, primaries: usize, port: u16) -> Self {
        let cluster = Self { nodes, primaries };
        for (place, node) in cluster.nodes.iter().enumerate() {
            let epoch = (place + 1).to_string();
            let _: String = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for (place, node) in cluster.nodes.iter().take(primaries).enumerate() {
            let (first, end) = (place * SLOTS / primaries, (place + 1) * SLOTS / primaries);
            let slots: Vec<String> = (first..end).map(|slot| slot.to_string()).collect();
            let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str))
                .collect();
            let _: String = node.ask(&command);
        }
        let port = port.to_string();
        for node in &cluster.nodes[1..] {
            let _: String = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        cluster.await_all("all know all", |node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            nodes.lines().count() == cluster.nodes.len() && !nodes.contains("handshake")
        });
        for (place, replica) in cluster.nodes.iter().skip(primaries).enumerate() {
            let primary = cluster.id(place % primaries);
            let _: String = replica.ask(&["CLUSTER", "REPLICATE", &primary]);
        }
        cluster.await_all("the cluster is well", is_well);
        for replica in cluster.nodes.iter().skip(primaries) {
            wait_until("the replica is in step", AGREEMENT, || {
                let info: String = replica.ask(&["INFO", "replication"]);
                info.contains("role:slave") && info.contains("master_link_status:up")
            });
        }
        cluster
    }

    #[track_caller]
    fn await_all(&self, what: &str, is_so: impl Fn(&Redis) -> bool) {
        for node in &self.nodes {
            wait_until(what, AGREEMENT, || is_so(node));
        }
    }

    /// The servers.
    pub(crate) fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The servers, to end and start them.
    pub(crate) fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// A replica of a primary.
    pub(crate) fn replica_of(&self, primary: usize) -> &Redis {
        &self.nodes[self.primaries + primary]
    }

    /// Where all servers are.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].ask(&["CLUSTER", "MYID"])
    }

    /// How many keys all primaries hold.
    pub(crate) fn keys(&self) -> usize {
        let is_primary = |node: &&Redis| {
            node.ask::<String>(&["INFO", "replication"])
                .contains("role:master")
        };
        let primaries = self.nodes.iter().filter(is_primary);
        primaries.map(|node| node.ask::<usize>(&["DBSIZE"])).sum()
    }

    /// Says that a slot is on its way from one primary to another: its keys are still at the first.
    pub(crate) fn open_slot(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        let _: String = self.nodes[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        let _: String = self.nodes[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// Moves at most so many keys of an open slot; says how many it found.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let keys: Vec<String> =
            self.nodes[from].ask(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()]);
        let port = self.nodes[to].port().to_string();
        for key in &keys {
            let _: String = self.nodes[from].ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
        keys.len()
    }

    /// Says that a slot has arrived.
    pub(crate) fn close_slot(&self, slot: u16, from: usize, to: usize) {
        let (slot, target) = (slot.to_string(), self.id(to));
        for node in [to, from] {
            let _: String = self.nodes[node].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    /// The slot that the keys of a partition are in.
    pub(crate) fn slot(&self, partition: usize) -> u16 {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", &format!("{{{partition}}}")])
    }

    /// The primary that a slot was given at the start.
    pub(crate) fn primary_of(&self, slot: u16) -> usize {
        (0..self.primaries)
            .find(|place| usize::from(slot) < (place + 1) * SLOTS / self.primaries)
            .unwrap()
    }
}

fn is_well(node: &Redis) -> bool {
    let info: String = node.ask(&["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
}
