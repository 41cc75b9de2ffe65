//! One server, as all workers of this process see it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};

use super::alarm::Alarm;
use super::breaker::Breaker;
use super::call::Stray;
use super::cause::Cause;
use super::guard::{Check, Failing, Server};
use super::scripts::Scripts;
use super::session::{Greeting, Session};
use super::settings::{Address, Eviction, Settings};
use super::time::ServerClock;
use crate::clock::{self, Clock};
use crate::telemetry::ShardMeter;

/// One server, as all workers of this process see it.
pub(super) struct Shard {
    /// What it is called: where it listens, or what Sentinels call it.
    pub(super) name: String,
    /// Where it listens now, if that is known.
    address: ArcSwapOption<Address>,
    pub(super) settings: Arc<Settings>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) clock: ServerClock,
    pub(super) meter: ShardMeter,
    /// Whether it is in trouble.
    pub(super) trouble: watch::Sender<bool>,
    breaker: Breaker,
    /// How often it was in trouble or moved: connections from before are not trusted after.
    troubles: AtomicU32,
    /// How many lives of servers were seen by all shards of the store; refunds of an earlier one are moot.
    lives: Arc<AtomicU32>,
    /// The number of the server's present life among them; 0 before the first.
    life: AtomicU32,
    seen: Mutex<Seen>,
    /// Requests that it did not decide since its trouble began.
    missed: AtomicU64,
    alarms: mpsc::Sender<Alarm>,
    strays: mpsc::Sender<Stray>,
    /// Told when the server may not be the right one any more.
    doubts: Arc<Notify>,
    /// Told when it listens somewhere else.
    moved: Notify,
    /// How often it was found somewhere else.
    moves: AtomicU32,
    /// Whether nobody is to hear of it any more.
    silent: AtomicBool,
    /// Whether it has no keys any more.
    left: AtomicBool,
}

/// A connection to a server that serves.
pub(super) struct Connected {
    pub(super) session: Session,
    /// The life of the server that it began in; a server ends its connections with its life.
    pub(super) life: u32,
    /// How often the server had been in trouble, or had moved, when it began.
    pub(super) troubles: u32,
}

/// What was seen of a server last.
#[derive(Default)]
struct Seen {
    run_id: String,
    failing: Vec<Failing>,
    /// Since when it is in trouble, and why.
    trouble: Option<(Instant, Cause)>,
}

/// How a server is.
#[derive(Clone, Debug)]
pub struct ShardHealth {
    /// What it is called.
    pub shard: String,
    /// Where it listens, if that is known.
    pub address: Option<String>,
    /// Why it decides nothing, if so.
    pub trouble: Option<String>,
    /// The guards that fail, by name.
    pub failing: Vec<&'static str>,
}

impl ShardHealth {
    /// Each guard by its name, and whether it fails.
    pub fn guards(&self) -> [(&'static str, bool); 3] {
        Check::ALL.map(|check| (check.name(), self.failing.contains(&check.name())))
    }
}

impl Shard {
    /// A server of which nothing is known yet.
    pub(super) fn new(
        name: &str,
        address: Option<Address>,
        (settings, scripts): (&Arc<Settings>, &Arc<Scripts>),
        meter: ShardMeter,
        lives: &Arc<AtomicU32>,
        (alarms, strays, doubts): (&mpsc::Sender<Alarm>, &mpsc::Sender<Stray>, &Arc<Notify>),
    ) -> Self {
        Self {
            name: name.to_owned(),
            address: ArcSwapOption::from_pointee(address),
            settings: Arc::clone(settings),
            scripts: Arc::clone(scripts),
            clock: ServerClock::new(Clock::monotonic()),
            meter,
            trouble: watch::Sender::new(false),
            breaker: Breaker::default(),
            troubles: AtomicU32::new(0),
            lives: Arc::clone(lives),
            life: AtomicU32::new(0),
            seen: Mutex::default(),
            missed: AtomicU64::new(0),
            alarms: alarms.clone(),
            strays: strays.clone(),
            doubts: Arc::clone(doubts),
            moved: Notify::new(),
            moves: AtomicU32::new(0),
            silent: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// A new connection, and what the server says of itself.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn open(&self) -> Result<(Session, Server), Cause> {
        let address = self.address.load_full().ok_or(Cause::Unknown)?;
        let (session, Greeting { server, now }) =
            Session::open(&address, &self.settings, &self.scripts).await?;
        self.learn(now);
        Ok((session, server))
    }

    /// A new connection, to a server that serves.
    ///
    /// # Errors
    /// There is none, or the server does not serve.
    pub(super) async fn connect(&self) -> Result<Connected, Cause> {
        // Before it begins: a server that is in trouble meanwhile, or is another one by then, is not to be trusted.
        let troubles = self.troubles();
        let (session, server) = self.open().await?;
        let unfit = self.judge(&server).into_iter().find(Failing::is_trouble);
        match unfit {
            Some(failing) => Err(Cause::Unfit(failing.why)),
            None => Ok(Connected {
                session,
                life: self.met(&server),
                troubles,
            }),
        }
    }

    /// The guards that fail by what the server says of itself.
    pub(super) fn judge(&self, server: &Server) -> Vec<Failing> {
        let failing = server.failing(self.settings.is_cluster());
        self.seen().failing.clone_from(&failing);
        failing
    }

    /// The guards that fail as far as is known.
    pub(super) fn failing(&self) -> Vec<Failing> {
        self.seen().failing.clone()
    }

    /// Says what is wrong with the server although it decides.
    pub(super) fn warn(&self) {
        for failing in self.failing().iter().filter(|failing| !failing.is_trouble()) {
            match self.settings.eviction {
                Eviction::Refuse => {
                    tracing::error!(shard = self.name, reason = failing.why, "store at risk");
                }
                Eviction::Allow => {
                    tracing::warn!(shard = self.name, reason = failing.why, "store at risk");
                }
            }
        }
    }

    /// Takes note of what the server's clock says in a reply that was not long on its way.
    pub(super) fn learn(&self, now: clock::Micros) {
        if self.clock.learn(now) {
            self.meter.clock_steps.inc();
        }
    }

    /// Whether it is not asked.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.breaker.is_open()
    }

