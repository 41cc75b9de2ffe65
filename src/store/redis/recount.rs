//! What an answer says: every number of every verdict, counted again from the states that the script found.
//!
//! The script decides, by the same arithmetic in the same order. Its decision is held against what is counted here, and an
//! answer that contradicts it is no answer.

use redis::Value;
use smallvec::SmallVec;

use crate::clock::Micros;
use crate::limit::{Algorithm, Policy, Receipt, Standing, Verdict, Written};
use crate::limit::{bucket, fixed_window, sliding_log, sliding_window};

use super::call::{Ask, Asked, Looked, asked_keys, looked_keys, runs};
use super::names::Name;

/// What a reserve was answered.
#[derive(Debug)]
pub(super) enum ReserveReply {
    /// It was decided.
    Decided {
        /// The store's clock.
        now: Micros,
        /// Each request, in the order of the call.
        requests: Vec<Counted>,
    },
    /// It came after its deadline, and changed nothing.
    Late {
        /// The store's clock.
        now: Micros,
    },
}

/// What one request is told.
#[derive(Debug)]
pub(super) struct Counted {
    /// Whether all of its limiters but the dry runs have room.
    pub(super) admitted: bool,
    /// What each limiter says.
    pub(super) verdicts: SmallVec<[Verdict<Receipt>; 2]>,
}

/// A reply that no script of ours gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reply of the wrong shape")]
pub(super) struct WrongShape;

/// The state of one key, if it has one.
enum State {
    FixedWindow(Option<fixed_window::State>),
    SlidingLog(Option<sliding_log::State>),
    SlidingWindow(Option<sliding_window::State>),
    Bucket(Option<bucket::State>),
}

/// Evaluates `$body` with the algorithm of `$policy` as `$algorithm` and the state that is one of its own as `$own`.
macro_rules! with_algorithm {
    ($policy:expr, $state:expr, ($algorithm:ident, $own:ident) => $body:expr) => {
        match ($policy, $state) {
            (Policy::FixedWindow($algorithm), State::FixedWindow($own)) => Ok($body),
            (Policy::SlidingLog($algorithm), State::SlidingLog($own)) => Ok($body),
            (Policy::SlidingWindow($algorithm), State::SlidingWindow($own)) => Ok($body),
            (Policy::Bucket($algorithm), State::Bucket($own)) => Ok($body),
            _ => Err(WrongShape),
        }
    };
}

/// A number from here on is none that a script can have written.
const EXACT: u64 = 1 << 53;

/// What the answer to a reserve of `asks` says.
pub(super) fn read_reserve(reply: &Value, asks: &[&Ask]) -> Result<ReserveReply, WrongShape> {
    let (now, admitted, raw) = match parts(reply)? {
        [Value::Int(now)] => return instant(*now).map(|now| ReserveReply::Late { now }),
        [Value::Int(now), Value::BulkString(admitted), Value::Array(raw)] => (instant(*now)?, admitted, raw),
        _ => return Err(WrongShape),
    };
    let keys = asked_keys(asks);
    let mut states = states(&keys.named, raw)?;
    let (mut places, mut counts) = (keys.places.as_slice(), admitted.iter());
    let mut requests = Vec::with_capacity(asks.len());
    for run in runs(asks) {
        let (first, count) = (run.first().ok_or(WrongShape)?, counts.next().ok_or(WrongShape)?);
        let (own, others) = places.split_at_checked(first.len()).ok_or(WrongShape)?;
        places = others;
        for (times, ask) in run.iter().enumerate() {
            let counted = request(ask, own, &mut states, now)?;
            if counted.admitted != (times < usize::from(*count)) {
                return Err(WrongShape);
            }
            requests.push(counted);
        }
    }
    if counts.next().is_some() {
        return Err(WrongShape);
    }
    Ok(ReserveReply::Decided { now, requests })
}

/// The store's clock, which is what a settle is answered.
pub(super) fn read_settle(reply: &Value) -> Result<Micros, WrongShape> {
    match reply {
        Value::Int(now) => instant(*now),
        _ => Err(WrongShape),
    }
}

/// The store's clock, and how each of the limiters stands that were looked at.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decisions never look without charging")
)]
pub(super) fn read_inspect(reply: &Value, looked: &[Looked]) -> Result<(Micros, Vec<Standing>), WrongShape> {
    let [Value::Int(now), Value::Array(raw)] = parts(reply)? else {
        return Err(WrongShape);
    };
    let (now, keys) = (instant(*now)?, looked_keys(looked));
    let states = states(&keys.named, raw)?;
    let standing = |(looked, place): (&Looked, &usize)| {
        let state = states.get(*place).ok_or(WrongShape)?;
        with_algorithm!(&looked.policy, state, (algorithm, state) => {
            algorithm.standing(state.as_ref(), &algorithm.advance(state.as_ref(), now))
        })
    };
    let standings: Result<_, _> = looked.iter().zip(&keys.places).map(standing).collect();
    Ok((now, standings?))
}

