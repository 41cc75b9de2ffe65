//! What operators see: logs and metrics. No caller's key is ever in either.

mod logs;
mod metrics;
mod registrar;
mod store;

pub use logs::{LogError, Logs};
pub use metrics::Metrics;
pub use store::{ShardGauges, ShardMeter};

/// `[log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The least severe level that is written.
    pub level: Level,
    /// How a line is written.
    pub format: Format,
}

/// A log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A person must look.
    Error,
    /// Something is not as it should be.
    Warn,
    /// Start, reload, alarms, and a line a second for each rule with rejections.
    Info,
    /// One line a request.
    Debug,
    /// Everything.
    Trace,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
