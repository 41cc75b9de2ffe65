//! One worker of a gateway: the store over one link, with as many decisions in flight as are asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tollgate::clock;
use tollgate::identity::{self, LimitKey, Secret};
use tollgate::limit::{Policy, Spec};
use tollgate::rules::{Match, Missing, OnOutage, Rule, RuleTable, Scope};
use tollgate::store::redis::{Address, Eviction, Servers, Settings};
use tollgate::store::{Redis, Store};
use tollgate::telemetry::Metrics;

use crate::charges::prepared;

/// The keys of each request, a rule each, in the order that they are asked for, over and over.
pub(crate) type Order = Arc<Vec<Vec<LimitKey>>>;

pub(crate) struct Worker {
    runtime: Runtime,
    asking: Arc<Asking>,
}

struct Asking {
    store: Redis,
    table: RuleTable,
    policy: Policy,
}

impl Worker {
    /// Of a gateway with as many rules of one limiter, at the server on this port.
    pub(crate) fn new(port: u16, rules: usize, spec: &Spec) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (alarms, _) = mpsc::channel(1);
        let asking = Asking {
            store: Redis::new(settings(port), &Arc::new(Metrics::new().unwrap()), &alarms),
            table: table(rules, spec),
            policy: spec.policy().unwrap(),
        };
        Self {
            runtime,
            asking: Arc::new(asking),
        }
    }

    /// Decides one request.
    pub(crate) fn decide(&self, keys: &[LimitKey]) {
        self.runtime.block_on(self.asking.decide(keys));
    }

    /// Decides so long, with so many in flight at all times; says how many it were.
    pub(crate) fn run(&self, order: &Order, in_flight: usize, long: Duration) -> u64 {
        let until = clock::now() + long;
        self.all(order, in_flight, move |_| clock::now() < until)
    }

    /// Decides as many requests, with so many in flight.
    pub(crate) fn count(&self, order: &Order, in_flight: usize, requests: usize) -> u64 {
        self.all(order, in_flight, move |at| at < requests)
    }

    /// Decides while there is more; says how many it were.
    fn all(
        &self,
        order: &Order,
        in_flight: usize,
        more: impl Fn(usize) -> bool + Copy + Send + 'static,
    ) -> u64 {
        let next = Arc::new(AtomicUsize::new(0));
        self.runtime.block_on(async {
            let mut askers = JoinSet::new();
            for _ in 0..in_flight {
                let (asking, order, next) = (Arc::clone(&self.asking), Arc::clone(order), Arc::clone(&next));
                askers.spawn(async move {
                    let mut decided = 0_u64;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if !more(at) {
                            return decided;
                        }
                        asking.decide(&order[at % order.len()]).await;
                        decided += 1;
                    }
                });
            }
            askers.join_all().await.into_iter().sum()
        })
    }
}

impl Asking {
    async fn decide(&self, keys: &[LimitKey]) {
        let mut charges = prepared(keys.len(), self.policy);
        for (charge, key) in charges.iter_mut().zip(keys) {
            charge.key = *key;
        }
        let reserved = self.store.reserve(&self.table, &charges).await;
        assert!(reserved.unwrap().admitted);
    }
}

fn settings(port: u16) -> Settings {
    Settings {
        prefix: "tollgate".to_owned(),
        servers: Servers::Shards(vec![Address {
            host: "127.0.0.1".to_owned(),
            port,
            tls: false,
        }]),
        username: None,
        password: None,
        database: 0,
        partitions: 256,
        // What is recorded is sent again until the end.
        deadline: Duration::from_secs(3_600),
        tls: None,
        eviction: Eviction::Refuse,
    }
}

fn table(rules: usize, spec: &Spec) -> RuleTable {
    let rule = |number| Rule {
        name: format!("rule-{number}"),
        matches: Match::default(),
        key: Vec::new(),
        missing: Missing::Share,
        spec: spec.clone(),
        policy: spec.policy().unwrap(),
        refund: Vec::new(),
        overrides: Vec::new(),
        scope: Scope::Store,
        on_outage: OnOutage::default(),
        dry_run: false,
        visible: true,
    };
    RuleTable::new(
        (0..rules).map(rule).collect(),
        identity::Settings::default(),
        Secret::from_text("bench"),
    )
}
