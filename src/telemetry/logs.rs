//! The log: one line an event, on standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

use super::{Format, Level, Settings};

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// The log of this process; level and format can be changed while it runs.
pub struct Logs(reload::Handle<Lines, Registry>);

/// The log cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the log: {0}")]
pub struct LogError(String);

impl Logs {
    /// Starts to log.
    ///
    /// # Errors
    /// The process already logs.
    pub fn start(settings: Settings) -> Result<Self, LogError> {
        let (layer, handle) = reload::Layer::new(lines(settings));
        tracing_subscriber::registry()
            .with(layer)
            .try_init()
            .map_err(|error| LogError(error.to_string()))?;
        Ok(Self(handle))
    }

    /// Logs by other settings from now on.
    ///
    /// # Errors
    /// The log is gone.
    pub fn change(&self, settings: Settings) -> Result<(), LogError> {
        self.0
            .reload(lines(settings))
            .map_err(|error| LogError(error.to_string()))
    }
}

/// A layer that writes lines, with the filter as a layer beside it: a filter around it would have to be registered anew
/// with each change, which `reload` cannot do. Of the libraries beneath, only what is wrong is written.
fn lines(settings: Settings) -> Lines {
    let level = match settings.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let filter = Targets::new()
        .with_target(env!("CARGO_PKG_NAME"), level)
        .with_default(level.min(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(stderr).with_target(false);
    match settings.format {
        Format::Text => lines.with_ansi(stderr().is_terminal()).and_then(filter).boxed(),
        Format::Json => lines.json().and_then(filter).boxed(),
    }
}
