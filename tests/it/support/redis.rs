//! A Redis server of a test's own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Client, Connection, FromRedisValue, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A running `redis-server` that keeps nothing on disk; it ends with the value.
pub(crate) struct Redis {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Redis {
    /// A server with the defaults of Redis.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further options, as on its command line.
    #[track_caller]
    pub(crate) fn with(options: &[&str]) -> Self {
        // Somebody else may take the port before the server does.
        for _ in 0..10 {
            if let Some(server) = Self::attempt(options) {
                return server;
            }
        }
        panic!("redis-server does not start with {options:?}")
    }

    fn attempt(options: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .unwrap()
            .port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .arg("--dir")
            .arg(folder.path())
            .args(options)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot run redis-server ({error}): `apt-get install redis-server` installs it")
            });
        let mut server = Self {
            child,
            port,
            _folder: folder,
        };
        for _ in 0..2_000 {
            if server.is_up() {
                return Some(server);
            }
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server does not answer")
    }

    /// Whether it is this server that answers.
    fn is_up(&self) -> bool {
        let client = Client::open(self.url()).unwrap();
        let Ok(mut connection) = client.get_connection() else {
            return false;
        };
        let info = cmd("INFO").arg("server").query::<String>(&mut connection);
        info.is_ok_and(|info| info.contains(&format!("process_id:{}\r", self.child.id())))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[track_caller]
    pub(crate) fn connect(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// What a command answers, on a connection of its own.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut request = redis::Cmd::new();
        request.arg(command);
        request.query(&mut self.connect()).unwrap()
    }

    /// One number of `INFO commandstats`: `field` of `command`, 0 if it was never called.
    #[track_caller]
    pub(crate) fn stat(&self, command: &str, field: &str) -> f64 {
        let info: String = self.ask(&["INFO", "commandstats"]);
        let stats = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let value = stats.and_then(|stats| {
            stats
                .split(',')
                .find_map(|stat| stat.strip_prefix(&format!("{field}=")))
        });
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Stops it without ending it: its sockets stay open, and nobody answers.
    pub(crate) fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It ends also where it is frozen.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
