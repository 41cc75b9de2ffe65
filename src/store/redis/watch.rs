//! What happens beside the calls: guards are looked at, and a server in trouble is tried until it is well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::call::{Ask, Asked, reserve_command};
use super::cause::Cause;
use super::fleet::Fleet;
use super::guard::Failing;
use super::recount::{ReserveReply, read_reserve};
use super::scripts::Scripts;
use super::session::{Reply, Session};
use super::shard::Shard;
use crate::clock::{self, Micros};
use crate::limit::{Kind, Spec};

/// Between two looks at the guards of a server that is well.
const GUARDS: Duration = Duration::from_secs(60);
/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// A server that is in trouble again within this time after the last one goes on with its pauses: one that comes and goes
/// is asked ever less often, and told of no more often than that.
const CALM: Duration = Duration::from_secs(10);
/// How long a server may take to let a try in.
const CONNECT: Duration = Duration::from_secs(1);
/// What the key of tries is called where rules have their names, which begin with no such character.
const TRY: &str = "~try";

/// Watches a server for good.
pub(super) async fn watch(fleet: Arc<Fleet>, shard: Arc<Shard>) {
    let mut trouble = shard.trouble.subscribe();
    let (first, _) = PAUSES;
    let (mut pause, mut recovered) = (first, None);
    loop {
        if *trouble.borrow_and_update() {
            if recovered.is_none_or(|at| clock::now().saturating_duration_since(at) > CALM) {
                pause = first;
            }
            pause = recover(&fleet, &shard, pause).await;
            recovered = Some(clock::now());
            continue;
        }
        tokio::select! {
            _ = trouble.changed() => {}
            () = sleep(GUARDS) => check(&shard).await,
        }
    }
}

/// Looks at the guards of a server for the first time: those that fail.
///
/// # Errors
/// It does not answer.
pub(super) async fn look(shard: &Shard) -> Result<Vec<Failing>, Cause> {
    let (_, failing) = greet(shard).await?;
    Ok(failing)
}

/// Looks at the guards of a server that is well as far as is known.
async fn check(shard: &Shard) {
    match shard_is_fit(shard).await {
        Ok(_) => shard.warn(),
        Err(cause @ Cause::Unfit(_)) => shard.trip(&cause),
        Err(cause) => shard.failed(&cause),
    }
}

/// Tries a server until it decides, with this pause at first; returns the one that would be next.
async fn recover(fleet: &Fleet, shard: &Arc<Shard>, mut pause: Duration) -> Duration {
    let (_, longest) = PAUSES;
    loop {
        tokio::select! {
            () = sleep(jitter(pause)) => {}
            () = shard.moved() => {}
        }
        pause = pause.saturating_mul(2).min(longest);
        let moves = shard.moves();
        match attempt(fleet, shard).await {
            // Another server may be meant by now.
            Ok(()) if moves != shard.moves() => {}
            Ok(()) => {
                shard.trouble_ends();
                shard.warn();
                return pause;
            }
            Err(cause) => shard.trouble_lasts(cause),
        }
    }
}

/// From a half of a pause to all of it, so that gateways do not all come at once.
pub(super) fn jitter(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    pause.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

/// One charge on a key of no rule: a replica answers `PING`, and a server without memory answers `INFO`. It is called as
/// the links call, so that a server decides for them if it decides here.
async fn attempt(fleet: &Fleet, shard: &Arc<Shard>) -> Result<(), Cause> {
    let mut session = shard_is_fit(shard).await?;
    let ask = charge(fleet, shard);
    let value = match call(shard, &mut session, &ask, &shard.scripts).await? {
        Err(refused) if refused.is_noscript() => {
            call(shard, &mut session, &ask, &shard.scripts.whole()).await?
        }
        reply => reply,
    };
    let value = match value {
        // It has none of the keys, and serves.
        Err(refused) if refused.redirect(session.address()).is_some() && shard.settings.is_cluster() => {
            return Ok(());
        }
        reply => reply?,
    };
    match read_reserve(&value, &[&ask])? {
        ReserveReply::Decided { .. } => Ok(()),
        ReserveReply::Late { .. } => Err(Cause::Silent(shard.settings.deadline)),
    }
}

async fn call(shard: &Shard, session: &mut Session, ask: &Ask, scripts: &Scripts) -> Result<Reply, Cause> {
    let deadline = shard.settings.deadline;
    let latest = shard.clock.now().plus(deadline.into());
    reserve_command(session.outbox(), &scripts.reserve, latest, &[ask]);
    let reply = timeout(deadline, session.reply()).await;
    reply.map_err(|_| Cause::Silent(deadline))?
}

async fn shard_is_fit(shard: &Shard) -> Result<Session, Cause> {
    let (session, failing) = greet(shard).await?;
    match failing.into_iter().find(Failing::is_trouble) {
        Some(failing) => Err(Cause::Unfit(failing.why)),
        None => Ok(session),
    }
}

async fn greet(shard: &Shard) -> Result<(Session, Vec<Failing>), Cause> {
    let opened = timeout(CONNECT, shard.open()).await;
    let (session, server) = opened.map_err(|_| Cause::Silent(CONNECT))??;
    Ok((session, shard.judge(&server)))
}

fn charge(fleet: &Fleet, shard: &Arc<Shard>) -> Ask {
    let spec = Spec {
        kind: Kind::FixedWindow,
        limit: 1 << 40,
        window: Some(Micros::SECOND),
        precision: 1,
        blend: true,
        burst: None,
        queue: None,
        cost: 1,
    };
    let partition = fleet.map().some_partition(shard);
    let key = fleet.names.key(partition, getrandom::u64().unwrap_or_default());
    let asked = spec.policy().into_iter().map(|policy| Asked {
        key,
        name: fleet.names.name(TRY, key),
        policy,
        cost: 1,
        dry_run: false,
    });
    asked.collect()
}
