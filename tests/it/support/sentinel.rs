//! A primary, its replicas, and the Sentinels that watch over them.

use std::process::{Child, Stdio};
use std::time::Duration;

use redis::{Client, FromRedisValue};
use tempfile::TempDir;

use super::redis::{cannot_run, server};
use super::{Redis, wait_until};

/// Servers of which one is the primary, and Sentinels that call it `mymaster`.
pub(crate) struct Watched {
    /// At first, the first of them is the primary.
    pub(crate) servers: Vec<Redis>,
    pub(crate) sentinels: Vec<Sentinel>,
}

/// A running Sentinel; it ends with the value.
pub(crate) struct Sentinel {
    child: Child,
    port: u16,
    folder: TempDir,
}

/// How long Sentinels may take to agree.
const AGREEMENT: Duration = Duration::from_secs(20);

impl Watched {
    /// A primary with so many replicas, and three Sentinels of which two decide.
    #[track_caller]
    pub(crate) fn start(replicas: usize) -> Self {
        let primary = Redis::start();
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..replicas {
            servers.push(Redis::with(&[
                "--replicaof",
                "127.0.0.1",
                &port,
                "--repl-diskless-sync-delay",
                "0",
            ]));
        }
        for replica in &servers[1..] {
            wait_until("the replica is in step", AGREEMENT, || {
                replica
                    .ask::<String>(&["INFO", "replication"])
                    .contains("master_link_status:up")
            });
        }
        let sentinels = (0..3)
            .map(|_| Sentinel::over(servers[0].port(), 2, |port| format!("port {port}")))
            .collect();
        let watched = Self { servers, sentinels };
        for sentinel in &watched.sentinels {
            wait_until("Sentinels know one another and all servers", AGREEMENT, || {
                let about: Vec<String> = sentinel.ask(&["SENTINEL", "MASTER", "mymaster"]);
                let number = |name: &str| {
                    let place = about.iter().position(|field| field == name).unwrap();
                    about[place + 1].parse::<usize>().unwrap()
                };
                number("num-other-sentinels") == 2 && number("num-slaves") == replicas
            });
        }
        watched
    }

    /// The `[store]` table for them, with more lines.
    pub(crate) fn store(&self, lines: &str) -> String {
        let nodes: Vec<String> = self.sentinels.iter().map(Sentinel::url).collect();
        on_sentinel(&nodes, lines)
    }
}

/// The `[store]` table for what these Sentinels call `mymaster`, with more lines.
pub(crate) fn on_sentinel(nodes: &[String], lines: &str) -> String {
    format!("[store]\nkind = \"redis\"\nsentinel = {{ master = \"mymaster\", nodes = {nodes:?} }}\n{lines}\n")
}

impl Sentinel {
    /// A Sentinel over the primary at this port, of which so many decide; it listens as these lines say.
    #[track_caller]
    pub(crate) fn over(primary: u16, quorum: usize, listening: impl Fn(u16) -> String) -> Self {
        // Somebody else may take the port before the server does.
        for _ in 0..10 {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            drop(socket);
            let folder = tempfile::tempdir().unwrap();
            let config = format!(
                "{}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {primary} {quorum}\n\
                 sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n",
                listening(port),
                folder.path().display()
            );
            std::fs::write(folder.path().join("sentinel.conf"), config).unwrap();
            let mut sentinel = Self {
                child: spawn(&folder),
                port,
                folder,
            };
            if sentinel.comes_up() {
                return sentinel;
            }
        }
        panic!("redis-server does not start as a Sentinel")
    }

    fn comes_up(&mut self) -> bool {
        for _ in 0..2_000 {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the Sentinel does not answer")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What a command answers, on a connection of its own.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = Client::open(self.url()).unwrap().get_connection().unwrap();
        redis::Cmd::new().arg(command).query(&mut connection).unwrap()
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again; it knows what it knew.
    #[track_caller]
    pub(crate) fn revive(&mut self) {
        self.child = spawn(&self.folder);
        assert!(self.comes_up(), "the Sentinel does not start again");
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &TempDir) -> Child {
    server()
        .arg(folder.path().join("sentinel.conf"))
        .arg("--sentinel")
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(cannot_run)
}
