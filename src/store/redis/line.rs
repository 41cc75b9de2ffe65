//! One connection of a link: one call after the other, each with all that waits by then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout_at};

use super::call::{Ask, Debt, Owed, Stray, reserve_command, settle_command};
use super::cause::{Cause, Refused};
use super::fate::Fate;
use super::link::{Answer, Decided, Link};
use super::queue::Together;
use super::recount::{Counted, ReserveReply, read_reserve, read_settle};
use super::scripts::Scripts;
use super::sent::{Asker, Call, Sent, grouped, tell_none};
use super::session::{Reply, Session};
use super::shard::Connected;
use crate::clock::{self, Micros};

/// Why a connection is not used any more.
pub(super) enum End {
    /// Nobody needs it.
    Closed,
    /// It may be dead, or lead to a server that is not the one any more: another one is tried.
    Doubtful,
    /// It is of no use.
    Of(Cause),
}

/// A connection, and what was sent over it.
pub(super) struct Line {
    link: Arc<Link>,
    whole: Arc<Scripts>,
    session: Session,
    /// The life of the server that the connection began in; a server ends its connections with its life.
    life: u32,
    /// How often the server had been in trouble when the connection began.
    troubles: u32,
    /// Until when the one before is reason enough to stay with this one, whatever it is answered.
    stays: Option<Instant>,
    /// What has no reply yet, in order.
    sent: VecDeque<Sent>,
}

/// How long replies are waited for on a connection that is given up.
const LINGER: Duration = Duration::from_secs(5);

