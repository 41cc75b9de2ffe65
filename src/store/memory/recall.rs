//! State that is written down and read again is the same state.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::{Memory, Recalled, Settings};
use crate::clock::{Clock, Micros};
use crate::identity::{LimitKey, Secret};
use crate::limit::{Kind, Spec};
use crate::rules::Charge;
use crate::store::By;
use crate::store::contract::{charge, new_key, refunds, rule};
use crate::store::snapshot::{Hashed, SnapshotError, load, save, secret};

const START: Micros = Micros::from_secs(1_728_000_000);
const ROOM: Settings = Settings { max_keys: 1_000 };

/// A store that goes on from what another wrote down, on the same clock.
fn recalled(memory: &Memory, clock: &Clock, settings: Settings, by: i64) -> (Memory, Recalled) {
    let mut records = Vec::new();
    memory.write_records(&mut records).unwrap();
    let next = Memory::new(settings, clock.clone());
    let mut rest = records.as_slice();
    let recalled = next.read_records(&mut rest, by).unwrap();
    assert_eq!(rest, [0; 0]);
    (next, recalled)
}

/// The algorithms whose state lasts: what is in flight ends with the process.
fn lasting() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.has_window())
}

/// One request of a schedule.
#[derive(Clone, Debug)]
struct Step {
    pass: u64,
    limiters: Vec<usize>,
    cost: u64,
    refund: bool,
}

fn specs() -> Vec<Spec> {
    let spec = |kind, limit, window, precision, blend, burst| Spec {
        kind,
        limit,
        window: Some(Micros(window)),
        precision,
        blend,
        burst,
        queue: None,
        cost: 1,
    };
    vec![
        spec(Kind::FixedWindow, 5, 40_000, 1, true, None),
        spec(Kind::SlidingLog, 5, 40_000, 1, true, None),
        spec(Kind::SlidingWindow, 7, 40_000, 1, true, None),
        spec(Kind::SlidingWindow, 7, 41_000, 6, true, None),
        spec(Kind::SlidingWindow, 7, 40_000, 3, false, None),
        spec(Kind::TokenBucket, 5, 40_000, 1, true, Some(9)),
        spec(Kind::Gcra, 7, 43_000, 1, true, Some(2)),
    ]
}

fn schedule() -> impl Strategy<Value = Vec<Step>> {
    let limiters = prop::collection::vec(0..14_usize, 1..4);
    let step = (0..9_000_u64, limiters, 0..4_u64, prop::bool::weighted(0.3));
    let step = step.prop_map(|(pass, mut limiters, cost, refund)| {
        limiters.sort_unstable();
        limiters.dedup();
        Step {
            pass,
            limiters,
            cost,
            refund,
        }
    });
    prop::collection::vec(step, 0..60)
}

/// The charges of a step: two callers for each spec.
fn charges(step: &Step) -> Vec<Charge> {
    let specs = specs();
    let limiter = |&place: &usize| Charge {
        cost: step.cost,
        ..charge(
            &specs[place / 2],
            LimitKey(u128::from(place as u64) << 64 | place as u128),
        )
    };
    step.limiters.iter().map(limiter).collect()
}

proptest! {
    #[test]
    fn a_store_goes_on_where_another_stopped(before in schedule(), after in schedule(), tight in any::<bool>()) {
        let clock = Clock::manual(START);
        // With room for few, overflow keys are written down as well.
        let settings = Settings { max_keys: if tight { 3 } else { 100 } };
        let memory = Memory::new(settings, clock.clone());
        let mut charged = Vec::new();
        for step in &before {
            clock.set(clock.now().plus(Micros(step.pass)));
            let charges = charges(step);
            let reserved = memory.decide(&charges);
            let owed = refunds(&charges, &reserved);
            match step.refund {
                true => memory.give_back(&owed),
                false => charged.extend(owed),
            }
        }
        (0..16).for_each(|_| { memory.sweep(); });
        let (next, recalled) = recalled(&memory, &clock, settings, 0);
        prop_assert_eq!((recalled.expired, recalled.dropped), (0, 0));
        // Charges of before are given back in both.
        for step in &after {
            clock.set(clock.now().plus(Micros(step.pass)));
            if let (true, Some(refund)) = (step.refund, charged.pop()) {
                memory.give_back(std::slice::from_ref(&refund));
                next.give_back(&[refund]);
            }
            let charges = charges(step);
            let (here, there) = (memory.decide(&charges), next.decide(&charges));
            prop_assert_eq!(format!("{here:?}"), format!("{there:?}"));
        }
    }

    #[test]
    fn no_bytes_are_too_much(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..6_u8, by in any::<i64>()) {
        let memory = Memory::new(ROOM, Clock::manual(START));
        let mut records = vec![kind];
        records.extend(bytes);
        let _ = memory.read_records(&mut records.as_slice(), by);
        for spec in specs() {
            let key = LimitKey(u128::from_le_bytes(records.iter().copied().chain([0; 17]).skip(1).take(16).collect::<Vec<_>>().try_into().unwrap()));
            let charges = [charge(&spec, key)];
            let reserved = memory.decide(&charges);
            memory.give_back(&refunds(&charges, &reserved));
        }
    }
}

