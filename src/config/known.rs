//! What the reader knows of each key, as it says itself while it reads: what a schema is made of.

use std::time::Duration;

/// A key that the reader asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    /// The table that it is in, as in a header; empty for the file as a whole.
    pub(super) table: String,
    pub(super) key: &'static str,
    pub(super) shape: Shape,
    /// Whether the table must have it.
    pub(super) required: bool,
}

/// What a key may be, as far as it was read by a method that knows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Its reader looks at the value itself.
    Own,
    Flag {
        default: bool,
    },
    Number {
        default: usize,
        least: usize,
        most: usize,
    },
    Size {
        default: u64,
        least: u64,
        most: u64,
    },
    Duration {
        default: Duration,
        least: Duration,
    },
    Word {
        known: Vec<&'static str>,
        default: Option<&'static str>,
    },
    /// A table.
    Table,
    /// Tables with names of the file's own.
    Named,
    /// A list of tables.
    Tables,
}
