//! The gateway as a process.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::home::Home;
use super::{Answer, Ask, Client, Config, wait_until};

/// How long a start, a reload or an end may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// A running gateway; it is killed when the value goes.
pub(crate) struct Gateway {
    child: Child,
    addr: SocketAddr,
    admin: Option<SocketAddr>,
    log: Arc<Log>,
    config: PathBuf,
    /// Where its limits are, if not in its memory.
    home: Option<Home>,
    _dir: TempDir,
}

#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    ended: bool,
}

impl Log {
    /// The first line from `from` on that `wanted` picks something from.
    #[track_caller]
    fn wait<T>(&self, what: &str, from: usize, wanted: impl Fn(&str) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state();
        loop {
            if let Some(found) = state.lines[from..].iter().find_map(|line| wanted(line)) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !state.ended && !left.is_zero(),
                "no {what} in the log{}:\n{}",
                if state.ended {
                    ", and the gateway ended"
                } else {
                    ""
                },
                state.lines.join("\n")
            );
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn length(&self) -> usize {
        self.state().lines.len()
    }

    /// A test that failed while it looked leaves the lines as good as they were.
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Starts a gateway and waits until it listens.
    #[track_caller]
    pub(crate) fn start(config: &Config) -> Self {
        Self::start_text(&config.text(), &[])
    }

    /// The same with a config as text and with variables in its environment.
    #[track_caller]
    pub(crate) fn start_text(config: &str, env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gateway.toml");
        let home = Home::of(config);
        std::fs::write(&path, stored(home.as_ref(), config)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("run")
            .arg("--config")
            .arg(&path)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Log::default());
        collect(child.stderr.take().unwrap(), Arc::clone(&log));
        let mut gateway = Self {
            child,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            admin: None,
            log,
            config: path,
            home,
            _dir: dir,
        };
        gateway.addr = gateway.log.wait("\"listening\"", 0, |line| {
            address(line).filter(|_| !line.contains("admin listening"))
        });
        if config.contains("[admin]\nlisten = \"127.0.0.1:0\"") {
            gateway.admin = Some(gateway.log.wait("\"admin listening\"", 0, |line| {
                address(line).filter(|_| line.contains("admin listening"))
            }));
        }
        gateway
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The folder of its config.
    pub(crate) fn folder(&self) -> &Path {
        self.config.parent().unwrap()
    }

    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.addr)
    }

    /// A fresh connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub(crate) fn ask(&self, ask: &Ask) -> Answer {
        self.client().ask(ask)
    }

    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.ask(&Ask::get(target))
    }

    /// Asks the admin listener.
    #[track_caller]
    pub(crate) fn admin(&self, ask: &Ask) -> Answer {
        self.admin_client().ask(ask)
    }

    /// A fresh connection to the admin listener.
    #[track_caller]
    pub(crate) fn admin_client(&self) -> Client {
        Client::connect(self.admin_addr())
    }

    /// Whether its limits are in a Redis that the test did not name.
    pub(crate) fn shares_limits(&self) -> bool {
        self.home.is_some()
    }

    /// Where its admin listener is.
    #[track_caller]
    pub(crate) fn admin_addr(&self) -> SocketAddr {
        self.admin.expect("an admin listener")
    }

    /// The value of a metric, 0 where it is not shown; `series` as `/metrics` writes it.
    #[track_caller]
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.admin(&Ask::get("/metrics")).text();
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
            .map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until a metric has a value: it may be counted a moment after the answer was sent.
    #[track_caller]
    pub(crate) fn await_metric(&self, series: &str, value: f64) {
        let end = Instant::now() + Duration::from_secs(5);
        while (self.metric(series) - value).abs() > 0.01 {
            assert!(
                Instant::now() < end,
                "{series} is {}, not {value}",
                self.metric(series)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything that was logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.state().lines.join("\n")
    }

    /// Waits for a line that contains `text`.
    #[track_caller]
    pub(crate) fn await_log(&self, text: &str) -> String {
        self.log
            .wait(text, 0, |line| line.contains(text).then(|| line.to_owned()))
    }

    /// Replaces the config and waits until it is in force.
    #[track_caller]
    pub(crate) fn reload(&self, config: &Config) {
        let mut from = self.write(config);
        // The first may have read the file before it was replaced, if the one before was noticed twice: by its signal and
        // by its change. The second begins after the first.
        for _ in 0..2 {
            self.signal(Signal::HUP);
            self.log.wait("\"reloaded\"", from, |line| {
                assert!(!line.contains("reload refused"), "{line}\n{}", self.log());
                line.contains("reloaded").then_some(())
            });
            from = self.log.length();
        }
    }

    /// Replaces the config, and returns what the gateway says against it.
    #[track_caller]
    pub(crate) fn reload_refused(&self, config: &Config) -> String {
        let from = self.write(config);
        self.signal(Signal::HUP);
        self.log.wait("\"reload refused\"", from, |line| {
            assert!(!line.contains("reloaded"), "a bad config came into force: {line}");
            line.contains("reload refused").then_some(())
        });
        // What is wrong may follow on lines of its own.
        let mut length = self.log.length();
        wait_until("the log is quiet", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(50));
            std::mem::replace(&mut length, self.log.length()) == length
        });
        self.log.state().lines[from..].join("\n")
    }

    /// Replaces the config file in one step and returns the length of the log before.
    pub(crate) fn write(&self, config: &Config) -> usize {
        let from = self.log.length();
        let fresh = self.config.with_extension("new");
        std::fs::write(&fresh, stored(self.home.as_ref(), &config.text())).unwrap();
        std::fs::rename(&fresh, &self.config).unwrap();
        from
    }

    /// Waits for a line after the first `from` ones.
    #[track_caller]
    pub(crate) fn await_log_from(&self, from: usize, text: &str) -> String {
        self.log
            .wait(text, from, |line| line.contains(text).then(|| line.to_owned()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Asks the gateway to drain and end.
    pub(crate) fn term(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub(crate) fn ended_within(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        wait_until("the gateway ends", limit, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// How much memory of the machine the gateway takes, in KiB.
    pub(crate) fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let line = line.unwrap().trim().trim_end_matches(" kB");
        line.parse().unwrap()
    }

    /// How many files and sockets the gateway has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the gateway's log\n{}\n---", self.log());
        }
    }
}

/// A config with the store that a test did not name.
fn stored(home: Option<&Home>, config: &str) -> String {
    match home {
        Some(home) => format!("{config}\n{}", home.store),
        None => config.to_owned(),
    }
}

fn collect(stderr: impl Read + Send + 'static, log: Arc<Log>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            log.state().lines.push(line);
            log.changed.notify_all();
        }
        log.state().ended = true;
        log.changed.notify_all();
    });
}

/// The address that a line says is being listened on, in either log format.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening")?;
    let (_, rest) = rest.split_once("addr")?;
    let start = rest.find(|c: char| c.is_ascii_digit())?;
    let rest = &rest[start..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Runs `tollgate` to its end, which must come soon.
#[track_caller]
pub(crate) fn tollgate(args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= end {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!(
                "tollgate {args:?} goes on and on: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs `tollgate check` on a config; returns its code and all that it printed.
pub(crate) fn check(config: &str) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gateway.toml");
    std::fs::write(&path, config).unwrap();
    let output = tollgate(&["check", "--config", path.to_str().unwrap()]);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code().expect("an exit code"), text)
}
