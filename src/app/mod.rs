//! The process: wiring, reload, drain. The only module that may name every other.
//!
//! [`run`] takes a [`Source`] of settings and returns when the gateway has drained. This module decides nothing about a
//! request.

mod current;
mod explain;
mod limits;
mod shared_store;
mod snapshot;
mod supervisor;
mod webhook;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::SystemTime;

use hyper::service::service_fn;

use crate::config::{self, Loaded, Report, Settings, Surroundings};
use crate::proxy::Gateway;
use crate::server::{self, BindError, Shared, Stop, WorkerError, WorkerListeners};
use crate::telemetry::{LogError, Logs, Metrics};

use current::{Current, Unfit};
pub use explain::{Explanation, explain};
pub use limits::limits;
use supervisor::Supervisor;

/// Where the settings come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, which is read again on a reload.
    File(PathBuf),
    /// A text that is built in, by a name for messages.
    Text {
        /// The name.
        name: &'static str,
        /// The text.
        text: String,
    },
}

/// Why the gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The config has faults.
    #[error("the config is refused:\n{0}")]
    Config(Box<Report>),
    /// The settings do not fit together.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A worker does not run.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A metric cannot be registered.
    #[error("cannot set up the metrics")]
    Metrics(#[from] prometheus::Error),
    /// The operating system has no randomness to give.
    #[error("cannot draw a secret")]
    Randomness(#[from] getrandom::Error),
    /// The thread that watches the workers panicked.
    #[error("the supervisor panicked")]
    Supervisor,
    /// A thread or a signal handler cannot be set up.
    #[error("cannot start")]
    Start(#[from] std::io::Error),
}

/// The listeners that were opened.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// For clients.
    pub clients: Vec<SocketAddr>,
    /// For operators.
    pub admin: Option<SocketAddr>,
}

impl Addresses {
    /// All workers have the same ones.
    fn of(workers: &[WorkerListeners], operators: Option<&[WorkerListeners]>) -> Self {
        let first = |listeners: &[WorkerListeners]| -> Vec<SocketAddr> {
            listeners
                .first()
                .map(|own| own.addresses().collect())
                .unwrap_or_default()
        };
        Self {
            clients: first(workers),
            admin: operators.and_then(|operators| first(operators).first().copied()),
        }
    }

    fn log(&self) {
        for address in &self.clients {
            tracing::info!(addr = %address, "listening");
        }
        if let Some(address) = self.admin {
            tracing::info!(addr = %address, "admin listening");
        }
    }
}

/// What tells one version of a file from the next: when it was written, how long it is, and which file it is.
type Stamp = (SystemTime, u64, u64);

impl Source {
    /// The version that is there now; `None` where there is no file, which is no reason to read it again.
    fn stamp(&self) -> Option<Stamp> {
        let Self::File(path) = self else { return None };
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len(), file.ino()))
    }

    fn load(&self) -> Result<Loaded, Report> {
        match self {
            Self::File(path) => config::load(path),
            Self::Text { name, text } => config::parse(name, text, &Surroundings::of_process("".as_ref())),
        }
    }
}

/// Runs the gateway until it is told to stop and has drained. `opened` is called once all listeners are open.
///
/// # Errors
/// The gateway cannot start, or one of its workers failed.
pub fn run(source: Source, opened: impl FnOnce(&Addresses)) -> Result<(), AppError> {
    let stamp = source.stamp();
    let (settings, logs) = load(&source)?;
    let metrics = Arc::new(Metrics::new()?);
    let starting = runtime()?;
    let made = starting.block_on(Current::new(settings.clone(), Arc::clone(&metrics)));
    let (current, alarms) = made?;
    let listeners = server::bind(&settings.server.listen, settings.server.workers)?;
    let operators = settings
        .admin
        .listen
        .map(|address| server::bind(&[address], 1))
        .transpose()?;
    let addresses = Addresses::of(&listeners, operators.as_deref());
    let shared = Shared::new(settings.server.clone());
    let current = Arc::new(current);
    let stopped = Stop::default();
    let (ready, supervising) = mpsc::channel();
    let supervisor = Supervisor {
        source,
        stamp,
        ready,
        logs,
        current: Arc::clone(&current),
        alarms,
        workers: shared.clone(),
        operators: operators.into_iter().flatten().next(),
        stopped: stopped.clone(),
    };
    let supervised = thread::Builder::new()
        .name("supervisor".to_owned())
        .spawn(move || supervisor.run())?;
    // Who reads that the gateway listens may send it a signal at once. An error is the supervisor's, and comes back below.
    let _ = supervising.recv();
    addresses.log();
    opened(&addresses);
    let cut = server::run(listeners, &shared, |worker| {
        let gateway = Gateway::new(current.generation(), Arc::clone(&metrics), worker);
        move |peer, _| {
            let connection = gateway.connection(peer);
            service_fn(move |request| Arc::clone(&connection).handle(request))
        }
    });
    stopped.trigger();
    let watched = supervised.join();
    // Nobody decides any more, and nobody reloads.
    starting.block_on(async { current.shared().finish().await });
    current.save();
    match watched {
        Ok(watched) => watched?,
        Err(_) => return Err(AppError::Supervisor),
    }
    let cut = cut?;
    if cut > 0 {
        tracing::warn!(connections = cut, "stopped before these had drained");
    }
    tracing::info!("stopped");
    Ok(())
}

/// The settings, and the log as they want it.
fn load(source: &Source) -> Result<(Settings, Logs), AppError> {
    let loaded = source
        .load()
        .map_err(|report| AppError::Config(Box::new(report)))?;
    let logs = Logs::start(loaded.settings.log)?;
    for finding in loaded.report.findings() {
        tracing::warn!("{finding}");
    }
    Ok((loaded.settings, logs))
}

/// A runtime for this thread alone.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
