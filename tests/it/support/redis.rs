//! A Redis server of a test's own.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Client, Connection, FromRedisValue, cmd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A running `redis-server` that keeps nothing on disk; it ends with the value.
pub(crate) struct Redis {
    child: Child,
    port: u16,
    options: Vec<String>,
    folder: TempDir,
}

/// In the folder of a server whose clock can be set: what is loaded with it, and how far its clock is off.
const CLOCK: &str = "clock.so";
const OFF: &str = "off";

impl Redis {
    /// A server with the defaults of Redis.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further options, as on its command line.
    #[track_caller]
    pub(crate) fn with(options: &[&str]) -> Self {
        Self::somewhere(options, |_| {})
    }

    /// A server whose clock can be set.
    #[track_caller]
    pub(crate) fn on_a_clock() -> Self {
        Self::somewhere(&[], |folder| {
            write_off(folder, 0);
            let made = Command::new("cc")
                .args(["-shared", "-fPIC", "-O1", "-o"])
                .arg(folder.path().join(CLOCK))
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/clock.c"))
                .status();
            assert!(made.is_ok_and(|made| made.success()), "cc makes no library");
        })
    }

    #[track_caller]
    fn somewhere(options: &[&str], prepare: impl Fn(&TempDir)) -> Self {
        // Somebody else may take the port before the server does.
        for _ in 0..10 {
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|socket| socket.local_addr())
                .unwrap()
                .port();
            let folder = tempfile::tempdir().unwrap();
            prepare(&folder);
            if let Some(server) = Self::within(folder, port, options) {
                return server;
            }
        }
        panic!("redis-server does not start with {options:?}")
    }

    /// A server on this port; none if it is taken.
    #[track_caller]
    pub(crate) fn at(port: u16, options: &[&str]) -> Option<Self> {
        Self::within(tempfile::tempdir().unwrap(), port, options)
    }

    #[track_caller]
    fn within(folder: TempDir, port: u16, options: &[&str]) -> Option<Self> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self {
            child: spawn(port, &folder, &options),
            port,
            options,
            folder,
        };
        server.comes_up().then_some(server)
    }

    /// Ends it and starts it again, with nothing in it.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.revive();
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after it was killed, with other options.
    #[track_caller]
    pub(crate) fn revive_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.revive();
    }

    /// Starts it again after it was killed.
    #[track_caller]
    pub(crate) fn revive(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.options);
        assert!(self.comes_up(), "redis-server does not start again");
    }

    /// Waits until it answers; `false` if it ended instead.
    fn comes_up(&mut self) -> bool {
        for _ in 0..2_000 {
            if self.is_up() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
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
        match cmd("INFO").arg("server").query::<String>(&mut connection) {
            Ok(info) => info.contains(&format!("process_id:{}\r", self.child.id())),
            // It wants a password.
            Err(error) => error.code() == Some("NOAUTH"),
        }
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

    /// The same, where it wants this password.
    #[track_caller]
    pub(crate) fn connect_with(&self, password: &str) -> Connection {
        let url = format!("redis://:{password}@127.0.0.1:{}", self.port);
        Client::open(url).unwrap().get_connection().unwrap()
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

    /// How many connections it has taken, this one included.
    #[track_caller]
    pub(crate) fn connections(&self) -> usize {
        let info: String = self.ask(&["INFO", "stats"]);
        let mut lines = info.lines();
        let count = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().parse().unwrap()
    }

    /// Sets the clock of a server that was started [on one](Self::on_a_clock) so many seconds off the right one.
    pub(crate) fn set_clock(&self, off: i64) {
        write_off(&self.folder, off);
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

/// How far the clock of a server is off, where it reads it.
fn write_off(folder: &TempDir, off: i64) {
    // In place: the server holds the file.
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .create(true)
        .write(true)
        .truncate(false)
        .open(folder.path().join(OFF));
    file.unwrap().write_all_at(&off.to_ne_bytes(), 0).unwrap();
}

fn spawn(port: u16, folder: &TempDir, options: &[String]) -> Child {
    let mut command = server();
    let clock = folder.path().join(CLOCK);
    if clock.exists() {
        command
            .env("LD_PRELOAD", clock)
            .env("SECONDS_OFF", folder.path().join(OFF));
    }
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(folder.path())
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(cannot_run)
}

thread_local! {
    static ENDS_WITH_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Servers that this thread starts from now on end with it, also where nothing is dropped.
pub(crate) fn servers_end_with_this_thread() {
    ENDS_WITH_THREAD.set(true);
}

/// The command that runs a server: what this variable names, else the `redis-server` of the machine.
pub(crate) fn server() -> Command {
    let named = std::env::var_os("TOLLGATE_TEST_SERVER");
    let program = named.unwrap_or_else(|| "redis-server".into());
    if !ENDS_WITH_THREAD.get() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Says what is missing.
pub(crate) fn cannot_run(error: std::io::Error) -> Child {
    panic!("cannot run redis-server ({error}): `apt-get install redis-server` installs it")
}
