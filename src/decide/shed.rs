//! The edge: who was just refused is refused again without asking the store.
//!
//! A rejection is remembered for its limiter, key, cost and limit, once for the process. It is believed until the limiter
//! has room again, but no longer than a given time where a refund may make room sooner; a refund made here is known at
//! once. When it is over, one request asks the store, and those that come meanwhile wait for what it is told.
//! Nothing is ever admitted here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::Policy;
use crate::rules::Charge;
use crate::store::{By, Ruling};

/// The rejections that are remembered.
pub(super) struct Shed(Box<[Mutex<Group>]>);

/// Those of the keys that share a place.
#[derive(Default)]
struct Group {
    remembered: Vec<Remembered>,
    /// How often a key of the group was forgotten: what the store said before is not believed after.
    forgotten: u32,
}

/// A rejection.
struct Remembered {
    what: What,
    ruling: Ruling,
    /// When the store was asked, and when it had answered, on the clock here.
    sent: Micros,
    heard: Micros,
    /// How many requests it has refused.
    refused: u64,
    /// Ends when the request that asks the store again has its answer.
    asked: Option<watch::Receiver<()>>,
}

/// What a rejection is a rejection of: with another cost or under another limit, the store may say something else.
#[derive(Clone, Copy, PartialEq, Eq)]
struct What {
    key: LimitKey,
    policy: Policy,
    cost: u64,
}

/// What the edge says to a charge.
pub(super) enum Word {
    /// The limiter has no room, as the store said when it was asked last.
    Refuse(Ruling),
    /// Another request asks the store: it ends when that is answered.
    Wait(watch::Receiver<()>),
    /// Nothing is known.
    Ask,
}

/// A question to the store. While it is held, requests that ask the same wait.
pub(super) struct Asked {
    forgotten: u32,
    _answered: Option<watch::Sender<()>>,
}

const GROUPS: usize = 2_048;
/// Most rejections of a group.
const MOST: usize = 8;

impl From<&Charge> for What {
    fn from(charge: &Charge) -> Self {
        Self {
            key: charge.key,
            policy: charge.policy,
            cost: charge.cost,
        }
    }
}

impl Default for Shed {
    fn default() -> Self {
        Self((0..GROUPS).map(|_| Mutex::default()).collect())
    }
}

impl Shed {
    /// What is known of a charge at `now`, when a rejection is believed for at most `longest`, or without it for as long
    /// as the limiter has no room.
    pub(super) fn look(&self, charge: &Charge, longest: Option<Micros>, now: Micros) -> Word {
        let Some(mut group) = self.group(charge.key) else {
            return Word::Ask;
        };
        let what = What::from(charge);
        let Some(known) = group.remembered.iter_mut().find(|known| known.what == what) else {
            return Word::Ask;
        };
        if now < known.until(longest) {
            known.refused = known.refused.saturating_add(1);
            return Word::Refuse(known.told(now));
        }
        match &known.asked {
            Some(asked) if known.is_asked() => Word::Wait(asked.clone()),
            _ => Word::Ask,
        }
    }

    /// The store is about to be asked about a charge, and what it says then is [learned](Self::learn); `None` if another
    /// request asks it already.
    pub(super) fn ask(&self, charge: &Charge) -> Option<Asked> {
        let mut group = self.group(charge.key)?;
        let (what, forgotten) = (What::from(charge), group.forgotten);
        let known = group.remembered.iter_mut().find(|known| known.what == what);
        let answered = match known {
            Some(known) if known.is_asked() => return None,
            Some(known) => {
                let (answered, asked) = watch::channel(());
                known.asked = Some(asked);
                Some(answered)
            }
            None => None,
        };
        Some(Asked {
            forgotten,
            _answered: answered,
        })
    }

