//! Limiters in Redis: any number of gateways on one server decide as one.
//!
//! [`Redis::reserve`](crate::store::Store::reserve) sends a request's charges to the servers that their keys are at home on.
//! On each, all charges are decided in one script call, together with those of other requests that came while the call
//! before was under way. A server that fails is left alone until it is well; what is decided meanwhile is not decided
//! here. A replica is never asked, and a question whose end is not known is never asked again.

mod alarm;
mod breaker;
mod call;
mod cause;
mod fate;
mod fleet;
mod give_back;
mod guard;
mod homes;
mod keys;
mod line;
mod link;
mod names;
mod question;
mod queue;
mod recount;
mod refused;
mod scripts;
mod seats;
mod sent;
mod sentinel;
mod serve;
mod session;
mod settings;
mod shard;
mod store;
mod stream;
mod survey;
mod tend;
mod time;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

pub use alarm::Alarm;
pub use homes::Homes;
pub use queue::{CHARGES, Queue, Together};
pub use settings::{Address, Eviction, Password, Servers, Settings};
pub use shard::ShardHealth;
pub use store::{Health, Redis, Unfit};
