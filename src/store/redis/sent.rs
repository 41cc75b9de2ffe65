//! What is under way over a connection: calls that have no reply yet, and who waits for them.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::call::{Ask, Debt};
use super::link::{Answer, Waiting};
use super::names::{Name, Partition};

/// A call that has no reply yet.
pub(super) struct Sent {
    pub(super) call: Call,
    pub(super) began: Instant,
    /// Whether it was sent whole, for its script was not known.
    pub(super) whole: bool,
    /// Whether nobody waits for it any more.
    pub(super) late: bool,
}

/// What is called.
pub(super) enum Call {
    /// The next call is to be answered also for keys that are only on their way to the server.
    Asking,
    /// Decide these requests.
    Reserve(Vec<Asker>),
    /// Give these charges back.
    Settle(Vec<Debt>),
}

/// A request in a call.
pub(super) struct Asker {
    pub(super) ask: Ask,
    pub(super) deadline: Instant,
    /// Whether its keys may be on their way to the server.
    pub(super) asking: bool,
    /// `None` once it was told that there is no decision.
    pub(super) reply: Option<oneshot::Sender<Answer>>,
}

impl From<Waiting> for Asker {
    fn from(waiting: Waiting) -> Self {
        Self {
            ask: waiting.ask,
            deadline: waiting.deadline,
            asking: waiting.asking,
            reply: Some(waiting.reply),
        }
    }
}

impl Asker {
    /// Tells it that there is no decision, unless it was told before.
    pub(super) fn tell_none(&mut self) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(Answer::Undecided);
        }
    }

    /// Tells it what becomes of what it asked, unless it waits no more.
    pub(super) fn tell(self, answer: impl FnOnce(Ask) -> Answer) {
        if let Some(reply) = self.reply {
            let _ = reply.send(answer(self.ask));
        }
    }

    /// As one that waits, if it still does.
    pub(super) fn waiting(self) -> Option<Waiting> {
        Some(Waiting {
            ask: self.ask,
            deadline: self.deadline,
            asking: self.asking,
            reply: self.reply?,
        })
    }

    /// Where its keys are.
    pub(super) fn partition(&self) -> Option<Partition> {
        self.ask.first().map(|asked| asked.name.partition())
    }
}

impl Sent {
    /// When somebody who waits for it has waited long enough.
    pub(super) fn patience(&self, deadline: Duration) -> Option<Instant> {
        match &self.call {
            _ if self.late => None,
            Call::Reserve(askers) => {
                let waiting = askers.iter().filter(|asker| asker.reply.is_some());
                waiting.map(|asker| asker.deadline).min()
            }
            Call::Asking | Call::Settle(_) => Some(self.began + deadline),
        }
    }
}

impl Call {
    /// Whether keys in it may be on their way to the server.
    pub(super) fn is_asking(&self) -> bool {
        match self {
            Self::Asking => false,
            Self::Reserve(askers) => askers.iter().any(|asker| asker.asking),
            Self::Settle(debts) => debts.iter().any(|debt| debt.asking),
        }
    }

    /// Whether all that is in it is about the same key.
    pub(super) fn is_of_one_key(&self) -> bool {
        let is_one = |mut names: &mut dyn Iterator<Item = &Name>| {
            let first = names.next();
            Iterator::all(&mut names, |name| Some(name) == first)
        };
        match self {
            Self::Asking => true,
            Self::Reserve(askers) => {
                let asked = askers.iter().flat_map(|asker| &asker.ask);
                is_one(&mut asked.map(|asked| &asked.name))
            }
            Self::Settle(debts) => is_one(&mut debts.iter().map(|debt| &debt.owed.name)),
        }
    }

    /// The same in calls of one request or one refund each.
    ///
    /// # Errors
    /// It is one already.
    pub(super) fn one_by_one(self) -> Result<Vec<Self>, Self> {
        match self {
            Self::Reserve(askers) if askers.len() > 1 => Ok(askers
                .into_iter()
                .map(|asker| Self::Reserve(vec![asker]))
                .collect()),
            Self::Settle(debts) if debts.len() > 1 => {
                Ok(debts.into_iter().map(|debt| Self::Settle(vec![debt])).collect())
            }
            one => Err(one),
        }
    }
}

/// Tells all of them that there is no decision.
pub(super) fn tell_none(askers: Vec<Asker>) {
    for mut asker in askers {
        asker.tell_none();
    }
}

/// These in the order they came, those of each group together.
pub(super) fn grouped<T, G: PartialEq>(items: Vec<T>, group: impl Fn(&T) -> G) -> Vec<Vec<T>> {
    let mut groups: Vec<(G, Vec<T>)> = Vec::new();
    for item in items {
        let its = group(&item);
        match groups.iter_mut().find(|(known, _)| *known == its) {
            Some((_, members)) => members.push(item),
            None => groups.push((its, vec![item])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}
