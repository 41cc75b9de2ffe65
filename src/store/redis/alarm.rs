//! What a person should hear of a store.

/// What a person should hear of a store.
#[derive(Clone, Debug, PartialEq)]
pub enum Alarm {
    /// A server decides nothing any more.
    Trouble {
        /// Which.
        shard: String,
        /// Why.
        reason: String,
    },
    /// It decides again.
    Recovered {
        /// Which.
        shard: String,
        /// How long it did not.
        secs: f64,
        /// Requests that went on without its decision meanwhile.
        undecided: u64,
    },
}