#[test]
fn the_bound_holds_and_what_has_expired_takes_no_place() {
    let clock = Clock::manual(START);
    let memory = Memory::new(ROOM, clock.clone());
    for kind in lasting() {
        for _ in 0..10 {
            memory.decide(&[charge(&rule(kind, 3), new_key())]);
        }
    }
    let few = Settings { max_keys: 20 };
    let (next, done) = recalled(&memory, &clock, few, 0);
    assert_eq!((done.kept, done.dropped, next.len()), (20, 30, 20));
    let late = charge(&rule(Kind::Gcra, 3), new_key());
    assert!(next.decide(&[late]).rulings[0].by == By::Overflow);
    clock.set(START.plus(Micros::from_secs(200)));
    let mut records = Vec::new();
    assert_eq!(memory.write_records(&mut records).unwrap(), 0);
    assert_eq!(records, [0], "what has expired is not written");
}

/// A store with one caller at its limit, in a folder of its own.
struct Bench {
    folder: tempfile::TempDir,
    clock: Clock,
    memory: Memory,
    charge: Charge,
    secret: Secret,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let clock = Clock::manual(START);
        let memory = Memory::new(ROOM, clock.clone());
        let charge = charge(&rule(kind, 2), new_key());
        while memory.decide(std::slice::from_ref(&charge)).admitted {}
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock,
            memory,
            charge,
            secret: Secret::from_text("s"),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("limits.snap")
    }

    /// Writes the file while the wall clock stands at `wall`.
    fn save(&self, wall: Micros) {
        save(&self.path(), &self.memory, Hashed::Own(&self.secret), wall).unwrap();
    }

    /// When the caller has room again, from now on, for a start with the wall clock at `wall`.
    fn wait_at(&self, wall: Micros) -> Micros {
        let clock = Clock::manual(wall);
        let restored = load(&self.path(), ROOM, None, clock).unwrap();
        let reserved = restored.memory.decide(std::slice::from_ref(&self.charge));
        let retry = reserved.rulings[0].verdict.retry;
        retry.map_or(Micros(0), |retry| retry.since(wall))
    }
}

#[test]
fn time_passes_on_the_wall_clock_while_nothing_runs() {
    for kind in lasting() {
        let bench = Bench::new(kind);
        bench.save(START);
        let wait = bench.wait_at(START);
        assert!(wait > Micros(0), "{kind:?}");
        let later = Micros::from_secs(10);
        assert_eq!(bench.wait_at(START.plus(later)), wait.since(later), "{kind:?}");
        assert_eq!(
            bench.wait_at(START.plus(Micros::from_secs(600))),
            Micros(0),
            "{kind:?}"
        );
    }
}

#[test]
fn a_clock_that_ran_back_counts_as_none() {
    for kind in lasting() {
        let bench = Bench::new(kind);
        bench.save(START);
        let wait = bench.wait_at(START);
        for back in [1, 3_600, 40 * 86_400, 10_000 * 86_400] {
            let back = Micros::from_secs(back);
            let more = bench.wait_at(START.since(back)).since(wait);
            // A grid of sub-windows of a minute is met again up to a minute later.
            let most = if kind == Kind::SlidingWindow { 60 } else { 0 };
            assert!(
                more <= Micros::from_secs(most),
                "{kind:?} {back:?}: {more:?} more"
            );
        }
    }
}

