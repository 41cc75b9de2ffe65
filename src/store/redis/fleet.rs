//! The servers of a store, and which of them each partition is at home on.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::{Notify, mpsc};

use super::alarm::Alarm;
use super::call::Stray;
use super::cause::{Cause, Redirect};
use super::homes::Homes;
use super::link::Link;
use super::names::{Names, Partition};
use super::refused::Refused;
use super::scripts::Scripts;
use super::settings::{Address, Servers, Settings};
use super::shard::Shard;
use super::survey::Survey;
use crate::clock::Clock;
use crate::telemetry::Metrics;

/// The servers of a store, shared by all workers.
pub(super) struct Fleet {
    pub(super) settings: Arc<Settings>,
    pub(super) names: Names,
    scripts: Arc<Scripts>,
    metrics: Arc<Metrics>,
    alarms: mpsc::Sender<Alarm>,
    /// How many lives of servers were seen.
    lives: Arc<AtomicU32>,
    map: ArcSwap<Map>,
    /// Who was refused of late.
    pub(super) refused: Refused,
    /// The clock here.
    pub(super) here: Clock,
    /// The links of all workers.
    links: Mutex<Vec<Arc<Link>>>,
    strays: mpsc::Sender<Stray>,
    /// Until somebody tends the fleet.
    strayed: Mutex<Option<mpsc::Receiver<Stray>>>,
    /// That the map may be old.
    doubts: Arc<Notify>,
    /// Servers that had none of the keys when the map was made, and to which keys are on their way.
    named: Mutex<Vec<Address>>,
    /// The server that another one named last: it knows best what it has.
    latest: Mutex<Option<Address>>,
    /// Why it is not known where the servers are, if so.
    lookup: Mutex<Option<String>>,
    /// Servers of the cluster that may know where the keys are when those that have them do not answer.
    replicas: Mutex<Vec<Address>>,
}

/// Most servers that are named between two surveys.
const NAMED: usize = 64;
/// Strays that wait; those beyond are lost.
pub(super) const STRAYS: usize = 1_024;

/// Where the keys are.
#[derive(Clone)]
pub(super) struct Map {
    /// The servers.
    pub(super) shards: Vec<Arc<Shard>>,
    /// The place of each partition's server among them.
    homes: Homes,
}

impl Fleet {
    /// The servers that the settings name.
    pub(super) fn new(
        settings: Settings,
        scripts: Scripts,
        metrics: &Arc<Metrics>,
        alarms: &mpsc::Sender<Alarm>,
    ) -> Self {
        let names = Names::new(&settings.prefix, settings.partitions);
        let (strays, strayed) = mpsc::channel(STRAYS);
        let fleet = Self {
            settings: Arc::new(settings),
            names,
            scripts: Arc::new(scripts),
            metrics: Arc::clone(metrics),
            alarms: alarms.clone(),
            lives: Arc::default(),
            map: ArcSwap::from_pointee(Map {
                shards: Vec::new(),
                homes: Homes::new(0, &[]),
            }),
            refused: Refused::default(),
            here: Clock::monotonic(),
            links: Mutex::default(),
            strays,
            strayed: Mutex::new(Some(strayed)),
            doubts: Arc::default(),
            named: Mutex::default(),
            latest: Mutex::default(),
            lookup: Mutex::default(),
            replicas: Mutex::default(),
        };
        let (shards, homes) = match &fleet.settings.servers {
            Servers::Shards(listed) | Servers::Cluster(listed) => (
                listed
                    .iter()
                    .map(|address| fleet.new_shard(&address.to_string(), Some(address.clone())))
                    .collect(),
                Homes::new(fleet.settings.partitions, listed),
            ),
            Servers::Sentinel { master, .. } => (
                vec![fleet.new_shard(master, None)],
                Homes::new(fleet.settings.partitions, &[]),
            ),
        };
        fleet.map.store(Arc::new(Map { shards, homes }));
        fleet
    }