    /// How often it was in trouble or moved.
    pub(super) fn troubles(&self) -> u32 {
        self.troubles.load(Relaxed)
    }

    /// A call was answered in time.
    pub(super) fn succeeded(&self) {
        self.breaker.succeeded();
    }

    /// A call failed, whatever the reason: after a few of them in a row nobody asks any more.
    pub(super) fn failed(&self, cause: &Cause) {
        self.doubts.notify_one();
        if self.breaker.failed() {
            self.trouble_begins(cause);
        }
    }

    /// The server cannot decide: nobody asks any more.
    pub(super) fn trip(&self, cause: &Cause) {
        self.doubts.notify_one();
        if self.breaker.trip() {
            self.trouble_begins(cause);
        }
    }

    /// A request goes on without a decision.
    pub(super) fn missed(&self) {
        self.missed.fetch_add(1, Relaxed);
    }

    fn trouble_begins(&self, cause: &Cause) {
        self.seen().trouble = Some((clock::now(), cause.clone()));
        self.troubles.fetch_add(1, Relaxed);
        self.trouble.send_replace(true);
        if self.silent.load(Relaxed) {
            return;
        }
        tracing::error!(shard = self.name, reason = %cause, "store in trouble: rules decide by on_outage");
        self.tell(Alarm::Trouble {
            shard: self.name.clone(),
            reason: cause.to_string(),
        });
    }

    /// It is still in trouble, and this is why now.
    pub(super) fn trouble_lasts(&self, cause: Cause) {
        let mut seen = self.seen();
        let Some((_, before)) = &mut seen.trouble else {
            return;
        };
        if *before != cause {
            tracing::warn!(shard = self.name, reason = %cause, "store still in trouble");
            *before = cause;
        }
    }

    /// It has no keys any more.
    pub(super) fn leave(&self) {
        if self.life() > 0 {
            tracing::info!(shard = self.name, "left: it has no keys any more");
        }
        self.left.store(true, Relaxed);
        self.fall_silent();
    }

    /// Whether it has no keys any more.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Relaxed)
    }

    /// Nobody is to hear of it any more: what was told of is over.
    pub(super) fn fall_silent(&self) {
        self.trouble_ends();
        self.silent.store(true, Relaxed);
    }

    /// It decides again.
    pub(super) fn trouble_ends(&self) {
        let Some((since, _)) = self.seen().trouble.take() else {
            return;
        };
        let missed = self.missed.swap(0, Relaxed);
        let secs = clock::now().saturating_duration_since(since).as_secs_f64();
        self.breaker.close();
        self.trouble.send_replace(false);
        tracing::info!(
            shard = self.name,
            secs = format_args!("{secs:.1}"),
            undecided = missed,
            "store recovered"
        );
        self.tell(Alarm::Recovered {
            shard: self.name.clone(),
            secs,
            undecided: missed,
        });
    }

    /// How it is.
    pub(super) fn health(&self) -> ShardHealth {
        let seen = self.seen();
        ShardHealth {
            shard: self.name.clone(),
            address: self.address.load().as_ref().map(|address| address.to_string()),
            trouble: seen.trouble.as_ref().map(|(_, cause)| cause.to_string()),
            failing: seen.failing.iter().map(|failing| failing.check.name()).collect(),
        }
    }

    /// The number of the server's present life.
    pub(super) fn life(&self) -> u32 {
        self.life.load(Relaxed)
    }

    /// It listens here from now on; connections to where it listened before are not trusted.
    pub(super) fn moves_to(&self, address: Address) {
        self.address.store(Some(Arc::new(address)));
        self.moves.fetch_add(1, Relaxed);
        self.troubles.fetch_add(1, Relaxed);
        self.moved.notify_one();
    }

    /// How often it was found somewhere else.
    pub(super) fn moves(&self) -> u32 {
        self.moves.load(Relaxed)
    }

    /// Waits until it listens somewhere else.
    pub(super) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Where it listens, if that is known.
    pub(super) fn address(&self) -> Option<Arc<Address>> {
        self.address.load_full()
    }

    /// Whether it is the server that listens there.
    pub(super) fn is_at(&self, address: &Address) -> bool {
        self.address.load().as_ref().is_some_and(|own| **own == *address)
    }

    /// The number of the life that the server is in.
    fn met(&self, server: &Server) -> u32 {
        let mut seen = self.seen();
        if seen.run_id != server.run_id {
            seen.run_id.clone_from(&server.run_id);
            let life = self.lives.fetch_add(1, Relaxed).saturating_add(1);
            self.life.store(life, Relaxed);
        }
        self.life()
    }

    /// Takes refunds that are to be made at another server.
    pub(super) fn stray(&self, stray: Stray) {
        if let Err(TrySendError::Full(Stray { debts, .. }) | TrySendError::Closed(Stray { debts, .. })) =
            self.strays.try_send(stray)
        {
            self.meter.refunds_lost.inc_by(debts.len() as u64);
        }
    }

    /// Whoever listens hears of it; where nobody keeps up, the log has it.
    fn tell(&self, alarm: Alarm) {
        let _ = self.alarms.try_send(alarm);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
