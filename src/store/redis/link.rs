//! Where the decisions of one worker for one server wait for the next call, and what they are answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use super::call::{Ask, Debt, Owed};
use super::cause::Redirect;
use super::queue::{Queue, Together};
use super::recount::Counted;
use super::shard::Shard;
use crate::clock::Micros;

/// The decisions and refunds that wait for the next call.
pub(super) struct Link {
    pub(super) shard: Arc<Shard>,
    queue: Mutex<Waits>,
    filled: Notify,
}

struct Waits {
    calls: Queue<Waiting, Debt>,
    closed: bool,
    /// Whether nobody serves it any more.
    ended: bool,
}

/// A request that waits for its answer.
pub(super) struct Waiting {
    /// What it asks.
    pub(super) ask: Ask,
    /// When it goes on without an answer.
    pub(super) deadline: Instant,
    /// Whether its keys may be on their way to the server.
    pub(super) asking: bool,
    /// Where the answer goes.
    pub(super) reply: oneshot::Sender<Answer>,
}

/// How a question ended.
pub(super) enum Answer {
    /// It was decided.
    Decided(Box<Decided>),
    /// It was not, or nobody knows.
    Undecided,
    /// Another server has its keys.
    Elsewhere {
        /// The question.
        ask: Ask,
        /// Which.
        to: Redirect,
    },
    /// Some of its keys are here, some are on their way to another server: no call may name them together.
    Apart(Ask),
}

/// A request that was decided. Unless it is [taken](Self::take), because whoever asked has left or no longer waits, what
/// was charged is given back.
pub(super) struct Decided {
    /// `None` once taken.
    pub(super) counted: Option<Counted>,
    /// The server's clock.
    pub(super) now: Micros,
    /// The server's life.
    pub(super) life: u32,
    /// Whether its keys may be on their way to the server.
    pub(super) asking: bool,
    /// What was asked.
    pub(super) ask: Ask,
    /// Where it was.
    pub(super) link: Arc<Link>,
}

/// An answer that is to come.
pub(super) struct Pending {
    answer: Option<oneshot::Receiver<Answer>>,
    shard: Arc<Shard>,
}

/// Most refunds that wait: more than one worker's requests in flight. Those beyond are lost.
const DEBTS: usize = 100_000;

impl Link {
    /// To this server, with nothing waiting.
    pub(super) fn new(shard: Arc<Shard>) -> Self {
        Self {
            shard,
            queue: Mutex::new(Waits {
                calls: Queue::new(|waiting| waiting.ask.len()),
                closed: false,
                ended: false,
            }),
            filled: Notify::new(),
        }
    }

    /// Puts a question; the answer comes by `deadline`, or a little later to say that there is none.
    ///
    /// # Errors
    /// The link is closed: the question comes back.
    pub(super) fn ask(&self, ask: Ask, deadline: Instant, asking: bool) -> Result<Pending, Box<Ask>> {
        let pending = |answer| Pending {
            answer,
            shard: Arc::clone(&self.shard),
        };
        if self.shard.is_in_trouble() {
            return Ok(pending(None));
        }
        let (reply, answer) = oneshot::channel();
        let mut queue = self.queue();
        if queue.closed {
            return Err(Box::new(ask));
        }
        queue.calls.ask(Waiting {
            ask,
            deadline,
            asking,
            reply,
        });
        drop(queue);
        self.filled.notify_one();
        Ok(pending(Some(answer)))
    }

    /// Takes charges to give back with the next call.
    pub(super) fn owe(&self, debts: impl Iterator<Item = Debt>) {
        let mut lost = 0;
        let mut queue = self.queue();
        for debt in debts {
            if queue.calls.debts() < DEBTS && !queue.ended {
                queue.calls.owe(debt);
            } else {
                lost += 1;
            }
        }
        drop(queue);
        if lost > 0 {
            self.shard.meter.refunds_lost.inc_by(lost);
        }
        self.filled.notify_one();
    }

