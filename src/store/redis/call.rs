//! What is sent: the requests of one script call, as the scripts of `lua/` take them.

use smallvec::SmallVec;

use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::{Policy, Receipt};

use super::keys::Keys;
use super::names::Name;
use super::scripts::Script;
use super::settings::Address;

/// One charge of a request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The caller's key with the limiter.
    pub(super) key: LimitKey,
    /// What the key is called in Redis.
    pub(super) name: Name,
    /// The limiter; `concurrency` is not for Redis.
    pub(super) policy: Policy,
    /// Units; 0 only reads.
    pub(super) cost: u64,
    /// Whether the limiter may reject without consequence.
    pub(super) dry_run: bool,
}

/// All charges of a request.
pub(super) type Ask = SmallVec<[Asked; 2]>;

/// A charge to give back.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    /// What the key is called in Redis.
    pub(super) name: Name,
    /// The limiter, with the limit that is now in force.
    pub(super) policy: Policy,
    /// The proof of the charge.
    pub(super) receipt: Receipt,
}

/// A charge to give back, in the life of the server that it was made in.
pub(super) struct Debt {
    /// What is owed.
    pub(super) owed: Owed,
    /// The server's life.
    pub(super) life: u32,
    /// Whether its key may still be on its way to the server.
    pub(super) asking: bool,
}

/// Refunds that are to be made at another server than the one that was asked: their keys are on their way there.
pub(super) struct Stray {
    /// The server.
    pub(super) to: Address,
    /// The refunds.
    pub(super) debts: Vec<Debt>,
}

/// A limiter to be looked at.
#[derive(Clone, Debug)]
pub(super) struct Looked {
    /// What the key is called in Redis.
    pub(super) name: Name,
    /// The limiter.
    pub(super) policy: Policy,
}

/// What many charges share, as `lua/tariffs.lua` reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tariff {
    policy: Policy,
    cost: u64,
    /// The cost, with what the same request asked of the same key before.
    asked: u64,
    dry_run: bool,
}

/// What one argument packs.
type Packed = SmallVec<[u8; 512]>;

/// The bytes of a tariff.
const TARIFF: usize = 41;
/// Most times that a request in a row is sent as one.
const TIMES: usize = 255;

/// Appends the call that decides `asks` in order, unless the store's clock is past `deadline` when it comes.
pub(super) fn reserve_command(out: &mut Vec<u8>, script: &Script, deadline: Micros, asks: &[&Ask]) {
    let keys = asked_keys(asks);
    let mut tariffs = Tariffs::default();
    let mut requests = Packed::new();
    let mut places = keys.places.iter();
    for run in runs(asks) {
        let Some(ask) = run.first() else { continue };
        push(&mut requests, ask.len(), 2);
        push(&mut requests, run.len(), 1);
        for (place, asked) in ask.iter().enumerate() {
            let key = places.next().copied().unwrap_or_default();
            push(&mut requests, key.saturating_add(1), 2);
            push(&mut requests, tariffs.number(asked.tariff(ask.get(..place))), 2);
        }
    }
    let mut command = Command::start(out, script, &keys, 4);
    command.number(deadline.0);
    command.number(keys.fixed as u64);
    command.tariffs(&tariffs);
    command.bulk(&requests);
}

/// Appends the call that gives `owed` back.
pub(super) fn settle_command(out: &mut Vec<u8>, script: &Script, owed: &[&Owed]) {
    let keys = Keys::of(owed.iter().map(|owed| (&owed.name, &owed.name, &owed.policy)));
    let mut tariffs = Tariffs::default();
    let mut refunds = Packed::new();
    for (owed, key) in owed.iter().zip(&keys.places) {
        push(&mut refunds, key.saturating_add(1), 2);
        push(&mut refunds, tariffs.number(Tariff::free(owed.policy)), 2);
        receipt(&mut refunds, &owed.receipt);
    }
    let mut command = Command::start(out, script, &keys, 3);
    command.number(keys.fixed as u64);
    command.tariffs(&tariffs);
    command.bulk(&refunds);
}

/// Appends the call that looks at limiters.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "decisions never look without charging")
)]
pub(super) fn inspect_command(out: &mut Vec<u8>, script: &Script, looked: &[Looked]) {
    let keys = looked_keys(looked);
    let tariffs = keys.named.iter().map(|(_, policy)| Tariff::free(**policy));
    let mut command = Command::start(out, script, &keys, 2);
    command.number(keys.fixed as u64);
    command.tariffs(&Tariffs(tariffs.collect()));
}

/// The keys that a call for `asks` names: those of the first of each run are those of all.
pub(super) fn asked_keys<'a>(asks: &'a [&'a Ask]) -> Keys<'a> {
    let asked = runs(asks)
        .filter_map(|run| run.first())
        .flat_map(|ask| ask.iter());
    Keys::of(asked.map(|asked| (asked.key, &asked.name, &asked.policy)))
}

/// The keys that a look names.
pub(super) fn looked_keys(looked: &[Looked]) -> Keys<'_> {
    Keys::of(
        looked
            .iter()
            .map(|looked| (&looked.name, &looked.name, &looked.policy)),
    )
}

