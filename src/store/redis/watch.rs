//! What happens beside the calls: guards are looked at, and a server in trouble is tried until it is well.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{sleep, timeout};

use super::call::{Ask, Asked, reserve_command};
use super::cause::Cause;
use super::guard::Failing;
use super::names::Names;
use super::recount::{ReserveReply, read_reserve};
use super::session::Session;
use super::shard::Shard;
use crate::clock::Micros;
use crate::identity::LimitKey;
use crate::limit::{Kind, Spec};

/// Between two looks at the guards of a server that is well.
const GUARDS: Duration = Duration::from_secs(60);
/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a server may take to let a try in.
const CONNECT: Duration = Duration::from_secs(1);
/// What the key of tries is called where rules have their names, which begin with no such character.
const TRY: &str = "~try";

/// Watches a server for good.
pub(super) async fn watch(shard: Arc<Shard>) {
    let mut trouble = shard.trouble.subscribe();
    loop {
        if *trouble.borrow_and_update() {
            recover(&shard).await;
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

/// Tries a server until it decides.
async fn recover(shard: &Shard) {
    let (mut pause, longest) = PAUSES;
    loop {
        tokio::select! {
            () = sleep(jitter(pause)) => {}
            () = shard.moved() => {}
        }
        match attempt(shard).await {
            Ok(()) => {
                shard.trouble_ends();
                shard.warn();
                return;
            }
            Err(cause) => shard.trouble_lasts(cause),
        }
        pause = pause.saturating_mul(2).min(longest);
    }
}

/// From a half of a pause to all of it, so that gateways do not all come at once.
pub(super) fn jitter(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX);
    pause.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

/// One charge on a key of no rule: a replica answers `PING`, and a server without memory answers `INFO`.
async fn attempt(shard: &Shard) -> Result<(), Cause> {
    let mut session = shard_is_fit(shard).await?;
    let ask = charge(shard);
    let deadline = shard.settings.deadline;
    let latest = shard.clock.now().plus(deadline.into());
    let scripts = shard.scripts.whole();
    reserve_command(session.outbox(), &scripts.reserve, latest, &[&ask]);
    let reply = timeout(deadline, session.reply()).await;
    let value: Value = reply.map_err(|_| Cause::Silent(deadline))???;
    match read_reserve(&value, &[&ask])? {
        ReserveReply::Decided { .. } => Ok(()),
        ReserveReply::Late { .. } => Err(Cause::Silent(deadline)),
    }
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

fn charge(shard: &Shard) -> Ask {
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
    let key = LimitKey(getrandom::u64().unwrap_or_default().into());
    let names = Names::new(&shard.settings.prefix, shard.settings.partitions);
    let asked = spec.policy().into_iter().map(|policy| Asked {
        key,
        name: names.name(TRY, key),
        policy,
        cost: 1,
        dry_run: false,
    });
    asked.collect()
}