    /// Waits until there is something to send, and somebody to send it to; `false` if there never will be.
    pub(super) async fn filled(&self) -> bool {
        let mut trouble = self.shard.trouble.subscribe();
        loop {
            let in_trouble = *trouble.borrow_and_update();
            {
                let queue = self.queue();
                if queue.calls.first().is_some() || !(queue.calls.debts() == 0 || in_trouble) {
                    return true;
                }
                if queue.closed {
                    return false;
                }
            }
            tokio::select! {
                () = self.filled.notified() => {}
                _ = trouble.changed() => {}
            }
        }
    }

    /// Until when the oldest question waits.
    pub(super) fn patience(&self) -> Option<Instant> {
        self.queue().calls.first().map(|waiting| waiting.deadline)
    }

    /// Takes what leaves with the next call. Questions whose askers have left are dropped, those whose time is over are told
    /// so; refunds for another life of the server than this one are lost with it.
    pub(super) fn next(&self, now: Instant, life: u32) -> Together<Waiting, Debt> {
        let mut lost = 0;
        let next = self.queue().calls.next(
            |waiting| {
                if waiting.reply.is_closed() {
                    return None;
                }
                if waiting.deadline <= now {
                    let _ = waiting.reply.send(Answer::Undecided);
                    return None;
                }
                Some(waiting)
            },
            |debt| {
                let is_owed = debt.life == life;
                lost += u64::from(!is_owed);
                is_owed.then_some(debt)
            },
        );
        if lost > 0 {
            self.shard.meter.refunds_lost.inc_by(lost);
        }
        next
    }

    /// Puts questions back that were not decided, ahead of the others.
    pub(super) fn put_back(&self, asks: Vec<Waiting>) {
        self.queue().calls.put_back(asks);
    }

    /// Tells all who wait that there is no decision.
    pub(super) fn refuse(&self) {
        let asks = self.queue().calls.take_asks();
        for waiting in asks {
            let _ = waiting.reply.send(Answer::Undecided);
        }
    }

    /// Takes no more questions; what waits is still sent.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.filled.notify_one();
    }

    /// Somebody serves it.
    pub(super) fn begin(&self) {
        self.queue().ended = false;
    }

    /// Nobody serves it any more: what is still owed is lost.
    pub(super) fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        let lost = queue.calls.take_debts().len();
        drop(queue);
        self.shard.meter.refunds_lost.inc_by(lost as u64);
    }

    /// Whether it takes no more questions.
    pub(super) fn is_closed(&self) -> bool {
        self.queue().closed
    }

    /// Takes all refunds that wait.
    pub(super) fn take_debts(&self) -> VecDeque<Debt> {
        self.queue().calls.take_debts()
    }

    fn queue(&self) -> MutexGuard<'_, Waits> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Who was asked.
    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// The answer.
    pub(super) async fn answer(self) -> Answer {
        let answer = match self.answer {
            Some(answer) => answer.await.unwrap_or(Answer::Undecided),
            None => Answer::Undecided,
        };
        if matches!(answer, Answer::Undecided) {
            self.shard.missed();
        }
        answer
    }
}

impl Decided {
    /// Whether the request has room.
    pub(super) fn admitted(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| counted.admitted)
    }

    /// What was decided, for good.
    pub(super) fn take(mut self) -> Option<Counted> {
        self.counted.take()
    }
}

impl Drop for Decided {
    fn drop(&mut self) {
        let Some(counted) = self.counted.take().filter(|counted| counted.admitted) else {
            return;
        };
        let (life, asking) = (self.life, self.asking);
        let charged = self.ask.drain(..).zip(counted.verdicts);
        self.link.owe(charged.filter_map(|(asked, verdict)| {
            let owed = Owed {
                name: asked.name,
                policy: asked.policy,
                receipt: verdict.receipt?,
            };
            Some(Debt { owed, life, asking })
        }));
    }
}
