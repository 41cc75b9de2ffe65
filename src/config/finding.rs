//! What is wrong with a config, and where.

use std::fmt;

use super::source::Place;

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The config does not run.
    Error,
    /// The config runs, and probably does not do what was meant.
    Warning,
}

/// One thing to say about a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the file, as it was given.
    pub file: String,
    /// Where it is; `None` if it is the file as a whole.
    pub place: Option<Place>,
    /// What is wrong, without a full stop.
    pub problem: String,
    /// What would be right.
    pub hint: Option<String>,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One line: `gateway.toml:12:9: error: …; help: …`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(place) = self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        write!(f, ": {}: {}", self.severity, self.problem)?;
        match &self.hint {
            Some(hint) => write!(f, "; help: {hint}"),
            None => Ok(()),
        }
    }
}
