//! The algorithms: pure integer arithmetic over (state, cost, clock), and nothing else.
//!
//! A [`Policy`] is one limiter's algorithm with its numbers, checked; a [`Verdict`] is what it says of one request.
//! This module never reads a clock, keeps no state and knows no caller.
//!
//! State is usage, never "what is left", in a unit that does not depend on the limit: a changed limit acts at once and
//! resets nobody. Judging changes nothing; only a charge or a refund stores the state that time has made.

mod algorithm;
mod arithmetic;
pub mod bucket;
pub mod concurrency;
pub mod fixed_window;
pub mod sliding_log;
pub mod sliding_window;

mod policy;
mod receipt;
mod spec;
mod verdict;
mod written;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod laws;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod trial;

pub use algorithm::{Algorithm, Lasting};
pub use policy::Policy;
pub use receipt::Receipt;
pub use spec::{Fault, Kind, Spec, UnknownKind};
pub use verdict::{Standing, Verdict};
pub use written::Written;

/// The largest limit, burst, cost, and (in microseconds) the first length of time that is too long.
pub const RANGE: u64 = 1 << 42;