/// Decides one request as `lua/reserve.lua` does.
fn request(ask: &Ask, places: &[usize], states: &mut [State], now: Micros) -> Result<Counted, WrongShape> {
    let admitted = match ask.as_slice() {
        [_] => true,
        _ => has_room(ask, places, states, now)?,
    };
    let mut counted = Counted {
        admitted,
        verdicts: SmallVec::new(),
    };
    for (asked, place) in ask.iter().zip(places) {
        let state = states.get_mut(*place).ok_or(WrongShape)?;
        let verdict = with_algorithm!(&asked.policy, state, (algorithm, state) => {
            rule(algorithm, state, asked.cost, now, admitted && asked.cost > 0).proven()
        })?;
        counted.verdicts.push(verdict);
    }
    if let ([asked], [verdict]) = (ask.as_slice(), counted.verdicts.as_slice()) {
        counted.admitted = asked.dry_run || verdict.admitted;
    }
    Ok(counted)
}

/// Whether all charges of a request that are no dry runs have room.
fn has_room(ask: &[Asked], places: &[usize], states: &[State], now: Micros) -> Result<bool, WrongShape> {
    for (number, (asked, place)) in ask.iter().zip(places).enumerate() {
        let (cost, state) = (
            asked.asks(ask.get(..number)),
            states.get(*place).ok_or(WrongShape)?,
        );
        let room = with_algorithm!(&asked.policy, state, (algorithm, state) => {
            algorithm.admits(state.as_ref(), &algorithm.advance(state.as_ref(), now), cost)
        })?;
        if !asked.dry_run && !room {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Charges a state if there is room and `charge` says so, else reads it.
fn rule<A: Algorithm>(
    algorithm: &A,
    state: &mut Option<A::State>,
    cost: u64,
    now: Micros,
    charge: bool,
) -> Verdict<A::Receipt> {
    let view = algorithm.advance(state.as_ref(), now);
    if charge && algorithm.admits(state.as_ref(), &view, cost) {
        return algorithm.take(state.get_or_insert_default(), &view, cost);
    }
    let verdict = algorithm.read(state.as_ref(), &view, cost);
    if let (Some(state), true) = (state, cost > 0) {
        algorithm.repair(state, &view);
    }
    verdict
}

fn parts(reply: &Value) -> Result<&[Value], WrongShape> {
    match reply {
        Value::Array(parts) => Ok(parts),
        _ => Err(WrongShape),
    }
}

fn instant(micros: i64) -> Result<Micros, WrongShape> {
    u64::try_from(micros).map(Micros).map_err(|_| WrongShape)
}

/// A state for each key.
fn states(keys: &[(&Name, &Policy)], raw: &[Value]) -> Result<Vec<State>, WrongShape> {
    if keys.len() != raw.len() {
        return Err(WrongShape);
    }
    keys.iter()
        .zip(raw)
        .map(|((_, policy), raw)| state(policy, raw))
        .collect()
}

/// The state that a key has. One that no script of ours can have written is none, and is written over, as it is in `lua/`.
fn state(policy: &Policy, raw: &Value) -> Result<State, WrongShape> {
    let raw = match raw {
        Value::Nil => &[],
        Value::BulkString(raw) => raw.as_slice(),
        _ => return Err(WrongShape),
    };
    Ok(match policy {
        Policy::FixedWindow(_) => State::FixedWindow(whole(raw, 16, &mut eights(raw))),
        Policy::Bucket(_) => State::Bucket(whole(raw, 48, &mut eights(raw))),
        Policy::SlidingWindow(policy) => {
            let parts = policy.precision.saturating_add(1);
            let (newest, counts) = raw.split_at_checked(8).unwrap_or((raw, &[]));
            let newest = number(newest);
            let expires = newest.saturating_add(parts as u64).saturating_mul(policy.part);
            let head = [newest, expires, parts as u64];
            let mut numbers = head.into_iter().chain(counts.chunks_exact(6).map(number));
            let length = parts.saturating_mul(6).saturating_add(8);
            let known = newest < EXACT;
            State::SlidingWindow(whole(raw, length, &mut numbers).filter(|_| known))
        }
        Policy::SlidingLog(policy) => State::SlidingLog(excerpt(policy.window, raw)?),
        Policy::Concurrency(_) => return Err(WrongShape),
    })
}

/// The state that these numbers are, if they were read from as many bytes as it has.
fn whole<S: Written>(raw: &[u8], length: usize, numbers: &mut dyn Iterator<Item = u64>) -> Option<S> {
    (raw.len() == length)
        .then(|| S::read(&mut || numbers.next()))
        .flatten()
}

/// The log that an excerpt stands for.
fn excerpt(window: u64, raw: &[u8]) -> Result<Option<sliding_log::State>, WrongShape> {
    let entries = raw.chunks_exact(12);
    let Some(newest) = entries.clone().next_back() else {
        return Ok(None);
    };
    let instant = |entry: &[u8]| number(entry.get(..8).unwrap_or_default());
    let units = |entry: &[u8]| number(entry.get(8..).unwrap_or_default());
    let head = [instant(newest).saturating_add(window), entries.len() as u64];
    let entries = entries.flat_map(|entry| [instant(entry), units(entry)]);
    let mut numbers = head.into_iter().chain(entries);
    let state = sliding_log::State::read(&mut || numbers.next());
    state.map(Some).ok_or(WrongShape)
}

/// Numbers of eight bytes, as long as they are such that a script can have written.
fn eights(raw: &[u8]) -> impl Iterator<Item = u64> {
    let known = raw.chunks_exact(8).all(|bytes| number(bytes) < EXACT);
    raw.chunks_exact(8).take_while(move |_| known).map(number)
}

/// The number that these bytes are, the highest first.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}
