//! Which servers a cluster has, and which of them has which keys.

use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};
use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::cause::Cause;
use super::names::Partition;
use super::session::Session;
use super::settings::{Address, Settings};

/// What a server of a cluster says of all of them.
pub(super) struct Survey {
    /// From the first slot to the last: the primary that has them.
    ranges: Vec<(u16, u16, Address)>,
    /// Servers that may know more later.
    pub(super) replicas: Vec<Address>,
}

/// How long one server may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// How many servers are asked side by side.
const AT_A_TIME: usize = 3;
/// The slots of a cluster.
const SLOTS: u16 = 16_384;
/// What a cluster hashes with.
const HASH: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

impl Survey {
    /// The primaries, each once.
    pub(super) fn primaries(&self) -> Vec<&Address> {
        let mut primaries: Vec<&Address> = Vec::new();
        for (_, _, primary) in &self.ranges {
            if !primaries.contains(&primary) {
                primaries.push(primary);
            }
        }
        primaries
    }

    /// The primary that a partition is on, if it is on any.
    pub(super) fn home(&self, partition: Partition) -> Option<&Address> {
        let slot = slot(partition);
        let range = |(first, last, _): &&(u16, u16, Address)| (*first..=*last).contains(&slot);
        self.ranges.iter().find(range).map(|(_, _, primary)| primary)
    }

    /// What the reply to `CLUSTER SLOTS` says, from a server that is reached at `here`.
    fn read(reply: &Value, here: &Address) -> Result<Self, Cause> {
        let mut survey = Self {
            ranges: Vec::new(),
            replicas: Vec::new(),
        };
        for range in array(reply)? {
            let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = array(range)? else {
                return Err(Cause::Odd);
            };
            let slot = |slot: &i64| u16::try_from(*slot).map_err(|_| Cause::Odd);
            let primary = server(primary, here)?;
            survey.ranges.push((slot(first)?, slot(last)?, primary));
            for replica in replicas {
                let replica = server(replica, here)?;
                if !survey.replicas.contains(&replica) {
                    survey.replicas.push(replica);
                }
            }
        }
        Ok(survey)
    }
}

/// Asks the servers of a cluster, a few at a time until one answers.
///
/// # Errors
/// None does.
pub(super) async fn survey(informants: &[Address], settings: &Settings) -> Result<Survey, Cause> {
    let mut last = Cause::Silent(ANSWER);
    for few in informants.chunks(AT_A_TIME) {
        let mut asked = JoinSet::new();
        for address in few {
            let (address, settings) = (address.clone(), settings.clone());
            asked.spawn(async move { timeout(ANSWER, ask(&address, &settings)).await });
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(Ok(survey))) => return Ok(survey),
                Ok(Ok(Err(cause))) => last = cause,
                _ => last = Cause::Silent(ANSWER),
            }
        }
    }
    Err(last)
}

async fn ask(address: &Address, settings: &Settings) -> Result<Survey, Cause> {
    let mut session = Session::reach(address, settings).await?;
    session.log_in(settings).await?;
    session.say(redis::cmd("CLUSTER").arg("SLOTS"));
    match session.reply().await? {
        Ok(reply) => Survey::read(&reply, address),
        Err(refused) if refused.is_no_cluster() => Err(Cause::Unfit(
            "it belongs to no cluster: list it under `shards`".to_owned(),
        )),
        Err(refused) => Err(refused.into()),
    }
}

/// The slot that the keys of a partition are in: that of the digits between the braces of their names.
fn slot(Partition(partition): Partition) -> u16 {
    HASH.checksum(itoa::Buffer::new().format(partition).as_bytes()) % SLOTS
}

fn array(value: &Value) -> Result<&[Value], Cause> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(Cause::Odd),
    }
}

fn server(value: &Value, here: &Address) -> Result<Address, Cause> {
    let [host, Value::Int(port), ..] = array(value)? else {
        return Err(Cause::Odd);
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).map_err(|_| Cause::Odd)?,
        Value::Nil => "",
        _ => return Err(Cause::Odd),
    };
    let port = u16::try_from(*port).map_err(|_| Cause::Odd)?;
    Ok(here.neighbour(host, port))
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{Survey, slot};
    use crate::store::redis::names::Partition;
    use crate::store::redis::settings::Address;

    fn address(host: &str, port: u16) -> Address {
        Address {
            host: host.to_owned(),
            port,
            tls: false,
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id")])
    }

    #[test]
    fn slots_are_those_that_the_cluster_counts() {
        // As `CLUSTER KEYSLOT {0}` and so on say.
        for (partition, expected) in [(0, 13_907), (1, 9_842), (9, 10_106), (10, 247), (63, 10_499)] {
            assert_eq!(slot(Partition(partition)), expected, "{partition}");
        }
    }

    #[test]
    fn a_server_that_names_no_host_means_its_own() {
        let reply = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(9_999),
                node(text(""), 7_001),
                node(text("10.0.0.9"), 7_004),
            ]),
            Value::Array(vec![
                Value::Int(10_000),
                Value::Int(16_383),
                node(Value::Nil, 7_002),
            ]),
        ]);
        let survey = Survey::read(&reply, &address("10.0.0.1", 7_000)).unwrap();
        assert_eq!(
            survey.primaries(),
            [&address("10.0.0.1", 7_001), &address("10.0.0.1", 7_002)]
        );
        assert_eq!(survey.replicas, [address("10.0.0.9", 7_004)]);
        assert_eq!(survey.home(Partition(1)), Some(&address("10.0.0.1", 7_001)));
        assert_eq!(survey.home(Partition(0)), Some(&address("10.0.0.1", 7_002)));
    }

    #[test]
    fn what_is_no_list_of_slots_is_refused() {
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![
                Value::Int(0),
                Value::Int(70_000),
                node(text(""), 1),
            ])]),
            Value::Array(vec![Value::Array(vec![
                Value::Int(0),
                Value::Int(1),
                node(text(""), 70_000),
            ])]),
        ] {
            assert!(Survey::read(&reply, &address("h", 1)).is_err(), "{reply:?}");
        }
    }
}
