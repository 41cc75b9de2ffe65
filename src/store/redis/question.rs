//! One request's charges on all servers that have its keys: reserved side by side, and given back where another refuses.

use std::sync::Arc;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use super::call::{Ask, Asked};
use super::cause::Cause;
use super::fleet::Fleet;
use super::link::{Answer, Decided, Pending};
use super::seats::Seats;
use super::shard::Shard;
use crate::limit::{Receipt, Verdict};
use crate::rules::{Charge, RuleTable};
use crate::store::{By, Partial, Reserved, Ruling};

/// The charges of one request, to be decided together.
pub(super) struct Question<'a> {
    fleet: &'a Fleet,
    seats: &'a Seats,
    table: &'a RuleTable,
    charges: &'a [Charge],
    deadline: Instant,
}

/// Those of the charges that one call decides.
struct Part {
    /// Their places among all.
    places: Places,
    home: Arc<Shard>,
    ask: Ask,
}

/// What became of a part: `None` if there is no decision.
struct Heard {
    places: Places,
    decided: Option<Box<Decided>>,
}

type Places = SmallVec<[usize; 2]>;

/// So often may servers name one another: in a cluster that changes, once or twice.
const HOPS: usize = 5;

impl<'a> Question<'a> {
    /// To be decided by this deadline.
    pub(super) fn new(
        fleet: &'a Fleet,
        seats: &'a Seats,
        table: &'a RuleTable,
        charges: &'a [Charge],
        deadline: Instant,
    ) -> Self {
        Self {
            fleet,
            seats,
            table,
            charges,
            deadline,
        }
    }

    /// What all parts say together. The one with the limiter that refused the caller last is asked first and alone: as
    /// long as it refuses, nothing is charged elsewhere only to be given back.
    ///
    /// # Errors
    /// Not all was decided.
    pub(super) async fn decided(self) -> Result<Reserved, Box<Partial>> {
        let mut parts = self.parts();
        let mut heard = SmallVec::new();
        if let Some(place) = self.refused_last(&parts) {
            let first = smallvec![parts.swap_remove(place)];
            heard = self.ask(first).await;
            if heard.iter().any(Heard::refuses) {
                return self.answer(heard);
            }
            for place in heard.iter().flat_map(|heard| &heard.places) {
                if let Some(charge) = self.charges.get(*place) {
                    self.fleet.refused.forget(charge.key);
                }
            }
        }
        heard.extend(self.ask(parts).await);
        self.answer(heard)
    }

    /// The charges by the call that decides them: one for each server, in a cluster one for each partition.
    fn parts(&self) -> SmallVec<[Part; 1]> {
        let fleet = self.fleet;
        let (map, is_cluster) = (fleet.map(), fleet.settings.is_cluster());
        let mut parts: SmallVec<[Part; 1]> = SmallVec::new();
        for (place, charge) in self.charges.iter().enumerate() {
            let asked = Asked {
                key: charge.key,
                name: fleet.names.name(self.table.label(charge.rule), charge.key),
                policy: charge.policy,
                cost: charge.cost,
                dry_run: charge.dry_run,
            };
            let partition = asked.name.partition();
            let Some(home) = map.home(partition) else { continue };
            let same = |part: &&mut Part| match is_cluster {
                true => part
                    .ask
                    .first()
                    .is_some_and(|asked| asked.name.partition() == partition),
                false => Arc::ptr_eq(&part.home, home),
            };
            match parts.iter_mut().find(same) {
                Some(part) => {
                    part.places.push(place);
                    part.ask.push(asked);
                }
                None => parts.push(Part {
                    places: smallvec![place],
                    home: Arc::clone(home),
                    ask: smallvec![asked],
                }),
            }
        }
        parts
    }

    /// The place of the part whose limiter refused the caller last, if it may still refuse.
    fn refused_last(&self, parts: &[Part]) -> Option<usize> {
        if parts.len() < 2 {
            return None;
        }
        let now = self.fleet.here.now();
        let until = |part: &Part| {
            let keys = part.ask.iter().map(|asked| asked.key);
            keys.filter_map(|key| self.fleet.refused.until(key, now)).max()
        };
        let parts = parts.iter().enumerate();
        let refused = parts.filter_map(|(place, part)| Some((until(part)?, place)));
        refused.max().map(|(_, place)| place)
    }

    /// Asks all of these, side by side.
    async fn ask(&self, parts: SmallVec<[Part; 1]>) -> SmallVec<[Heard; 1]> {
        let put = |part: Part| (part.places, self.put(&part.home, part.ask, false));
        let pending: SmallVec<[_; 1]> = parts.into_iter().map(put).collect();
        let mut heard = SmallVec::new();
        for (places, pending) in pending {
            self.hear(places, pending, &mut heard).await;
        }
        heard
    }