    /// Takes note of what a server said to a question that was sent at `sent` and answered by `heard`.
    pub(super) fn learn(
        &self,
        charge: &Charge,
        asked: &Asked,
        ruling: &Ruling,
        (sent, heard): (Micros, Micros),
    ) {
        let Some(mut group) = self
            .group(charge.key)
            .filter(|_| matches!(ruling.by, By::Server(_)))
        else {
            return;
        };
        let what = What::from(charge);
        let place = group.remembered.iter().position(|known| known.what == what);
        if ruling.verdict.admitted || group.forgotten != asked.forgotten {
            if let Some(place) = place {
                group.remembered.swap_remove(place);
            }
            return;
        }
        let refused = place.and_then(|place| group.remembered.get(place));
        let rejection = Remembered {
            what,
            ruling: Ruling {
                by: By::Edge,
                ..ruling.clone()
            },
            sent,
            heard,
            refused: refused.map_or(0, |known| known.refused),
            asked: None,
        };
        match place.and_then(|place| group.remembered.get_mut(place)) {
            Some(known) => *known = rejection,
            None => group.add(rejection, heard),
        }
    }

    /// A charge of this key was given back: nothing that was said of it holds any more.
    pub(super) fn forget(&self, key: LimitKey) {
        if let Some(mut group) = self.group(key) {
            group.forgotten = group.forgotten.wrapping_add(1);
            group.remembered.retain(|known| known.what.key != key);
        }
    }

