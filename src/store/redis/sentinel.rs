//! Where the primary is that Sentinels watch over.

use std::collections::VecDeque;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::cause::Cause;
use super::session::Session;
use super::settings::{Address, Settings};

/// The Sentinels that are asked, with a connection to each that answered last.
pub(super) struct Sentinels {
    master: String,
    /// The newest that was said, which is believed.
    newest: Option<(u64, Address)>,
    /// How often in a row all that was said was older.
    older: u32,
    known: VecDeque<(Address, Option<Session>)>,
}

/// What a Sentinel says.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    /// It counts the changes of the primary: of two answers, the one with more of them is newer.
    epoch: u64,
    primary: Address,
    /// The other Sentinels of this primary.
    others: Vec<Address>,
}

/// How long a Sentinel may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// So many rounds of words that are older than the newest.
const FORGOTTEN: u32 = 30;
/// Most Sentinels that are asked.
const MOST: usize = 32;

impl Sentinels {
    /// These, until they name others.
    pub(super) fn new(master: &str, nodes: &[Address]) -> Self {
        Self {
            master: master.to_owned(),
            newest: None,
            older: 0,
            known: nodes.iter().cloned().map(|node| (node, None)).collect(),
        }
    }

    /// The primary by the newest of what all of them say, side by side.
    ///
    /// # Errors
    /// None of them names it.
    pub(super) async fn primary(&mut self, settings: &Settings) -> Result<Address, Cause> {
        let mut asked = JoinSet::new();
        for (address, session) in self.known.drain(..) {
            let (settings, master) = (settings.clone(), self.master.clone());
            asked.spawn(async move {
                let word = timeout(ANSWER, ask(&address, session, &settings, &master)).await;
                (address, word.unwrap_or(Err(Cause::Silent(ANSWER))))
            });
        }
        let (mut newest, mut cause) = (None::<Word>, Cause::Unknown);
        let mut others = Vec::new();
        while let Some(Ok((address, word))) = asked.join_next().await {
            match word {
                Ok((session, word)) => {
                    self.known.push_front((address, Some(session)));
                    others.extend(word.others.iter().cloned());
                    if newest.as_ref().is_none_or(|newest| newest.epoch < word.epoch) {
                        newest = Some(word);
                    }
                }
                Err(why) => {
                    self.known.push_back((address, None));
                    cause = why;
                }
            }
        }
        for other in others {
            if self.known.len() < MOST && self.known.iter().all(|(known, _)| *known != other) {
                self.known.push_back((other, None));
            }
        }
        newest.map(|word| self.believe(word)).ok_or(cause)
    }

    /// What is believed after the newest of what was said now. An older word is that of a Sentinel which was cut off from
    /// the others, unless it stays the only one: somebody has made all of them forget.
    fn believe(&mut self, Word { epoch, primary, .. }: Word) -> Address {
        let believed = match self.newest.take() {
            Some((known, believed)) if epoch == known => (known, believed),
            Some((known, believed)) if epoch < known && self.older < FORGOTTEN => {
                self.older = self.older.saturating_add(1);
                self.newest = Some((known, believed.clone()));
                return believed;
            }
            _ => (epoch, primary),
        };
        self.older = 0;
        self.newest.insert(believed).1.clone()
    }
}

async fn ask(
    address: &Address,
    session: Option<Session>,
    settings: &Settings,
    master: &str,
) -> Result<(Session, Word), Cause> {
    let mut session = match session {
        Some(session) => session,
        None => Session::reach(address, settings).await?,
    };
    let question = |about: &str| redis::cmd("SENTINEL").arg(about).arg(master).to_owned();
    session.say(&question("MASTER"));
    let reply = match session.reply().await? {
        // The password may be that of the servers alone: Sentinels that want one say so.
        Err(refused) if refused.wants_login() => {
            session.log_in(settings).await?;
            session.say(&question("MASTER"));
            session.reply().await?
        }
        reply => reply,
    };
    let about = match reply {
        Ok(about) => about,
        Err(refused) if refused.is_no_master() => {
            return Err(Cause::Unfit(format!(
                "the Sentinel {address} knows no master {master:?}: set store.sentinel.master to what Sentinels call it"
            )));
        }
        Err(refused) => return Err(refused.into()),
    };
    // While others have still to follow the new primary, its own Sentinels tell of the old one there, but not here.
    session.say(&question("GET-MASTER-ADDR-BY-NAME"));
    session.say(&question("SENTINELS"));
    let primary = session.reply().await??;
    let others = session.reply().await??;
    let word = Word {
        epoch: number(&about, "config-epoch")?,
        primary: listening(&primary, address)?,
        others: match &others {
            Value::Array(others) => others
                .iter()
                .filter_map(|other| server(other, address).ok())
                .collect(),
            _ => return Err(Cause::Odd),
        },
    };
    Ok((session, word))
}

/// Where a server listens, as a list of its host and port.
fn listening(value: &Value, here: &Address) -> Result<Address, Cause> {
    let Value::Array(parts) = value else {
        return Err(Cause::Odd);
    };
    let text = |value: &Value| match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok().map(str::to_owned),
        _ => None,
    };
    match parts.as_slice() {
        [host, port] => {
            let port = text(port).and_then(|port| port.parse().ok());
            let (host, port) = text(host).zip(port).ok_or(Cause::Odd)?;
            Ok(here.neighbour(&host, port))
        }
        _ => Err(Cause::Odd),
    }
}

/// Where the server listens that these fields tell of.
fn server(fields: &Value, here: &Address) -> Result<Address, Cause> {
    let port = u16::try_from(number(fields, "port")?).map_err(|_| Cause::Odd)?;
    Ok(here.neighbour(field(fields, "ip")?, port))
}

fn number(fields: &Value, name: &str) -> Result<u64, Cause> {
    field(fields, name)?.parse().map_err(|_| Cause::Odd)
}

/// The value after a name, in a list of one after the other.
fn field<'a>(fields: &'a Value, name: &str) -> Result<&'a str, Cause> {
    let Value::Array(fields) = fields else {
        return Err(Cause::Odd);
    };
    let text = |value: &'a Value| match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    };
    let mut pairs = fields.chunks_exact(2);
    let found = pairs.find_map(|pair| match pair {
        [key, value] if text(key) == Some(name) => text(value),
        _ => None,
    });
    found.ok_or(Cause::Odd)
}

#[cfg(test)]
mod tests {
    use super::{FORGOTTEN, Sentinels, Word};
    use crate::store::redis::settings::Address;

    fn address(port: u16) -> Address {
        Address {
            host: "h".to_owned(),
            port,
            tls: false,
        }
    }

    #[test]
    fn an_older_word_is_not_believed_unless_it_stays_the_only_one() {
        let mut sentinels = Sentinels::new("m", &[]);
        let mut believe = |epoch, port| {
            let word = Word {
                epoch,
                primary: address(port),
                others: Vec::new(),
            };
            sentinels.believe(word).port
        };
        assert_eq!(believe(3, 1), 1);
        assert_eq!(believe(3, 2), 1, "of one epoch, the first counts");
        assert_eq!(believe(4, 2), 2);
        for _ in 0..FORGOTTEN - 1 {
            assert_eq!(believe(3, 1), 2);
        }
        assert_eq!(believe(4, 2), 2);
        for _ in 0..FORGOTTEN {
            assert_eq!(believe(0, 5), 2);
        }
        assert_eq!(believe(0, 5), 5);
    }
}