    /// Puts a part to a server over this worker's link. If the server has just left the map, its successor is asked.
    fn put(&self, shard: &Arc<Shard>, ask: Ask, asking: bool) -> Option<Pending> {
        let put = |shard, ask| {
            self.seats
                .with_link(shard, |link| link.ask(ask, self.deadline, asking))
        };
        let ask = match shard.has_left() {
            false => match put(shard, ask)? {
                Ok(pending) => return Some(pending),
                Err(ask) => *ask,
            },
            true => ask,
        };
        let partition = ask.first()?.name.partition();
        put(self.fleet.map().home(partition)?, ask)?.ok()
    }

    /// Waits for what becomes of a part, wherever its keys are.
    async fn hear(&self, places: Places, mut pending: Option<Pending>, heard: &mut SmallVec<[Heard; 1]>) {
        let mut hops = 0..HOPS;
        while let Some(asked) = pending.take() {
            let shard = Arc::clone(asked.shard());
            match asked.answer().await {
                Answer::Decided(decided) => {
                    let decided = Some(decided);
                    heard.push(Heard { places, decided });
                    return;
                }
                Answer::Undecided => {}
                Answer::Elsewhere { .. } if hops.next().is_none() => shard.failed(&Cause::Circle),
                Answer::Elsewhere { ask, to } => {
                    let partition = ask.first().map(|asked| asked.name.partition());
                    let shard = partition.map(|partition| self.fleet.follow(partition, &to));
                    pending = shard.and_then(|shard| self.put(&shard, ask, to.once));
                }
                Answer::Apart(ask) => {
                    let one = |(asked, place): (Asked, &usize)| Part {
                        places: smallvec![*place],
                        home: Arc::clone(&shard),
                        ask: smallvec![asked],
                    };
                    let apart = ask.into_iter().zip(&places).map(one).collect();
                    heard.extend(Box::pin(self.ask(apart)).await);
                    return;
                }
            }
        }
        let decided = None;
        heard.push(Heard { places, decided });
    }

    /// One answer of all that was heard. Where a part refused, what the others charged is given back.
    fn answer(&self, heard: SmallVec<[Heard; 1]>) -> Result<Reserved, Box<Partial>> {
        let now = self.fleet.here.now();
        let admitted = !heard.iter().any(Heard::refuses);
        let is_split = self.fleet.map().shards.len() > 1;
        let mut rulings: SmallVec<[Option<Ruling>; 2]> = self.charges.iter().map(|_| None).collect();
        for Heard { places, decided } in heard {
            let Some(decided) = decided else { continue };
            let (by, when) = (By::Server(decided.life), decided.now);
            for (place, verdict) in places.iter().zip(verdicts(*decided, admitted)) {
                let (Some(charge), Some(slot)) = (self.charges.get(*place), rulings.get_mut(*place)) else {
                    continue;
                };
                let retry = verdict.retry.filter(|_| is_split && !charge.dry_run);
                if let Some(retry) = retry {
                    self.fleet.refused.note(charge.key, now.plus(retry.since(when)));
                }
                *slot = Some(Ruling {
                    key: charge.key,
                    by,
                    now: when,
                    verdict,
                });
            }
        }
        match rulings.iter().all(Option::is_some) {
            true => Ok(Reserved {
                now,
                admitted,
                rulings: rulings.into_iter().flatten().collect(),
            }),
            false => Err(Box::new(Partial { admitted, rulings })),
        }
    }
}

impl Heard {
    fn refuses(&self) -> bool {
        self.decided.as_ref().is_some_and(|decided| !decided.admitted())
    }
}

/// What one part says of its charges. If it has room and another one has not, it is given back.
fn verdicts(decided: Decided, admitted: bool) -> SmallVec<[Verdict<Receipt>; 2]> {
    let verdicts = if admitted || !decided.admitted() {
        decided.take().map(|counted| counted.verdicts)
    } else {
        let counted = decided.counted.as_ref();
        counted.map(|counted| counted.verdicts.iter().map(as_given_back).collect())
    };
    verdicts.unwrap_or_default()
}

/// A verdict on a charge that is given back at once.
fn as_given_back(verdict: &Verdict<Receipt>) -> Verdict<Receipt> {
    Verdict {
        standing: verdict.refunded,
        receipt: None,
        ..verdict.clone()
    }
}
