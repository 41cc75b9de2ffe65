//! The store as a whole, links and all, keeps the contract of every store.

use std::sync::Arc;
use std::time::Duration;

use thread_local::ThreadLocal;
use tokio::runtime::{Builder, Runtime};

use super::server::Redis as Server;
use super::{START, Scripts};
use crate::clock::Micros;
use crate::limit::Kind;
use crate::store::Redis;
use crate::store::contract::{Fixture, charge, new_key, rule, store_contract};
use crate::store::redis::{Address, Eviction, Servers, Settings};
use crate::telemetry::Metrics;

/// A store on a server whose clock the test sets; each thread is a worker.
struct Whole {
    server: Server,
    store: Redis,
    workers: ThreadLocal<Runtime>,
}

const CLOCK: &str = "clock";

impl Whole {
    fn new() -> Self {
        let server = Server::start();
        let settings = Settings {
            prefix: "t".to_owned(),
            servers: Servers::Shards(vec![Address {
                host: "127.0.0.1".to_owned(),
                port: server.port(),
                tls: false,
            }]),
            username: None,
            password: None,
            tls: None,
            database: 0,
            partitions: 256,
            // The clock of the test does not go on.
            deadline: Duration::from_secs(10),
            eviction: Eviction::Refuse,
        };
        let (alarms, _) = tokio::sync::mpsc::channel(1);
        let metrics = Arc::new(Metrics::new().unwrap());
        let whole = Self {
            server,
            store: Redis::running(Scripts::on_a_clock(CLOCK), settings, &metrics, &alarms),
            workers: ThreadLocal::new(),
        };
        whole.set(Micros(START));
        whole
    }

    fn set(&self, now: Micros) {
        let (secs, micros) = (now.0 / 1_000_000, now.0 % 1_000_000);
        let clock = [secs.to_string(), micros.to_string()];
        let mut set = redis::pipe();
        set.atomic().del(CLOCK).ignore().rpush(CLOCK, &clock[..]).ignore();
        set.query::<()>(&mut self.server.connect()).unwrap();
    }
}

impl Fixture for Whole {
    type Store = Redis;

    const KINDS: &'static [Kind] = &[
        Kind::FixedWindow,
        Kind::SlidingLog,
        Kind::SlidingWindow,
        Kind::TokenBucket,
        Kind::Gcra,
    ];

    fn store(&self) -> &Redis {
        &self.store
    }

    fn now(&self) -> Micros {
        let clock: Vec<u64> = self.server.ask(&["LRANGE", CLOCK, "0", "1"]);
        Micros(clock[0] * 1_000_000 + clock[1])
    }

    fn pass(&self, time: Micros) {
        self.set(self.now().plus(time));
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        let worker = self
            .workers
            .get_or(|| Builder::new_current_thread().enable_all().build().unwrap());
        worker.block_on(future)
    }

    /// Refunds of a worker go ahead of what it reserves later.
    fn settle(&self) {
        let look = charge(&rule(Kind::FixedWindow, 1), new_key());
        let look = crate::rules::Charge { cost: 0, ..look };
        assert!(self.admits(&[look]));
    }
}

store_contract! { Whole::new() =>
    exactly_the_limit
    rejected_here_is_charged_nowhere
    one_key_asked_twice_is_asked_for_the_sum
    a_dry_run_rejects_nothing
    cost_zero_reads
    a_refund_gives_back_what_was_charged
    a_refund_of_an_unknown_key_does_nothing
    a_window_ends
    a_queue_tells_each_request_its_slot
    a_changed_limit_acts_at_once
    a_race_for_one_key_admits_the_limit
    a_race_for_crossed_keys_admits_the_limit
    a_race_with_refunds_admits_the_limit
    the_answers_are_those_of_the_model
}