    /// A server of which nothing is known yet.
    fn new_shard(&self, name: &str, address: Option<Address>) -> Arc<Shard> {
        let meter = self.metrics.shard(name);
        let (settings, scripts) = (&self.settings, &self.scripts);
        Arc::new(Shard::new(
            name,
            address,
            (settings, scripts),
            meter,
            &self.lives,
            (&self.alarms, &self.strays, &self.doubts),
        ))
    }

    /// What all of it is called.
    pub(super) fn name(&self) -> String {
        match &self.settings.servers {
            Servers::Sentinel { master, .. } => master.clone(),
            Servers::Shards(listed) | Servers::Cluster(listed) => {
                listed.first().map(Address::to_string).unwrap_or_default()
            }
        }
    }

    /// Where the keys are now.
    pub(super) fn map(&self) -> Guard<Arc<Map>> {
        self.map.load()
    }

    /// The server that a call is to go to instead, where the map says it later calls are to go as well.
    pub(super) fn follow(&self, partition: Partition, to: &Redirect) -> Arc<Shard> {
        let shard = self.at(&to.address);
        if to.once {
            let mut named = lock(&self.named);
            if named.len() < NAMED && !named.contains(&to.address) {
                named.push(to.address.clone());
            }
        } else {
            self.map.rcu(|map| {
                let mut map = Map::clone(map);
                let place = map.place(&shard);
                map.homes.set(partition, place);
                map
            });
            *lock(&self.latest) = Some(to.address.clone());
            self.doubt();
        }
        shard
    }

    /// The server that listens there.
    pub(super) fn at(&self, address: &Address) -> Arc<Shard> {
        let find = |map: &Map| map.shards.iter().find(|shard| shard.is_at(address)).cloned();
        if let Some(shard) = find(&self.map()) {
            return shard;
        }
        let unknown = self.new_shard(&address.to_string(), Some(address.clone()));
        self.map.rcu(|map| {
            let mut map = Map::clone(map);
            if find(&map).is_none() {
                map.shards.push(Arc::clone(&unknown));
            }
            map
        });
        self.doubt();
        find(&self.map()).unwrap_or(unknown)
    }

    /// The map may be old: it is looked at soon.
    pub(super) fn doubt(&self) {
        self.doubts.notify_one();
    }

