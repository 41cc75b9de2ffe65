//! The store: a request's charges go to the servers that their keys are at home on, and what those say is one answer.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use thread_local::ThreadLocal;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::alarm::Alarm;
use super::call::{Ask, Asked, Owed, settle_command};
use super::cause::Cause;
use super::guard::Failing;
use super::homes::{Homes, shards_hash};
use super::link::{Debt, Decided, Link, Pending};
use super::names::Names;
use super::scripts::Scripts;
use super::serve::serve;
use super::settings::Settings;
use super::shard::{Shard, ShardHealth};
use super::watch::{look, watch};
use crate::clock::{self, Clock, Micros};
use crate::limit::{Receipt, Verdict};
use crate::rules::{Charge, RuleTable};
use crate::store::{By, Refund, Reserved, Ruling, Store, Trouble};
use crate::telemetry::Metrics;

/// The store in Redis, shared by all workers.
pub struct Redis {
    settings: Arc<Settings>,
    names: Names,
    homes: Homes,
    shards: Vec<Arc<Shard>>,
    /// The links of each worker, in the order of the shards.
    seats: ThreadLocal<RefCell<Vec<Seat>>>,
    /// The links of all workers.
    links: Mutex<Vec<Arc<Link>>>,
    watches: Mutex<Vec<AbortHandle>>,
    here: Clock,
}

/// A worker's link to a shard, and the task that serves it.
struct Seat {
    link: Arc<Link>,
    served: AbortHandle,
}

/// A server that a gateway does not start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store {shard} does not serve: {why}")]
pub struct Unfit {
    shard: String,
    why: String,
}

/// How the servers of a store are.
#[derive(Clone, Debug)]
pub struct Health {
    /// What tells one list of servers from another.
    pub shards_hash: String,
    /// Each server.
    pub shards: Vec<ShardHealth>,
}

/// How long a first look at a server may take.
const LOOK: Duration = Duration::from_secs(1);
/// How long refunds may be on their way when nothing else goes on any more.
const LAST_REFUNDS: Duration = Duration::from_secs(1);
/// Most refunds of a call.
const REFUNDS: usize = 128;

impl Redis {
    /// The store on these servers, none of which is asked yet. Alarms go to `alarms`.
    pub fn new(settings: Settings, metrics: &Metrics, alarms: &mpsc::Sender<Alarm>) -> Self {
        let (settings, scripts) = (Arc::new(settings), Arc::new(Scripts::new()));
        let shard = |address| {
            let meter = metrics.shard(&format!("{address}"));
            Arc::new(Shard::new(address, &settings, &scripts, meter, alarms.clone()))
        };
        Self {
            names: Names::new(&settings.prefix, settings.partitions),
            homes: Homes::new(settings.partitions, &settings.shards),
            shards: settings.shards.iter().map(shard).collect(),
            seats: ThreadLocal::new(),
            links: Mutex::default(),
            watches: Mutex::default(),
            here: Clock::monotonic(),
            settings,
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Looks at the servers for the first time. One that does not answer is in trouble from now on.
    ///
    /// # Errors
    /// One answers that it is none to start with.
    pub async fn look(&self) -> Result<(), Unfit> {
        for shard in &self.shards {
            let looked = timeout(LOOK, look(shard)).await;
            match looked.unwrap_or(Err(Cause::Silent(LOOK))) {
                Ok(failing) => {
                    let unfit = |failing: &Failing| failing.forbids_start(self.settings.eviction);
                    if let Some(failing) = failing.into_iter().find(unfit) {
                        return Err(Unfit {
                            shard: shard.address.to_string(),
                            why: failing.why,
                        });
                    }
                    shard.warn();
                }
                Err(cause) => shard.trip(&cause),
            }
        }
        Ok(())
    }

    /// Watches the servers, on the runtime that this is called on, as long as the store is there.
    pub fn watch(&self) {
        let watches = self
            .shards
            .iter()
            .map(|shard| tokio::spawn(watch(Arc::clone(shard))));
        let mut watching = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watching.extend(watches.map(|watch| watch.abort_handle()));
    }

    /// How the servers are.
    pub fn health(&self) -> Health {
        Health {
            shards_hash: shards_hash(&self.settings.shards),
            shards: self.shards.iter().map(|shard| shard.health()).collect(),
        }
    }

    /// Sends the refunds that no worker sends any more. Called when the workers have ended.
    pub async fn finish(&self) {
        let links = self.links().clone();
        let send = async {
            for link in links {
                let debts: Vec<Debt> = link.take_debts().into();
                if !debts.is_empty() && !link.shard.is_in_trouble() {
                    give_back(&link.shard, &debts).await;
                }
            }
        };
        if timeout(LAST_REFUNDS, send).await.is_err() {
            tracing::warn!("the last refunds did not reach the store");
        }
    }

    /// Puts a question to a shard over this worker's link.
    fn ask(&self, shard: usize, ask: Ask) -> Option<Pending> {
        let deadline = clock::now() + self.settings.deadline;
        self.with_link(shard, |link| link.ask(ask, deadline))
    }

    fn with_link<T>(&self, shard: usize, with: impl FnOnce(&Link) -> T) -> Option<T> {
        let seats = self.seats.get_or(|| RefCell::new(self.open()));
        let mut seats = seats.borrow_mut();
        let seat = seats.get_mut(shard)?;
        if seat.served.is_finished() {
            *seat = Seat::new(Arc::clone(&seat.link));
        }
        Some(with(&seat.link))
    }

    fn open(&self) -> Vec<Seat> {
        let link = |shard: &Arc<Shard>| Arc::new(Link::new(Arc::clone(shard)));
        let links: Vec<Arc<Link>> = self.shards.iter().map(link).collect();
        self.links().extend(links.iter().cloned());
        links.into_iter().map(Seat::new).collect()
    }

    fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(&self, charge: &Charge) -> usize {
        self.homes.of(self.names.partition(charge.key))
    }

    fn asked(&self, table: &RuleTable, charge: &Charge) -> Asked {
        Asked {
            key: charge.key,
            name: self.names.name(table.label(charge.rule), charge.key),
            policy: charge.policy,
            cost: charge.cost,
            dry_run: charge.dry_run,
        }
    }
}

impl Seat {
    fn new(link: Arc<Link>) -> Self {
        let served = tokio::spawn(serve(Arc::clone(&link))).abort_handle();
        Self { link, served }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for link in self.links().iter() {
            link.close();
        }
        for watch in self
            .watches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            watch.abort();
        }
    }
}

impl Store for Redis {
    async fn reserve(&self, table: &RuleTable, charges: &[Charge]) -> Result<Reserved, Trouble> {
        let mut homes: SmallVec<[usize; 2]> = charges.iter().map(|charge| self.home(charge)).collect();
        let places = homes.clone();
        homes.sort_unstable();
        homes.dedup();
        let mut pending: SmallVec<[Option<Pending>; 1]> = SmallVec::new();
        for home in &homes {
            let there = charges.iter().zip(&places).filter(|(_, place)| *place == home);
            let ask = there.map(|(charge, _)| self.asked(table, charge)).collect();
            pending.push(self.ask(*home, ask));
        }
        let mut answers: SmallVec<[Option<Decided>; 1]> = SmallVec::new();
        for pending in pending {
            answers.push(match pending {
                Some(pending) => pending.answer().await,
                None => None,
            });
        }
        let is_whole = answers.iter().all(Option::is_some);
        let admitted = answers.iter().flatten().all(Decided::admitted);
        let mut parts: SmallVec<[Option<Part>; 1]> = answers
            .into_iter()
            .map(|decided| decided.map(|decided| Part::new(decided, admitted)))
            .collect();
        let rulings = charges.iter().zip(&places).map(|(charge, place)| {
            let part = homes
                .binary_search(place)
                .ok()
                .and_then(|part| parts.get_mut(part));
            part.and_then(|part| part.as_mut()?.ruling(charge))
        });
        let rulings: SmallVec<[Option<Ruling>; 2]> = rulings.collect();
        match is_whole {
            true => Ok(Reserved {
                now: self.here.now(),
                admitted,
                rulings: rulings.into_iter().flatten().collect(),
            }),
            false => Err(Trouble { admitted, rulings }),
        }
    }

