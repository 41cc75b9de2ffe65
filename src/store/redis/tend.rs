//! What goes on beside the calls as long as a store is there: its servers are watched, and where they are may change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until, timeout};

use super::call::{Debt, Stray};
use super::cause::Cause;
use super::fleet::{Fleet, STRAYS};
use super::give_back::give_back_astray;
use super::sent::grouped;
use super::sentinel::Sentinels;
use super::settings::Servers;
use super::shard::Shard;
use super::survey::survey;
use super::watch::{jitter, watch};
use crate::clock;

/// The watches over the servers that there are now; they end with it.
#[derive(Default)]
struct Watches(Vec<(Arc<Shard>, AbortHandle)>);

/// Between two looks while nobody doubts.
const CALM: Duration = Duration::from_secs(60);
/// How often Sentinels are asked.
const ASK: Duration = Duration::from_secs(1);
/// The shortest time between two looks when somebody doubts, and the longest while looks change nothing.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How long refunds that went astray may take.
const ASTRAY: Duration = Duration::from_secs(1);

impl Watches {
    /// Watches these servers, and no others.
    fn over(&mut self, fleet: &Arc<Fleet>, shards: &[Arc<Shard>]) {
        self.0.retain(|(shard, watched)| {
            let stays = shards.iter().any(|known| Arc::ptr_eq(known, shard));
            if !stays {
                watched.abort();
            }
            stays
        });
        for shard in shards {
            if !self.0.iter().any(|(known, _)| Arc::ptr_eq(known, shard)) {
                let watched = tokio::spawn(watch(Arc::clone(fleet), Arc::clone(shard))).abort_handle();
                self.0.push((Arc::clone(shard), watched));
            }
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        for (_, watched) in &self.0 {
            watched.abort();
        }
    }
}

/// Finds the servers for the first time.
///
/// # Errors
/// Nobody says where they are.
pub(super) async fn find(fleet: &Fleet) -> Result<(), Cause> {
    match &fleet.settings.servers {
        Servers::Shards(_) => Ok(()),
        Servers::Cluster(_) => {
            let survey = survey(&fleet.informants(), &fleet.settings).await?;
            fleet.adopt(&survey);
            Ok(())
        }
        Servers::Sentinel { master, nodes } => {
            let mut sentinels = Sentinels::new(master, nodes);
            let primary = sentinels.primary(&fleet.settings).await?;
            fleet.moves_to(&primary);
            Ok(())
        }
    }
}

/// Tends the servers of a store for good.
pub(super) async fn tend(fleet: Arc<Fleet>) {
    let strays = fleet.strayed();
    let mut watches = Watches::default();
    watches.over(&fleet, &fleet.map().shards);
    match &fleet.settings.servers {
        Servers::Shards(_) => std::future::pending().await,
        Servers::Cluster(_) => {
            tokio::join!(survey_again(&fleet, &mut watches), give_back_all(&fleet, strays));
        }
        Servers::Sentinel { master, nodes } => ask_again(&fleet, Sentinels::new(master, nodes)).await,
    }
}

/// Keeps the map of a cluster, and the watches over those that are on it.
async fn survey_again(fleet: &Arc<Fleet>, watches: &mut Watches) {
    let (mut pause, longest) = PAUSES;
    loop {
        tokio::select! {
            () = fleet.doubted() => {}
            () = sleep(jitter(CALM)) => pause = PAUSES.0,
        }
        let surveyed = survey(&fleet.informants(), &fleet.settings).await;
        fleet.looked_up(surveyed.as_ref().map(|_| ()));
        let changed = surveyed.is_ok_and(|survey| fleet.adopt(&survey));
        watches.over(fleet, &fleet.map().shards);
        // In trouble the map is in doubt until it has changed or the trouble is over.
        if fleet.map().shards.iter().any(|shard| shard.is_in_trouble()) {
            fleet.doubt();
        }
        pause = match changed {
            true => PAUSES.0,
            false => pause.saturating_mul(2).min(longest),
        };
        sleep(jitter(pause)).await;
    }
}

/// Makes refunds whose keys are on their way to another server.
async fn give_back_all(fleet: &Fleet, strays: Option<mpsc::Receiver<Stray>>) {
    let Some(mut strays) = strays else { return };
    let mut waiting = Vec::new();
    while strays.recv_many(&mut waiting, STRAYS).await > 0 {
        for together in grouped(std::mem::take(&mut waiting), |stray| stray.to.clone()) {
            let Some(first) = together.first() else { continue };
            let shard = fleet.at(&first.to);
            let debts: Vec<Debt> = together.into_iter().flat_map(|stray| stray.debts).collect();
            if timeout(ASTRAY, give_back_astray(&shard, &debts)).await.is_err() {
                shard.meter.refunds_lost.inc_by(debts.len() as u64);
            }
        }
    }
}

/// Asks Sentinels again and again, and sooner when somebody doubts.
async fn ask_again(fleet: &Fleet, mut sentinels: Sentinels) {
    loop {
        let asked = clock::now();
        let primary = sentinels.primary(&fleet.settings).await;
        fleet.looked_up(primary.as_ref().map(|_| ()));
        if let Ok(primary) = primary {
            fleet.moves_to(&primary);
        }
        tokio::select! {
            () = fleet.doubted() => sleep_until((asked + jitter(PAUSES.0)).into()).await,
            () = sleep(jitter(ASK)) => {}
        }
    }
}