impl Line {
    /// Over a connection that has just begun. Until `stays`, an error that another connection
    /// might not give does not end it.
    pub(super) fn new(
        link: &Arc<Link>,
        whole: &Arc<Scripts>,
        Connected {
            session,
            life,
            troubles,
        }: Connected,
        stays: Option<Instant>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            whole: Arc::clone(whole),
            session,
            life,
            troubles,
            stays,
            sent: VecDeque::new(),
        }
    }

    /// Sends and answers until the connection is of no more use; says why.
    pub(super) async fn serve(&mut self) -> End {
        loop {
            if self.sent.iter().all(|sent| sent.late) {
                if self.is_doubtful() {
                    return End::Doubtful;
                }
                self.send_next();
            }
            let deadline = self.link.shard.settings.deadline;
            let patience = self.sent.iter().filter_map(|sent| sent.patience(deadline)).min();
            let until = patience.unwrap_or_else(clock::now);
            tokio::select! {
                biased;
                reply = self.session.reply() => {
                    if let Err(cause) = reply.and_then(|reply| self.answered(reply)) {
                        return End::Of(cause);
                    }
                }
                () = sleep_until(until.into()), if patience.is_some() => self.give_up(),
                goes_on = self.link.filled(), if patience.is_none() => {
                    if !goes_on {
                        return End::Closed;
                    }
                }
            }
        }
    }

    /// Whether the server has been in trouble since this connection began, or two deadlines have passed without a reply:
    /// one may be a slow moment, after the second it may be that this connection alone is dead.
    fn is_doubtful(&self) -> bool {
        let shard = &self.link.shard;
        let patience = shard.settings.deadline.saturating_mul(2);
        let waited = |sent: &Sent| clock::now().saturating_duration_since(sent.began);
        self.troubles != shard.troubles() || self.sent.front().is_some_and(|sent| waited(sent) >= patience)
    }

    /// Takes the replies that nobody waits for any more: what they admitted is given back.
    pub(super) async fn linger(mut self) {
        let until = clock::now() + LINGER;
        while !self.sent.is_empty() {
            let Ok(Ok(reply)) = timeout_at(until.into(), self.session.reply()).await else {
                break;
            };
            if self.answered(reply).is_err() {
                break;
            }
        }
        self.give_up_all();
    }

    /// Sends all that waits, refunds first.
    fn send_next(&mut self) {
        let now = clock::now();
        for call in self.next_calls(now) {
            self.send(call, now, false);
        }
    }

    /// All that waits, in as few calls as may be: one of refunds and one of requests, in a cluster one for each partition.
    fn next_calls(&self, now: Instant) -> Vec<Call> {
        let Together { debts, asks } = self.link.next(now, self.life);
        let askers: Vec<Asker> = asks.into_iter().map(Asker::from).collect();
        let (debts, askers) = if self.link.shard.settings.is_cluster() {
            let (asking, at_home): (Vec<Asker>, _) = askers.into_iter().partition(|asker| asker.asking);
            let mut groups = grouped(at_home, Asker::partition);
            groups.extend(asking.into_iter().map(|asker| vec![asker]));
            (
                grouped(debts, |debt| (debt.owed.name.partition(), debt.asking)),
                groups,
            )
        } else {
            (vec![debts], vec![askers])
        };
        let settles = debts.into_iter().filter(|debts| !debts.is_empty());
        let reserves = askers.into_iter().filter(|askers| !askers.is_empty());
        settles
            .map(Call::Settle)
            .chain(reserves.map(Call::Reserve))
            .collect()
    }

    fn send(&mut self, call: Call, began: Instant, whole: bool) {
        if call.is_asking() {
            self.send(Call::Asking, began, whole);
        }
        let shard = Arc::clone(&self.link.shard);
        let scripts = if whole { &*self.whole } else { &*shard.scripts };
        match &call {
            Call::Asking => self.session.say(&redis::cmd("ASKING")),
            Call::Reserve(askers) => {
                // The server must not charge who has been told by then that there is no decision.
                let first = askers.iter().map(|asker| asker.deadline).min().unwrap_or(began);
                let left = Micros::from(first.saturating_duration_since(clock::now()));
                let asks: Vec<&Ask> = askers.iter().map(|asker| &asker.ask).collect();
                let charges: usize = asks.iter().map(|ask| ask.len()).sum();
                shard
                    .meter
                    .charges
                    .observe(f64::from(u32::try_from(charges).unwrap_or(u32::MAX)));
                let deadline = shard.clock.now().plus(left);
                reserve_command(self.session.outbox(), &scripts.reserve, deadline, &asks);
            }
            Call::Settle(debts) => {
                let owed: Vec<&Owed> = debts.iter().map(|debt| &debt.owed).collect();
                settle_command(self.session.outbox(), &scripts.settle, &owed);
            }
        }
        self.sent.push_back(Sent {
            call,
            began,
            whole,
            late: false,
        });
    }

    /// Takes the reply to the oldest call.
    ///
    /// # Errors
    /// The connection is of no more use.
    fn answered(&mut self, reply: Reply) -> Result<(), Cause> {
        let Some(sent) = self.sent.pop_front() else {
            return Err(Cause::Odd);
        };
        match (sent.call, reply) {
            (Call::Reserve(askers), Ok(value)) => {
                let asks: Vec<&Ask> = askers.iter().map(|asker| &asker.ask).collect();
                match read_reserve(&value, &asks) {
                    Ok(ReserveReply::Decided { now, requests }) => {
                        self.decided(now, requests, askers, sent.began, sent.late);
                    }
                    Ok(ReserveReply::Late { now }) => self.came_late(now, askers),
                    Err(wrong) => {
                        self.unknown(askers);
                        return Err(wrong.into());
                    }
                }
                Ok(())
            }
            (Call::Settle(debts), Ok(value)) => match read_settle(&value) {
                Ok(now) => {
                    self.heard(now, sent.late);
                    Ok(())
                }
                Err(wrong) => {
                    self.lost(&debts);
                    Err(wrong.into())
                }
            },
            (Call::Asking, Ok(_)) => Ok(()),
            (call, Err(refused)) => {
                let again = refused.is_noscript() && !sent.whole && !sent.late;
                self.refused(call, refused, sent.began, again)
            }
        }
    }

    fn decided(
        &mut self,
        now: Micros,
        requests: Vec<Counted>,
        askers: Vec<Asker>,
        began: Instant,
        late: bool,
    ) {
        let meter = &self.link.shard.meter;
        meter
            .seconds
            .observe(clock::now().saturating_duration_since(began).as_secs_f64());
        if late { &meter.late } else { &meter.decided }.inc();
        self.heard(now, late);
        for (asker, counted) in askers.into_iter().zip(requests) {
            let decided = Decided {
                counted: Some(counted),
                now,
                life: self.life,
                asking: asker.asking,
                ask: asker.ask,
                link: Arc::clone(&self.link),
            };
            // Who has left, or was told that there is none, gets back what it was charged: the decision is dropped.
            if let Some(reply) = asker.reply {
                let _ = reply.send(Answer::Decided(Box::new(decided)));
            }
        }
    }

    /// The call came after its deadline by the server's clock, and changed nothing: that clock is known better now, and
    /// who has time left asks again.
    fn came_late(&mut self, now: Micros, askers: Vec<Asker>) {
        self.link.shard.meter.not_executed.inc();
        self.link.shard.learn(now);
        self.link
            .put_back(askers.into_iter().filter_map(Asker::waiting).collect());
    }

    /// The server answered with an error; the call is sent `again`, whole, if only its script is not known.
    fn refused(&mut self, call: Call, refused: Refused, began: Instant, again: bool) -> Result<(), Cause> {
        if again {
            self.send(call, began, true);
            return Ok(());
        }
        let call = match self.link.shard.settings.is_cluster() {
            true => match self.elsewhere(call, &refused, began) {
                Some(call) => call,
                None => return Ok(()),
            },
            false => call,
        };
        match call {
            Call::Asking => {}
            Call::Reserve(askers) if refused.is_before() => {
                self.link.shard.meter.not_executed.inc();
                tell_none(askers);
            }
            Call::Reserve(askers) => self.unknown(askers),
            // They are owed all the same, and made when the server is well.
            Call::Settle(debts) if refused.is_before() => self.link.owe(debts.into_iter()),
            Call::Settle(debts) => self.lost(&debts),
        }
        let stays = self.stays.is_some_and(|until| clock::now() < until);
        let ends = refused.is_of_connection() && !stays;
        let cause = Cause::from(refused);
        if ends {
            return Err(cause);
        }
        self.link.shard.failed(&cause);
        Ok(())
    }

    /// Tells where the keys are of a call that a server of a cluster did not execute for that. Gives the call back if it
    /// was refused for something else.
    fn elsewhere(&mut self, call: Call, refused: &Refused, began: Instant) -> Option<Call> {
        match Fate::of(call, refused, self.session.address()) {
            Fate::Other(call) => return Some(call),
            Fate::OneByOne(calls) => calls.into_iter().for_each(|call| self.send(call, began, false)),
            Fate::Apart(askers) => askers.into_iter().for_each(|asker| asker.tell(Answer::Apart)),
            Fate::Elsewhere(Call::Asking, _) => {}
            Fate::Elsewhere(Call::Reserve(askers), to) => {
                self.link.shard.meter.not_executed.inc();
                for asker in askers {
                    asker.tell(|ask| Answer::Elsewhere { ask, to: to.clone() });
                }
            }
            // The keys move with all that they know, and the server that names their new place still lives.
            Fate::Elsewhere(Call::Settle(debts), to) if to.once => self.link.shard.stray(Stray {
                to: to.address,
                debts,
            }),
            // Another server has taken over: it may have lost what this one charged.
            Fate::Elsewhere(Call::Settle(debts), _) => self.lost(&debts),
        }
        None
    }

    fn heard(&self, now: Micros, late: bool) {
        let shard = &self.link.shard;
        if !late {
            shard.learn(now);
            shard.succeeded();
        }
    }

    fn unknown(&self, askers: Vec<Asker>) {
        self.link.shard.meter.unknown.inc();
        tell_none(askers);
    }

    fn lost(&self, debts: &[Debt]) {
        self.link.shard.meter.refunds_lost.inc_by(debts.len() as u64);
    }

    /// Who has waited long enough goes on without an answer; a call that nobody waits for any more has failed.
    fn give_up(&mut self) {
        let shard = &self.link.shard;
        let (now, deadline) = (clock::now(), shard.settings.deadline);
        let mut silent = false;
        for sent in &mut self.sent {
            if sent.patience(deadline).is_none_or(|patience| patience > now) {
                continue;
            }
            if let Call::Reserve(askers) = &mut sent.call {
                let impatient = askers.iter_mut().filter(|asker| asker.deadline <= now);
                impatient.for_each(Asker::tell_none);
                if askers.iter().any(|asker| asker.reply.is_some()) {
                    continue;
                }
                shard.meter.unknown.inc();
            }
            sent.late = true;
            // Who was asked with the last of a deadline has not failed for that.
            silent |= now.saturating_duration_since(sent.began) >= deadline / 2;
        }
        // The calls of one write are one failure.
        if silent {
            shard.failed(&Cause::Silent(deadline));
        }
    }

    /// What was sent gets no reply any more. Says whether anybody waited for one.
    pub(super) fn give_up_all(&mut self) -> bool {
        let mut waited = false;
        for sent in std::mem::take(&mut self.sent) {
            waited |= !sent.late;
            match sent.call {
                Call::Reserve(askers) if !sent.late => self.unknown(askers),
                Call::Asking | Call::Reserve(_) => {}
                Call::Settle(debts) => self.lost(&debts),
            }
        }
        waited
    }
}
