//! What the tests share: a gateway process, scripted upstreams, clients that send and keep exact bytes.

mod answer;
mod ask;
mod config;
mod curl;
mod faulty;
mod frames;
mod gateway;
mod h2c;
mod h2up;
mod limits;
mod raw;
mod redis;
mod script;
mod shared;
mod time;
mod tls;
mod tools;
mod upstream;

pub(crate) use answer::Answer;
pub(crate) use ask::Ask;
pub(crate) use config::{ALGORITHMS, Config, rule};
pub(crate) use curl::curl;
pub(crate) use faulty::{Fault, Faulty};
pub(crate) use frames::{Frames, Reply};
pub(crate) use gateway::{Gateway, check, tollgate};
pub(crate) use h2c::H2;
pub(crate) use h2up::H2Upstream;
pub(crate) use limits::{Limits, assert_no_limits};
pub(crate) use raw::{Client, unused_port};
pub(crate) use redis::Redis;
pub(crate) use script::standard;
pub(crate) use shared::{DEADLINE, OWN_WORK, RECOVERY, STORE, Site, on_redis, three, timed};
pub(crate) use time::{epoch_micros, epoch_seconds, noise, threads, wait_until};
pub(crate) use tls::{Authority, ByTls};
pub(crate) use tools::{node, python, tool};
pub(crate) use upstream::{Exchange, Gate, Upstream};
