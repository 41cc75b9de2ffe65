//! What becomes of a call that a server of a cluster does not execute because of where its keys are.

use super::cause::{Redirect, Refused};
use super::sent::{Asker, Call};
use super::settings::Address;

/// What becomes of a call.
pub(super) enum Fate {
    /// Where its keys are is not why it was refused.
    Other(Call),
    /// It is called again in these parts.
    OneByOne(Vec<Call>),
    /// No server has all keys of any of these requests.
    Apart(Vec<Asker>),
    /// Another server is to be asked.
    Elsewhere(Call, Redirect),
}

impl Fate {
    /// What becomes of a call that the server at `here` refused so.
    pub(super) fn of(call: Call, refused: &Refused, here: &Address) -> Self {
        let to = refused.redirect(here);
        // Older servers answer ASK where only some of the keys have left; of one key alone it is always true.
        let is_apart = to.as_ref().is_some_and(|to| to.once) && !call.is_of_one_key();
        if is_apart || refused.is_tryagain() {
            return match call.one_by_one() {
                Ok(calls) => Self::OneByOne(calls),
                Err(Call::Reserve(askers)) if askers.iter().all(|asker| asker.ask.len() > 1) => {
                    Self::Apart(askers)
                }
                Err(call) => Self::Other(call),
            };
        }
        match to {
            Some(to) => Self::Elsewhere(call, to),
            None => Self::Other(call),
        }
    }
}
