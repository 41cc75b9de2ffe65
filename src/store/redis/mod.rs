//! Limiters in Redis: what is sent, what the scripts answer, and what the answer says.

#![allow(dead_code, reason = "the link that calls it is not there yet")]

mod call;
mod keys;
mod names;
mod recount;
mod scripts;
mod settings;

#[cfg(test)]
mod tests;

pub use settings::{Address, Eviction, Password, Settings};