    fn refund(&self, table: &RuleTable, refunds: &[Refund]) {
        for refund in refunds {
            let By::Server(life) = refund.by else { continue };
            let owed = Owed {
                name: self.names.name(table.label(refund.rule), refund.key),
                policy: refund.policy,
                receipt: refund.receipt.clone(),
            };
            let home = self.homes.of(self.names.partition(refund.key));
            self.with_link(home, |link| link.owe(std::iter::once(Debt { owed, life })));
        }
    }
}

/// What one shard said of a request's charges there.
struct Part {
    verdicts: std::iter::Fuse<smallvec::IntoIter<[Verdict<Receipt>; 2]>>,
    life: u32,
    now: Micros,
}

impl Part {
    /// Takes what a shard decided. Where another one refused, it is given back here.
    fn new(decided: Decided, admitted: bool) -> Self {
        let (life, now) = (decided.life, decided.now);
        let verdicts = if admitted || !decided.admitted() {
            decided.take().map(|counted| counted.verdicts)
        } else {
            let counted = decided.counted.as_ref();
            counted.map(|counted| counted.verdicts.iter().map(as_given_back).collect())
        };
        Self {
            verdicts: verdicts.unwrap_or_default().into_iter().fuse(),
            life,
            now,
        }
    }

    /// The ruling on the next charge.
    fn ruling(&mut self, charge: &Charge) -> Option<Ruling> {
        Some(Ruling {
            key: charge.key,
            by: By::Server(self.life),
            now: self.now,
            verdict: self.verdicts.next()?,
        })
    }
}

/// A verdict on a charge that is given back at once.
fn as_given_back(verdict: &Verdict<Receipt>) -> Verdict<Receipt> {
    Verdict {
        standing: verdict.refunded,
        receipt: None,
        ..verdict.clone()
    }
}

/// Sends refunds over a connection of their own.
async fn give_back(shard: &Shard, debts: &[Debt]) {
    let Ok((mut session, life)) = shard.connect().await else {
        shard.meter.refunds_lost.inc_by(debts.len() as u64);
        return;
    };
    let owed: Vec<&Owed> = debts
        .iter()
        .filter(|debt| debt.life == life)
        .map(|debt| &debt.owed)
        .collect();
    for owed in owed.chunks(REFUNDS) {
        settle_command(session.outbox(), &shard.scripts.settle, owed);
        if !matches!(session.reply().await, Ok(Ok(_))) {
            shard.meter.refunds_lost.inc_by(owed.len() as u64);
        }
    }
}