    fn group(&self, LimitKey(key): LimitKey) -> Option<MutexGuard<'_, Group>> {
        let place = usize::try_from(key % self.0.len() as u128).ok()?;
        let group = self.0.get(place)?;
        Some(group.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Group {
    /// Remembers one more. Where there is no place, one that is over goes, else the one that has refused the fewest;
    /// whoever stays is counted from there.
    fn add(&mut self, rejection: Remembered, now: Micros) {
        if self.remembered.len() >= MOST {
            let least = |known: &&mut Remembered| {
                if known.until(None) <= now {
                    0
                } else {
                    known.refused.saturating_add(1)
                }
            };
            if let Some(gone) = self.remembered.iter_mut().min_by_key(least) {
                let counted = gone.refused;
                *gone = rejection;
                for known in &mut self.remembered {
                    known.refused = known.refused.saturating_sub(counted);
                }
            }
            return;
        }
        self.remembered.push(rejection);
    }
}

impl Remembered {
    /// Whether a request asks the store again, and has no answer yet.
    fn is_asked(&self) -> bool {
        // When it has, or has left, nobody holds the other end.
        self.asked
            .as_ref()
            .is_some_and(|asked| asked.has_changed().is_ok())
    }

    /// Until when it is believed. Counted from when the store was asked: it said so later, if at all.
    fn until(&self, longest: Option<Micros>) -> Micros {
        let wait = self
            .ruling
            .verdict
            .retry
            .map(|retry| retry.since(self.ruling.now));
        let wait = wait.unwrap_or_default();
        self.sent.plus(longest.map_or(wait, |longest| wait.min(longest)))
    }

    /// The ruling as it is told at `now`. Counted from when the answer was there: the store's clock was no further.
    fn told(&self, now: Micros) -> Ruling {
        Ruling {
            now: self.ruling.now.plus(now.since(self.heard)),
            ..self.ruling.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, MOST, Shed, Word};
    use crate::clock::Micros;
    use crate::identity::LimitKey;
    use crate::limit::{Kind, Spec, Standing, Verdict};
    use crate::rules::{Charge, RuleId};
    use crate::store::{By, Ruling};

    const WAIT: Micros = Micros::from_secs(60);
    const LONGEST: Micros = Micros::from_millis(250);

    fn charge(key: u128, limit: u64, cost: u64) -> Charge {
        let spec = Spec {
            kind: Kind::FixedWindow,
            limit,
            window: Some(WAIT),
            precision: 1,
            blend: true,
            burst: None,
            queue: None,
            cost,
        };
        let policy = spec.policy().unwrap();
        Charge {
            allowance: None,
            rule: RuleId(0),
            key: LimitKey(key),
            overflow: LimitKey(0),
            policy,
            own: policy,
            cost,
            dry_run: false,
        }
    }

    /// What a server whose clock is an hour ahead says.
    fn ruling(charge: &Charge, admitted: bool) -> Ruling {
        let now = Micros::from_secs(3_600);
        let standing = Standing {
            remaining: 0,
            next: Some(now.plus(WAIT)),
            full: Some(now.plus(WAIT)),
        };
        Ruling {
            key: charge.key,
            by: By::Server(1),
            now,
            verdict: Verdict {
                admitted,
                limit: charge.policy.limit(),
                standing,
                refunded: standing,
                retry: (!admitted).then(|| now.plus(WAIT)),
                hold: Micros(0),
                receipt: None,
            },
        }
    }

    /// The store refuses a charge, which is asked at 10 ms and answered at 20 ms.
    fn refuse(shed: &Shed, charge: &Charge) {
        let asked = shed.ask(charge).unwrap();
        let when = (Micros::from_millis(10), Micros::from_millis(20));
        shed.learn(charge, &asked, &ruling(charge, false), when);
    }

    fn is_refused(shed: &Shed, charge: &Charge, longest: Option<Micros>, millis: u64) -> bool {
        matches!(
            shed.look(charge, longest, Micros::from_millis(millis)),
            Word::Refuse(_)
        )
    }

    #[test]
    fn a_rejection_lasts_from_when_it_was_asked_for() {
        let (shed, one) = (Shed::default(), charge(7, 5, 1));
        assert!(!is_refused(&shed, &one, None, 0));
        refuse(&shed, &one);
        for (longest, last) in [(None, 60_009), (Some(LONGEST), 259)] {
            assert!(is_refused(&shed, &one, longest, last));
            assert!(!is_refused(&shed, &one, longest, last + 1));
        }
        let Word::Refuse(told) = shed.look(&one, None, Micros::from_millis(1_020)) else {
            panic!("not refused")
        };
        // A second after the answer there is a second less to wait.
        assert_eq!((told.off(), told.by), (Micros::from_secs(59), By::Edge));
    }

    #[test]
    fn another_key_cost_or_limit_is_not_refused() {
        let (shed, one) = (Shed::default(), charge(7, 5, 2));
        refuse(&shed, &one);
        for other in [
            charge(8, 5, 2),
            charge(7, 5, 1),
            charge(7, 5, 3),
            charge(7, 6, 2),
            charge(7, 4, 2),
        ] {
            assert!(!is_refused(&shed, &other, None, 30));
        }
        assert!(is_refused(&shed, &one, None, 30));
    }

    #[test]
    fn what_was_asked_before_a_refund_is_not_believed_after_it() {
        let (shed, one) = (Shed::default(), charge(7, 5, 1));
        refuse(&shed, &one);
        shed.forget(one.key);
        assert!(!is_refused(&shed, &one, None, 30));
        let asked = shed.ask(&one).unwrap();
        shed.forget(one.key);
        shed.learn(&one, &asked, &ruling(&one, false), (Micros(0), Micros(0)));
        assert!(!is_refused(&shed, &one, None, 0));
    }

    #[test]
    fn one_asks_again_and_the_others_wait_for_it() {
        let (shed, one) = (Shed::default(), charge(7, 5, 1));
        refuse(&shed, &one);
        let over = Micros::from_millis(300);
        assert!(matches!(shed.look(&one, Some(LONGEST), over), Word::Ask));
        let asked = shed.ask(&one).unwrap();
        let Word::Wait(mut waits) = shed.look(&one, Some(LONGEST), over) else {
            panic!("nobody asks")
        };
        assert!(shed.ask(&one).is_none() && waits.has_changed().is_ok());
        shed.learn(&one, &asked, &ruling(&one, true), (over, over));
        drop(asked);
        assert!(waits.has_changed().is_err());
        assert!(waits.borrow_and_update().eq(&()));
        assert!(matches!(shed.look(&one, Some(LONGEST), over), Word::Ask));
    }

    #[test]
    fn a_flood_of_keys_is_bounded_and_does_not_drive_out_who_is_refused_most() {
        let (shed, worst) = (Shed::default(), charge(3, 5, 1));
        refuse(&shed, &worst);
        let place = |number: u128| charge(3 + number * GROUPS as u128, 5, 1);
        for number in 1..10_000 {
            for _ in 0..2 {
                assert!(is_refused(&shed, &worst, None, 30), "after {number}");
            }
            let other = place(number);
            refuse(&shed, &other);
            assert!(is_refused(&shed, &other, None, 30));
        }
        let remembered = (0..10_000).filter(|number| is_refused(&shed, &place(*number), None, 30));
        assert_eq!(remembered.count(), MOST);
    }
}