    /// The links of all workers.
    pub(super) fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        lock(&self.links)
    }

    /// The refunds that are to be made elsewhere, for whoever tends the fleet.
    pub(super) fn strayed(&self) -> Option<mpsc::Receiver<Stray>> {
        lock(&self.strayed).take()
    }

    /// Waits until somebody doubts.
    pub(super) async fn doubted(&self) {
        self.doubts.notified().await;
    }

    /// Whom to ask where the keys are, the likeliest to answer first.
    pub(super) fn informants(&self) -> Vec<Address> {
        let mut shards = self.map().shards.clone();
        shards.sort_by_key(|shard| shard.is_in_trouble());
        let known = shards.iter().filter_map(|shard| shard.address());
        let mut informants: Vec<Address> = Vec::new();
        let others = lock(&self.replicas).clone();
        let listed = self.settings.servers.listed().iter().cloned();
        let latest = lock(&self.latest).take();
        let known = known.map(|address| Address::clone(&address));
        for address in latest.into_iter().chain(known).chain(others).chain(listed) {
            if !informants.contains(&address) {
                informants.push(address);
            }
        }
        informants
    }

    /// Takes over what a survey of the cluster says. Servers that have no keys any more are left. Says whether anything is
    /// new.
    pub(super) fn adopt(&self, survey: &Survey) -> bool {
        lock(&self.replicas).clone_from(&survey.replicas);
        let named = std::mem::take(&mut *lock(&self.named));
        let before = self.map.load_full();
        let is_new = |map: &Map| {
            map.homes != before.homes
                || !map
                    .shards
                    .iter()
                    .map(Arc::as_ptr)
                    .eq(before.shards.iter().map(Arc::as_ptr))
        };
        let known = |address: &Address| before.shards.iter().find(|shard| shard.is_at(address));
        let mut map = Map {
            shards: Vec::new(),
            homes: before.homes.clone(),
        };
        for primary in survey.primaries() {
            let shard = known(primary).cloned();
            map.shards
                .push(shard.unwrap_or_else(|| self.new_shard(&primary.to_string(), Some(primary.clone()))));
        }
        for named in named.iter().filter_map(known) {
            map.place(named);
        }
        for partition in (0..self.settings.partitions).map(Partition) {
            let home = match survey.home(partition) {
                Some(home) => map.shards.iter().find(|shard| shard.is_at(home)).cloned(),
                // Nobody has its slot: it stays where it was.
                None => before.home(partition).cloned(),
            };
            if let Some(home) = home {
                let place = map.place(&home);
                map.homes.set(partition, place);
            }
        }
        if !is_new(&map) {
            return false;
        }
        let map = Arc::new(map);
        let there = self.map.compare_and_swap(&before, Arc::clone(&map));
        if Arc::ptr_eq(&there, &before) {
            self.retire(&before, &map);
        } else {
            // An answer to a call has changed it meanwhile.
            self.doubt();
        }
        true
    }

    /// Leaves the servers that are not on the map any more.
    fn retire(&self, before: &Map, map: &Map) {
        let stays = |shard: &Arc<Shard>| map.shards.iter().any(|known| Arc::ptr_eq(known, shard));
        self.links().retain(|link| {
            let stays = stays(&link.shard);
            if !stays {
                link.close();
            }
            stays
        });
        for shard in before.shards.iter().filter(|shard| !stays(shard)) {
            shard.leave();
            self.metrics.forget_shard(&shard.name);
        }
    }

    /// Another store is in force: nobody is to hear of this one any more.
    pub(super) fn fall_silent(&self) {
        for shard in &self.map().shards {
            shard.fall_silent();
        }
    }

    /// Takes note of whether it is known where the servers are, and why not.
    pub(super) fn looked_up(&self, looked_up: Result<(), &Cause>) {
        let mut lookup = lock(&self.lookup);
        let (before, now) = (lookup.take(), looked_up.err().map(Cause::to_string));
        match (&before, &now) {
            (_, Some(why)) if before != now => {
                tracing::warn!(
                    store = self.name(),
                    reason = why,
                    "cannot look up where the servers are"
                );
            }
            (Some(_), None) => tracing::info!(store = self.name(), "servers are looked up again"),
            _ => {}
        }
        *lookup = now;
    }

    /// Why it is not known where the servers are, if so.
    pub(super) fn lookup(&self) -> Option<String> {
        lock(&self.lookup).clone()
    }

    /// The one server listens here from now on.
    pub(super) fn moves_to(&self, primary: &Address) {
        for shard in self.map().shards.iter().filter(|shard| !shard.is_at(primary)) {
            tracing::info!(shard = shard.name, address = %primary, "the primary is here");
            shard.moves_to(primary.clone());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Map {
    /// The place of a server, which it has from now on.
    fn place(&mut self, shard: &Arc<Shard>) -> usize {
        let place = self.shards.iter().position(|known| Arc::ptr_eq(known, shard));
        place.unwrap_or_else(|| {
            self.shards.push(Arc::clone(shard));
            self.shards.len().saturating_sub(1)
        })
    }

    /// One of the partitions that are at home on a server, if any is.
    pub(super) fn some_partition(&self, shard: &Arc<Shard>) -> Partition {
        let place = self.shards.iter().position(|known| Arc::ptr_eq(known, shard));
        place
            .and_then(|place| self.homes.first_on(place))
            .unwrap_or_default()
    }

    /// The server that charged keys of a partition in this life, and whether they may have been on their way there. Where
    /// it is not known any more, the refund is lost at the one that they are at home on.
    pub(super) fn charged(&self, partition: Partition, life: u32) -> Option<(&Arc<Shard>, bool)> {
        let home = self.home(partition)?;
        if home.life() == life {
            return Some((home, false));
        }
        let other = self.shards.iter().find(|shard| shard.life() == life);
        Some(other.map_or((home, false), |shard| (shard, true)))
    }

    /// The server that a partition is at home on.
    pub(super) fn home(&self, partition: Partition) -> Option<&Arc<Shard>> {
        self.shards.get(self.homes.of(partition))
    }
}
