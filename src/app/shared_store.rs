//! The store in Redis, where the settings ask for one: as long as they ask for the same one, it stays.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::config::Settings;
use crate::store::redis::{self, Alarm, Redis};
use crate::store::{Backend, Memory};
use crate::telemetry::Metrics;

/// What stores in Redis are made with beside their settings.
pub(super) struct Maker {
    metrics: Arc<Metrics>,
    alarms: mpsc::Sender<Alarm>,
}

/// The store in Redis that is in force, if one is. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct SharedStore(Option<Arc<Redis>>);

/// Alarms that wait to be told; beyond it the log alone has them.
const ALARMS: usize = 64;

impl Maker {
    /// A maker of stores that give alarms, and where those come out.
    pub(super) fn new(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Alarm>) {
        let (alarms, heard) = mpsc::channel(ALARMS);
        (Self { metrics, alarms }, heard)
    }

    /// The store that `settings` ask for: the running one if it is that.
    ///
    /// # Errors
    /// A server answers that it is none to start with.
    pub(super) async fn store(
        &self,
        settings: &Settings,
        running: &SharedStore,
    ) -> Result<SharedStore, redis::Unfit> {
        let Some(wanted) = &settings.store.redis else {
            return Ok(SharedStore(None));
        };
        if let Some(redis) = &running.0
            && redis.settings() == wanted
        {
            return Ok(running.clone());
        }
        let redis = Redis::new(wanted.clone(), &self.metrics, &self.alarms);
        redis.look().await?;
        Ok(SharedStore(Some(Arc::new(redis))))
    }
}

impl SharedStore {
    /// Whether this is the same store as `other`.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(redis), Some(other)) => Arc::ptr_eq(redis, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// What decides, with the memory of this process.
    pub(super) fn backend(&self, memory: &Arc<Memory>) -> Backend {
        match &self.0 {
            Some(redis) => Backend::Redis(Arc::clone(redis), Arc::clone(memory)),
            None => Backend::Memory(Arc::clone(memory)),
        }
    }

    /// Another store is in force.
    pub(super) fn retire(&self) {
        if let Some(redis) = &self.0 {
            redis.retire();
        }
    }

    /// Watches the servers, on the runtime that this is called on.
    pub(super) fn watch(&self) {
        if let Some(redis) = &self.0 {
            redis.watch();
        }
    }

    /// Sends the refunds that no worker sends any more.
    pub(super) async fn finish(&self) {
        if let Some(redis) = &self.0 {
            redis.finish().await;
        }
    }

    /// How the servers are; `None` without any.
    pub(super) fn health(&self) -> Option<redis::Health> {
        self.0.as_ref().map(|redis| redis.health())
    }
}
