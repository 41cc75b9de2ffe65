//! The store: a request's charges go to the servers that their keys are at home on, and what those say is one answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::alarm::Alarm;
use super::call::{Debt, Owed};
use super::cause::Cause;
use super::fleet::Fleet;
use super::give_back::give_back;
use super::guard::Failing;
use super::homes::shards_hash;
use super::question::Question;
use super::scripts::Scripts;
use super::seats::Seats;
use super::settings::Settings;
use super::shard::ShardHealth;
use super::tend::{find, tend};
use super::watch::look;
use crate::clock;
use crate::rules::{Charge, RuleTable};
use crate::store::{By, Partial, Refund, Reserved, Store};
use crate::telemetry::Metrics;

/// The store in Redis, shared by all workers.
pub struct Redis {
    fleet: Arc<Fleet>,
    seats: Seats,
    tended: Mutex<Option<AbortHandle>>,
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
    /// Why it is not known where the servers are, if so.
    pub lookup: Option<String>,
    /// Each server.
    pub shards: Vec<ShardHealth>,
}

/// How long a first look at a server may take.
const LOOK: Duration = Duration::from_secs(1);
/// How long refunds may be on their way when nothing else goes on any more.
const LAST_REFUNDS: Duration = Duration::from_secs(1);
impl Redis {
    /// The store on these servers, none of which is asked yet. Alarms go to `alarms`.
    pub fn new(settings: Settings, metrics: &Arc<Metrics>, alarms: &mpsc::Sender<Alarm>) -> Self {
        Self::running(Scripts::new(), settings, metrics, alarms)
    }

    /// The store whose servers run these scripts.
    pub(super) fn running(
        scripts: Scripts,
        settings: Settings,
        metrics: &Arc<Metrics>,
        alarms: &mpsc::Sender<Alarm>,
    ) -> Self {
        let fleet = Arc::new(Fleet::new(settings, scripts, metrics, alarms));
        Self {
            seats: Seats::new(&fleet),
            fleet,
            tended: Mutex::default(),
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.fleet.settings
    }

    /// Looks at the servers for the first time. One that does not answer is in trouble from now on.
    ///
    /// # Errors
    /// One answers that it is none to start with.
    pub async fn look(&self) -> Result<(), Unfit> {
        let found = timeout(LOOK, find(&self.fleet)).await;
        let found = found.unwrap_or(Err(Cause::Silent(LOOK)));
        if let Err(Cause::Unfit(why)) = found {
            let shard = self.fleet.name();
            return Err(Unfit { shard, why });
        }
        self.fleet.looked_up(found.as_ref().copied());
        let mut looks = JoinSet::new();
        for shard in self.fleet.map().shards.iter().cloned() {
            let found = found.clone();
            looks.spawn(async move {
                let looked = match found {
                    Ok(()) => timeout(LOOK, look(&shard)).await,
                    Err(cause) => Ok(Err(cause)),
                };
                (shard, looked.unwrap_or(Err(Cause::Silent(LOOK))))
            });
        }
        while let Some(Ok((shard, looked))) = looks.join_next().await {
            match looked {
                Ok(failing) => {
                    let unfit = |failing: &Failing| failing.forbids_start(self.fleet.settings.eviction);
                    if let Some(failing) = failing.into_iter().find(unfit) {
                        return Err(Unfit {
                            shard: shard.name.clone(),
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
        let tended = tokio::spawn(tend(Arc::clone(&self.fleet))).abort_handle();
        *self.tended() = Some(tended);
    }

    /// Another store is in force: what is still under way is finished, and nobody hears of this one any more.
    pub fn retire(&self) {
        self.fleet.fall_silent();
        if let Some(tended) = self.tended().take() {
            tended.abort();
        }
    }

    /// [Reserves](Store::reserve) by this deadline.
    ///
    /// # Errors
    /// Not all was decided.
    pub async fn reserve_by(
        &self,
        deadline: Instant,
        table: &RuleTable,
        charges: &[Charge],
    ) -> Result<Reserved, Box<Partial>> {
        Question::new(&self.fleet, &self.seats, table, charges, deadline)
            .decided()
            .await
    }

    /// How the servers are.
    pub fn health(&self) -> Health {
        Health {
            lookup: self.fleet.lookup(),
            shards_hash: shards_hash(self.fleet.settings.servers.listed()),
            shards: self
                .fleet
                .map()
                .shards
                .iter()
                .map(|shard| shard.health())
                .collect(),
        }
    }

    /// Sends the refunds that no worker sends any more. Called when the workers have ended.
    pub async fn finish(&self) {
        let links = self.fleet.links().clone();
        let send = async {
            for link in links {
                let debts: Vec<Debt> = link.take_debts().into();
                if !debts.is_empty() && !link.shard.is_in_trouble() {
                    give_back(&link.shard, debts).await;
                }
            }
        };
        if timeout(LAST_REFUNDS, send).await.is_err() {
            tracing::warn!("the last refunds did not reach the store");
        }
    }

    fn tended(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.tended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for link in self.fleet.links().iter() {
            link.close();
        }
        if let Some(tended) = self.tended().take() {
            tended.abort();
        }
    }
}

impl Store for Redis {
    async fn reserve(&self, table: &RuleTable, charges: &[Charge]) -> Result<Reserved, Box<Partial>> {
        let deadline = clock::now() + self.fleet.settings.deadline;
        self.reserve_by(deadline, table, charges).await
    }

    fn refund(&self, table: &RuleTable, refunds: &[Refund]) {
        for refund in refunds {
            let By::Server(life) = refund.by else { continue };
            let owed = Owed {
                name: self.fleet.names.name(table.label(refund.rule), refund.key),
                policy: refund.policy,
                receipt: refund.receipt.clone(),
            };
            let map = self.fleet.map();
            let Some((shard, asking)) = map.charged(owed.name.partition(), life) else {
                continue;
            };
            let debt = Debt { owed, life, asking };
            self.seats
                .with_link(shard, |link| link.owe(std::iter::once(debt)));
        }
    }
}
