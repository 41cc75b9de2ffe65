//! What is in force: the settings, and all that is made of them.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::shared_store::{Maker, SharedStore};
use super::{AppError, snapshot};
use crate::config::Settings;
use crate::decide::{self, Limiter};
use crate::identity::Secret;
use crate::proxy::{Generation, Limits, RouteConflict, RouteTable, ToUpstream};
use crate::rules::RuleTable;
use crate::store::redis::{self, Alarm};
use crate::store::{Backend, Memory};
use crate::telemetry::Metrics;
use crate::upstream::{self, TargetError, Upstream};

/// What is in force. State of limiters and connections to upstreams live on when the settings change.
pub(super) struct Current {
    generation: Arc<ArcSwap<Generation>>,
    kept: Mutex<Kept>,
    lasting: Lasting,
    maker: Maker,
}

/// What every generation shares.
struct Lasting {
    store: Arc<Memory>,
    decided: decide::Lasting,
    own_secret: Secret,
    metrics: Arc<Metrics>,
}

struct Kept {
    settings: Settings,
    upstreams: Vec<KeptUpstream>,
    shared: SharedStore,
}

/// An upstream with what it was made of.
type KeptUpstream = (upstream::Settings, Arc<ToUpstream>);

/// Why settings cannot be put into force.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// They differ from those in force in what a running process cannot change.
    #[error("a change of {0} needs a restart")]
    NeedsRestart(&'static str),
    /// An upstream has a target that cannot be connected to.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A server of the store is none to start with.
    #[error(transparent)]
    Store(#[from] redis::Unfit),
    /// A route can never be taken.
    #[error(transparent)]
    Route(#[from] RouteConflict),
}

impl Current {
    /// Puts the first settings into force, with the state of their snapshot. Alarms of stores come out where it says.
    ///
    /// # Errors
    /// They do not fit together, or there is no randomness to draw a secret from.
    pub(super) async fn new(
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Result<(Self, mpsc::Receiver<Alarm>), AppError> {
        warn_if_unlimited(&settings);
        let (store, own_secret) = snapshot::start(&settings)?;
        let lasting = Lasting {
            store: Arc::new(store),
            decided: decide::Lasting::default(),
            own_secret,
            metrics,
        };
        let (maker, alarms) = Maker::new(Arc::clone(&lasting.metrics));
        let shared = maker.store(&settings, &SharedStore::default()).await;
        let shared = shared.map_err(Unfit::from)?;
        let upstreams = upstreams(&settings, &[]).map_err(Unfit::from)?;
        let generation = generation(&settings, &upstreams, shared.backend(&lasting.store), &lasting)?;
        let kept = Kept {
            settings,
            upstreams,
            shared,
        };
        let current = Self {
            generation: Arc::new(ArcSwap::from_pointee(generation)),
            kept: Mutex::new(kept),
            lasting,
            maker,
        };
        Ok((current, alarms))
    }

    /// What workers serve by.
    pub(super) fn generation(&self) -> Arc<ArcSwap<Generation>> {
        Arc::clone(&self.generation)
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.lasting.metrics
    }

    pub(super) fn store(&self) -> &Arc<Memory> {
        &self.lasting.store
    }

    /// The settings in force.
    pub(super) fn settings(&self) -> Settings {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .settings
            .clone()
    }

    /// Puts other settings into force, whole or not at all.
    ///
    /// # Errors
    /// They differ in what a running process cannot change, or do not fit together.
    pub(super) async fn change(&self, settings: Settings) -> Result<(), Unfit> {
        let running = self.shared();
        let shared = self.maker.store(&settings, &running).await?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if settings.server.listen != kept.settings.server.listen {
            return Err(Unfit::NeedsRestart("server.listen"));
        }
        if settings.server.workers != kept.settings.server.workers {
            return Err(Unfit::NeedsRestart("server.workers"));
        }
        if settings.admin != kept.settings.admin {
            return Err(Unfit::NeedsRestart("admin"));
        }
        let upstreams = upstreams(&settings, &kept.upstreams)?;
        let backend = shared.backend(&self.lasting.store);
        let next = generation(&settings, &upstreams, backend, &self.lasting)?;
        warn_if_unlimited(&settings);
        if !shared.is(&running) {
            tracing::warn!("store changed: every rule whose counts are elsewhere starts afresh");
            shared.watch();
            running.retire();
        }
        afresh(&kept.settings, &settings);
        self.lasting.store.set_max_keys(settings.store.max_keys);
        snapshot::check(&settings);
        self.generation.swap(Arc::new(next)).limits.limiter().report();
        *kept = Kept {
            settings,
            upstreams,
            shared,
        };
        Ok(())
    }

    /// The store in Redis that is in force, if one is.
    pub(super) fn shared(&self) -> SharedStore {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.shared.clone()
    }

    /// Writes the snapshot, where the settings in force ask for one. Nothing may be decided any more.
    pub(super) fn save(&self) {
        snapshot::save(&self.settings(), &self.lasting.store, &self.lasting.own_secret);
    }

    /// Once a second: what has accumulated is logged, and what has expired is forgotten.
    pub(super) fn tick(&self) {
        let generation = self.generation.load();
        generation.limits.limiter().tick();
        for (_, upstream) in &self.kept.lock().unwrap_or_else(PoisonError::into_inner).upstreams {
            upstream.report();
        }
    }
}

fn warn_if_unlimited(settings: &Settings) {
    if settings.rules.is_empty() {
        tracing::warn!("the config has no rule: nothing is limited");
    }
}

/// Says which rules of the next settings begin with nothing counted although the running ones have rules of their names.
fn afresh(running: &Settings, next: &Settings) {
    if running.secret != next.secret {
        tracing::warn!("store.hash_key changed: every rule starts afresh");
        return;
    }
    for rule in &next.rules {
        let before = running.rules.iter().find(|before| before.name == rule.name);
        if before.is_some_and(|before| before.fingerprint() != rule.fingerprint()) {
            tracing::warn!(
                rule = rule.name,
                "starts afresh: its algorithm, window, precision or key changed"
            );
        }
    }
}

/// The upstreams of the settings; one whose settings have not changed keeps its connections.
fn upstreams(settings: &Settings, running: &[KeptUpstream]) -> Result<Vec<KeptUpstream>, TargetError> {
    let made = settings.upstreams.iter().map(|wanted| {
        let kept = running.iter().find(|(kept, _)| kept == wanted);
        let upstream = match kept {
            Some((_, upstream)) => Arc::clone(upstream),
            None => Upstream::new(wanted, settings.server.workers)?,
        };
        Ok((wanted.clone(), upstream))
    });
    made.collect()
}

fn generation(
    settings: &Settings,
    upstreams: &[KeptUpstream],
    backend: Backend,
    lasting: &Lasting,
) -> Result<Generation, Unfit> {
    let secret = settings
        .secret
        .clone()
        .unwrap_or_else(|| lasting.own_secret.clone());
    let rules = Arc::new(RuleTable::new(
        settings.rules.clone(),
        settings.identity.clone(),
        secret,
    ));
    let limiter = Limiter::new(
        backend,
        &rules,
        &lasting.metrics,
        lasting.decided.clone(),
        settings.edge,
    );
    let limits = Limits::new(
        settings.identity.clone(),
        rules,
        limiter,
        settings.proxy.profiles.clone(),
    );
    let (routes, destinations): (Vec<_>, Vec<_>) = settings
        .proxy
        .routes
        .iter()
        .filter_map(|route| {
            let (_, upstream) = upstreams
                .iter()
                .find(|(settings, _)| settings.name == route.upstream)?;
            Some((
                route.clone(),
                (Arc::from(route.path.text()), Arc::clone(upstream)),
            ))
        })
        .unzip();
    Ok(Generation {
        settings: settings.proxy.clone(),
        routes: RouteTable::new(&routes)?,
        destinations,
        limits: Arc::new(limits),
    })
}
