//! Refunds over a connection of their own, where no link makes them.

use super::call::{Debt, Owed, settle_command};
use super::sent::grouped;
use super::session::Session;
use super::shard::{Connected, Shard};

/// Most refunds of a call.
const REFUNDS: usize = 128;

/// Makes refunds of the server's present life.
pub(super) async fn give_back(shard: &Shard, debts: Vec<Debt>) {
    let all = debts.len();
    let Ok(Connected {
        mut session, life, ..
    }) = shard.connect().await
    else {
        shard.meter.refunds_lost.inc_by(all as u64);
        return;
    };
    let owed: Vec<Debt> = debts.into_iter().filter(|debt| debt.life == life).collect();
    shard
        .meter
        .refunds_lost
        .inc_by(all.saturating_sub(owed.len()) as u64);
    let calls = match shard.settings.is_cluster() {
        true => grouped(owed, |debt| debt.owed.name.partition()),
        false => vec![owed],
    };
    for call in calls.iter().flat_map(|debts| debts.chunks(REFUNDS)) {
        make(shard, &mut session, call, false).await;
    }
}

/// Makes refunds of keys that are on their way to the server from another one, whatever the life that they were charged in.
pub(super) async fn give_back_astray(shard: &Shard, debts: &[Debt]) {
    let Ok(Connected { mut session, .. }) = shard.connect().await else {
        shard.meter.refunds_lost.inc_by(debts.len() as u64);
        return;
    };
    for debt in debts.chunks(1) {
        make(shard, &mut session, debt, true).await;
    }
}

async fn make(shard: &Shard, session: &mut Session, debts: &[Debt], asking: bool) {
    let owed: Vec<&Owed> = debts.iter().map(|debt| &debt.owed).collect();
    if asking {
        session.say(&redis::cmd("ASKING"));
    }
    settle_command(session.outbox(), &shard.scripts.settle, &owed);
    let asked = !asking || matches!(session.reply().await, Ok(Ok(_)));
    if !(matches!(session.reply().await, Ok(Ok(_))) && asked) {
        shard.meter.refunds_lost.inc_by(owed.len() as u64);
    }
}
