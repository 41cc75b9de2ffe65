//! The thread beside the workers: signals, reload, the admin listener, and what happens once a second.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::current::Current;
use super::{Source, Stamp, webhook};
use crate::admin::Admin;
use crate::config::Severity;
use crate::server::{self, Shared, Stop, WorkerListeners};
use crate::store::redis::{Alarm, Health, ShardHealth};
use crate::telemetry::{Logs, Metrics, ShardGauges};

const TICK: Duration = Duration::from_secs(1);

/// An admin listener needs no more.
const OPERATORS: usize = 64;

/// Nor does one who asks need longer to say so: connections that say nothing must not keep others out.
const OPERATORS_WAIT: Duration = Duration::from_secs(10);

pub(super) struct Supervisor {
    pub source: Source,
    /// The version of the source that is in force.
    pub stamp: Option<Stamp>,
    /// Told once signals are heard.
    pub ready: std::sync::mpsc::Sender<()>,
    pub logs: Logs,
    pub current: Arc<Current>,
    /// Where alarms of stores come out.
    pub alarms: mpsc::Receiver<Alarm>,
    /// The workers' side: their settings, and the signal that stops them.
    pub workers: Shared,
    /// The admin listener, where there is one.
    pub operators: Option<WorkerListeners>,
    /// Given when the workers have stopped.
    pub stopped: Stop,
}

impl Supervisor {
    /// Watches until the workers have stopped.
    ///
    /// # Errors
    /// The thread cannot get a runtime or hear signals.
    pub(super) fn run(self) -> io::Result<()> {
        let stop_workers = StopOnDrop(self.workers.stop.clone());
        let runtime = super::runtime()?;
        let watched = runtime.block_on(self.watch());
        drop(stop_workers);
        watched
    }

    async fn watch(mut self) -> io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let _ = self.ready.send(());
        let admin = Arc::new(self.admin());
        let operators = self.serve(&admin);
        self.current.shared().watch();
        let alarms = std::mem::replace(&mut self.alarms, mpsc::channel(1).1);
        tokio::spawn(webhook::post_all(Arc::clone(&self.current), alarms));
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.current.tick();
                    let stamp = self.source.stamp();
                    if stamp.is_some() && stamp != self.stamp {
                        self.stamp = stamp;
                        self.reload(&admin).await;
                    }
                }
                _ = hangup.recv() => {
                    self.stamp = self.source.stamp();
                    self.reload(&admin).await;
                }
                _ = terminate.recv() => self.drain(&admin),
                _ = interrupt.recv() => self.drain(&admin),
                () = self.stopped.wait() => break,
            }
        }
        self.current.tick();
        operators.stop.trigger();
        Ok(())
    }

    fn admin(&self) -> Admin {
        let store = Arc::clone(self.current.store());
        let (shown, told) = (Arc::clone(&self.current), Arc::clone(&self.current));
        Admin::new(
            &self.current.settings().admin,
            Arc::clone(self.current.metrics()),
            move |metrics| {
                metrics
                    .store_keys
                    .set(i64::try_from(store.len()).unwrap_or(i64::MAX));
                show_shards(metrics, shown.shared().health());
            },
            move || store_detail(told.shared().health()),
        )
    }

    /// Serves the admin listener in the background.
    fn serve(&mut self, admin: &Arc<Admin>) -> Shared {
        let clients = &self.current.settings().server;
        let settings = server::Settings {
            connections: OPERATORS,
            header: clients.header.min(OPERATORS_WAIT),
            idle: clients.idle.min(OPERATORS_WAIT),
            ..clients.clone()
        };
        let shared = Shared::new(settings);
        if let Some(listeners) = self.operators.take() {
            let (admin, shared) = (Arc::clone(admin), shared.clone());
            tokio::spawn(async move {
                let served = server::serve(listeners, &shared, move |_, _| {
                    let admin = Arc::clone(&admin);
                    service_fn(move |request| {
                        let answer = admin.answer(&request);
                        async move { Ok(answer) }
                    })
                });
                if let Err(error) = served.await {
                    tracing::error!(%error, "admin listener failed");
                }
            });
        }
        shared
    }

    fn drain(&self, admin: &Admin) {
        if self.workers.stop.is_triggered() {
            return;
        }
        tracing::info!("draining");
        admin.drain();
        self.workers.stop.trigger();
    }

    /// Reads the settings again, and puts them into force whole or not at all.
    async fn reload(&self, admin: &Admin) {
        let refused = |reason: &dyn std::fmt::Display| {
            tracing::error!(%reason, "reload refused");
            self.current.metrics().reloads("refused").inc();
        };
        let loaded = match self.source.load() {
            Ok(loaded) => loaded,
            Err(report) => {
                for finding in report
                    .findings()
                    .iter()
                    .filter(|finding| finding.severity == Severity::Error)
                {
                    tracing::error!("{finding}");
                }
                return refused(&"the config has faults");
            }
        };
        let (server, log) = (loaded.settings.server.clone(), loaded.settings.log);
        if let Err(error) = self.current.change(loaded.settings).await {
            return refused(&error);
        }
        self.workers.settings.store(Arc::new(server));
        if let Err(error) = self.logs.change(log) {
            tracing::error!(%error, "log settings not changed");
        }
        for finding in loaded.report.findings() {
            tracing::warn!("{finding}");
        }
        admin.reloaded();
        self.current.metrics().reloads("ok").inc();
        tracing::info!("reloaded");
    }
}

/// The gauges of the store's servers.
fn show_shards(metrics: &Metrics, health: Option<Health>) {
    let shards = health.map_or_else(Vec::new, |health| health.shards);
    let gauges = shards.iter().map(|shard| ShardGauges {
        shard: &shard.shard,
        degraded: shard.trouble.is_some(),
        guards: shard.guards(),
    });
    metrics.show_shards(&gauges.collect::<Vec<_>>());
}

/// What `/readyz` says of the store.
fn store_detail(health: Option<Health>) -> serde_json::Value {
    let Some(health) = health else {
        return json!("memory");
    };
    let shard = |shard: &ShardHealth| {
        json!({
            "shard": shard.shard,
            "address": shard.address,
            "trouble": shard.trouble,
            "failing_checks": shard.failing,
        })
    };
    let shards: Vec<_> = health.shards.iter().map(shard).collect();
    json!({ "kind": "redis", "shards_hash": health.shards_hash, "lookup_trouble": health.lookup, "shards": shards })
}

/// Workers do not go on without a supervisor: nobody could stop them.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