/// Requests in a row that ask the same: none is told anything else for being sent with others.
pub(super) fn runs<'a>(asks: &'a [&'a Ask]) -> impl Iterator<Item = &'a [&'a Ask]> {
    let same = |one: &&Ask, other: &&Ask| {
        let same = |(one, other): (&Asked, &Asked)| {
            one.key == other.key
                && one.cost == other.cost
                && one.dry_run == other.dry_run
                && one.policy == other.policy
        };
        one.len() == other.len() && one.iter().zip(other.iter()).all(same)
    };
    asks.chunk_by(same).flat_map(|run| run.chunks(TIMES))
}

impl Asked {
    /// The units that must have room: with those that earlier charges of the request ask of the same key. The keys of a
    /// request differ; should they not, their costs add up.
    pub(super) fn asks(&self, earlier: Option<&[Self]>) -> u64 {
        if self.cost == 0 {
            return 0;
        }
        let same = earlier
            .into_iter()
            .flatten()
            .filter(|earlier| earlier.key == self.key);
        same.fold(self.cost, |sum, earlier| sum.saturating_add(earlier.cost))
    }

    fn tariff(&self, earlier: Option<&[Self]>) -> Tariff {
        Tariff {
            policy: self.policy,
            cost: self.cost,
            asked: self.asks(earlier),
            dry_run: self.dry_run,
        }
    }
}

impl Tariff {
    fn free(policy: Policy) -> Self {
        Self {
            policy,
            cost: 0,
            asked: 0,
            dry_run: false,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let (kind, precision, blend, queue) = match &self.policy {
            Policy::FixedWindow(_) => (1, 0, false, None),
            Policy::SlidingWindow(policy) => (2, policy.precision, policy.blend, None),
            Policy::Bucket(policy) => (3, 0, false, policy.queue),
            Policy::SlidingLog(_) => (4, 0, false, None),
            Policy::Concurrency(_) => (0, 0, false, None),
        };
        let (window, size) = match &self.policy {
            Policy::FixedWindow(policy) => (policy.window, 0),
            Policy::SlidingWindow(policy) => (policy.window, policy.part),
            Policy::Bucket(policy) => (policy.window, policy.burst),
            Policy::SlidingLog(policy) => (policy.window, 0),
            Policy::Concurrency(_) => (0, 0),
        };
        out.push(kind);
        out.push(u8::try_from(precision).unwrap_or(u8::MAX));
        out.extend([blend, queue.is_some(), self.dry_run].map(u8::from));
        let queue = queue.unwrap_or_default();
        for number in [self.policy.limit(), window, size, queue, self.cost, self.asked] {
            out.extend(six(number));
        }
    }
}

/// The tariffs of a call, each once.
#[derive(Default)]
struct Tariffs(SmallVec<[Tariff; 4]>);

impl Tariffs {
    /// The number of a tariff, from 1.
    fn number(&mut self, tariff: Tariff) -> usize {
        let place = self.0.iter().position(|known| *known == tariff);
        let place = place.unwrap_or_else(|| {
            self.0.push(tariff);
            self.0.len().saturating_sub(1)
        });
        place.saturating_add(1)
    }
}

/// A command on its way out.
struct Command<'a>(&'a mut Vec<u8>);

impl<'a> Command<'a> {
    /// Starts to call a script with these keys, and as many arguments as will follow.
    fn start(out: &'a mut Vec<u8>, script: &Script, keys: &Keys<'_>, arguments: usize) -> Self {
        let mut command = Self(out);
        command.length(b'*', keys.named.len().saturating_add(arguments).saturating_add(3));
        let (verb, named) = script.call();
        command.bulk(verb.as_bytes());
        command.bulk(named.as_bytes());
        command.number(keys.named.len() as u64);
        for (name, _) in &keys.named {
            command.bulk(name.bytes());
        }
        command
    }

    fn length(&mut self, mark: u8, length: usize) {
        self.0.push(mark);
        self.0
            .extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        self.0.extend_from_slice(b"\r\n");
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.0.extend_from_slice(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, number: u64) {
        self.bulk(itoa::Buffer::new().format(number).as_bytes());
    }

    fn tariffs(&mut self, Tariffs(tariffs): &Tariffs) {
        self.length(b'$', tariffs.len().saturating_mul(TARIFF));
        for tariff in tariffs {
            tariff.write(self.0);
        }
        self.0.extend_from_slice(b"\r\n");
    }
}

/// Appends a receipt as its algorithm in `lua/` reads it.
fn receipt(out: &mut Packed, receipt: &Receipt) {
    match receipt {
        Receipt::FixedWindow(receipt) => {
            out.extend(receipt.reset.to_be_bytes());
            out.extend(six(receipt.cost));
        }
        Receipt::SlidingWindow(receipt) => {
            out.extend(receipt.part.to_be_bytes());
            out.extend(six(receipt.cost));
        }
        Receipt::SlidingLog(receipt) => {
            out.extend(receipt.at.to_be_bytes());
            out.extend(six(receipt.cost));
        }
        Receipt::Bucket(receipt) => {
            out.extend(receipt.charged.to_be_bytes());
            out.extend(six(receipt.cost));
            out.extend(receipt.paid.to_be_bytes());
            out.extend(receipt.at.to_be_bytes());
            out.extend(six(receipt.limit));
            out.extend(receipt.life.to_be_bytes());
        }
        Receipt::Concurrency(_) => {}
    }
}

/// A number below 2^48 in six bytes; the largest of them stands for all beyond.
fn six(number: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = number.min((1 << 48) - 1).to_be_bytes();
    bytes
}

/// Appends the lowest `bytes` of a number that has no more.
fn push(out: &mut Packed, number: usize, bytes: usize) {
    let all = number.to_be_bytes();
    out.extend_from_slice(all.get(all.len().saturating_sub(bytes)..).unwrap_or_default());
}