#[test]
fn a_store_whose_clock_was_another_than_the_walls_ages_by_the_walls() {
    for kind in lasting() {
        let bench = Bench::new(kind);
        // The wall clock was set while the process ran: by years, forwards.
        let wall = START.plus(Micros::from_secs(20_000 * 86_400));
        let fresh = Bench::new(kind);
        fresh.save(START);
        bench.save(wall);
        let later = Micros::from_secs(7);
        assert_eq!(
            bench.wait_at(wall.plus(later)),
            fresh.wait_at(START.plus(later)),
            "{kind:?}"
        );
    }
}

#[test]
fn only_its_owner_may_read_it_and_the_secret_is_in_it_where_nobody_else_keeps_it() {
    let bench = Bench::new(Kind::Gcra);
    // Left there by another end, or put there to be written through.
    let aim = bench.folder.path().join("aim");
    fs::write(&aim, "untouched").unwrap();
    symlink(&aim, bench.folder.path().join("limits.snap.new")).unwrap();
    bench.save(START);
    assert_eq!(fs::read_to_string(&aim).unwrap(), "untouched");
    let names = fs::read_dir(bench.folder.path()).unwrap().count();
    assert_eq!(names, 2, "nothing is left beside it");
    let mode = fs::metadata(bench.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let holds = |secret: &Secret| {
        let bytes = fs::read(bench.path()).unwrap();
        bytes.windows(32).any(|window| window == secret.expose())
    };
    assert!(holds(&bench.secret));
    let kept = secret(&bench.path()).unwrap().unwrap();
    assert_eq!(kept.expose(), bench.secret.expose());
    save(
        &bench.path(),
        &bench.memory,
        Hashed::Configured(&bench.secret),
        START,
    )
    .unwrap();
    assert!(!holds(&bench.secret));
    let clock = || bench.clock.clone();
    let other = Secret::from_text("t");
    let same = load(&bench.path(), ROOM, Some(&bench.secret), clock()).unwrap();
    assert_eq!((same.recalled.kept, same.secret.is_none()), (1, true));
    for configured in [None, Some(&other)] {
        let refused = load(&bench.path(), ROOM, configured, clock()).unwrap_err();
        assert!(matches!(refused, SnapshotError::OtherSecret), "{refused}");
    }
}

#[test]
fn nothing_but_a_whole_snapshot_of_this_version_is_believed() {
    let bench = Bench::new(Kind::SlidingLog);
    let path = bench.path();
    let read = || load(&path, ROOM, None, bench.clock.clone());
    assert!(matches!(read(), Err(SnapshotError::Absent)));
    bench.save(START);
    let whole = fs::read(&path).unwrap();
    assert!(read().is_ok());
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let error = read().unwrap_err();
        match at {
            0..8 => assert!(matches!(error, SnapshotError::Foreign), "{at}: {error}"),
            8..12 => assert!(matches!(error, SnapshotError::Version(_)), "{at}: {error}"),
            _ => assert!(matches!(error, SnapshotError::Damaged), "{at}: {error}"),
        }
        fs::write(&path, &whole[..at]).unwrap();
        assert!(read().is_err(), "cut at {at}");
    }
    // A log that says it has more entries than there are bytes, under a checksum that is right: head, kind, key, expiry.
    let mut lying = whole[..whole.len() - 32].to_vec();
    let count = 12 + 8 + 8 + 32 + 1 + 32 + 1 + 16 + 8;
    assert_eq!(lying[count..count + 8], 1_u64.to_le_bytes());
    lying[count..count + 8].fill(0xff);
    let sum = blake3::hash(&lying);
    lying.extend(sum.as_bytes());
    fs::write(&path, &lying).unwrap();
    assert!(matches!(read(), Err(SnapshotError::Damaged)));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(read(), Err(SnapshotError::Foreign)));
}

#[test]
fn what_cannot_be_written_leaves_the_old_one() {
    let bench = Bench::new(Kind::Gcra);
    let nowhere = bench.folder.path().join("none/limits.snap");
    assert!(save(&nowhere, &bench.memory, Hashed::Own(&bench.secret), START).is_err());
    bench.save(START);
    let before = fs::read(bench.path()).unwrap();
    fs::create_dir(bench.folder.path().join("limits.snap.new")).unwrap();
    assert!(save(&bench.path(), &bench.memory, Hashed::Own(&bench.secret), START).is_err());
    assert_eq!(fs::read(bench.path()).unwrap(), before);
}
