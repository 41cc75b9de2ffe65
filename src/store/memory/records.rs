//! All that the store knows, record by record: so that it outlives its process.
//!
//! A record is a byte for its kind, the key, and the numbers of the state. There are no lengths to believe: records go on
//! until the byte that ends them, and a state is never longer than its algorithm allows.

use std::io::{self, Read, Write};

use super::Memory;
use super::shard::Shard;
use super::table::{Kept, Tables};
use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::bucket::Bucket;
use crate::limit::fixed_window::FixedWindow;
use crate::limit::sliding_log::SlidingLog;
use crate::limit::sliding_window::SlidingWindow;
use crate::limit::{Lasting, Written};

/// What became of records that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recalled {
    /// Keys that are held now.
    pub kept: usize,
    /// Keys that had expired in the meantime.
    pub expired: usize,
    /// Keys for which there was no place.
    pub dropped: usize,
}

/// Ends the records.
const END: u8 = 0;
/// Added to the kind of an overflow key.
const SHARED: u8 = 0x80;

/// The kinds of state and their bytes. A byte is never given to another kind.
macro_rules! for_each_kind {
    ($do:ident) => {
        $do! { FixedWindow 1, SlidingLog 2, SlidingWindow 3, Bucket 4 }
    };
}

impl Memory {
    /// Writes down what has not expired, and returns how many keys that is. Locks one shard at a time.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_records(&self, out: &mut impl Write) -> io::Result<usize> {
        let now = self.clock.now();
        let mut keys = 0_usize;
        for place in 0..self.shards.len() {
            let mut bytes = Vec::new();
            if let Some(shard) = self.shards.lock(place) {
                keys = keys.saturating_add(write_tables(&shard.callers, 0, now, &mut bytes));
                write_tables(&shard.shared, SHARED, now, &mut bytes);
            }
            out.write_all(&bytes)?;
        }
        out.write_all(&[END])?;
        Ok(keys)
    }

    /// Takes over records, every instant moved by so many microseconds; a key that is here already stays as it is.
    ///
    /// # Errors
    /// They cannot be read, or are none; what was read until then is taken over.
    pub fn read_records(&self, input: &mut impl Read, by: i64) -> io::Result<Recalled> {
        let mut recall = Recall {
            memory: self,
            now: self.clock.now(),
            by,
            done: Recalled::default(),
        };
        loop {
            let [kind] = bytes(input)?;
            if kind == END {
                return Ok(recall.done);
            }
            let key = LimitKey(u128::from_le_bytes(bytes(input)?));
            recall.record(kind, key, input)?;
        }
    }
}

fn write_tables(tables: &Tables, shared: u8, now: Micros, out: &mut Vec<u8>) -> usize {
    let mut keys = 0_usize;
    macro_rules! write_all {
        ($($algorithm:ident $kind:literal),*) => {$(
            for (LimitKey(key), state) in <$algorithm as Kept>::table(tables).iter() {
                if state.void() > now {
                    out.push($kind | shared);
                    out.extend_from_slice(&key.to_le_bytes());
                    state.write(&mut |number| out.extend_from_slice(&number.to_le_bytes()));
                    keys = keys.saturating_add(1);
                }
            }
        )*};
    }
    for_each_kind!(write_all);
    keys
}

/// A reading of records.
struct Recall<'a> {
    memory: &'a Memory,
    now: Micros,
    by: i64,
    done: Recalled,
}

impl Recall<'_> {
    fn record(&mut self, kind: u8, key: LimitKey, input: &mut impl Read) -> io::Result<()> {
        let shared = kind & SHARED != 0;
        macro_rules! read_one {
            ($($algorithm:ident $kind:literal),*) => {
                match kind & !SHARED {
                    $($kind => self.take::<$algorithm>(shared, key, input),)*
                    _ => Err(malformed()),
                }
            };
        }
        for_each_kind!(read_one)
    }

    fn take<A: Kept<State: Written>>(
        &mut self,
        shared: bool,
        key: LimitKey,
        input: &mut impl Read,
    ) -> io::Result<()> {
        let mut failed = None;
        let mut number = || match bytes(input) {
            Ok(number) => Some(u64::from_le_bytes(number)),
            Err(error) => {
                failed = Some(error);
                None
            }
        };
        let Some(mut state) = A::State::read(&mut number) else {
            return Err(failed.unwrap_or_else(malformed));
        };
        state.shift(self.by);
        let void = state.void();
        if void <= self.now {
            self.done.expired = self.done.expired.saturating_add(1);
            return Ok(());
        }
        let Some(mut shard) = self.memory.shards.lock(self.memory.shards.place(key)) else {
            return Ok(());
        };
        let Shard {
            callers,
            shared: rules,
        } = &mut *shard;
        let table = A::table_mut(if shared { rules } else { callers });
        if table.get(key).is_some() {
            return Ok(());
        }
        if !shared && !self.memory.claim() {
            self.done.dropped = self.done.dropped.saturating_add(1);
            return Ok(());
        }
        table.insert(key, state);
        self.memory.sweeper.added(void);
        self.done.kept = self.done.kept.saturating_add(usize::from(!shared));
        Ok(())
    }
}

fn bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a record that is none")
}
