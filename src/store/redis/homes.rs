//! Which server each partition is at home on.

use super::names::Partition;
use super::settings::Address;
use crate::identity::LimitKey;

/// Partitions to servers by rendezvous hashing: each partition is on the server that gives it the highest number, so that
/// a further server takes its share from all others and moves nothing between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes(Vec<usize>);

impl Homes {
    /// The homes of so many partitions on these servers, whose order does not matter.
    pub fn new(partitions: u16, servers: &[Address]) -> Self {
        let names: Vec<String> = servers.iter().map(Address::to_string).collect();
        let home = |partition: u16| {
            let numbers = names.iter().map(|name| number(name, partition));
            let best = numbers.enumerate().max_by_key(|(_, number)| *number);
            best.map_or(0, |(place, _)| place)
        };
        Self((0..partitions).map(home).collect())
    }

    /// A partition is at home on the server at this place from now on.
    pub(super) fn set(&mut self, Partition(partition): Partition, place: usize) {
        if let Some(home) = self.0.get_mut(usize::from(partition)) {
            *home = place;
        }
    }

    /// The place of a key's server in the list.
    pub fn of_key(&self, key: LimitKey) -> usize {
        self.of(Partition::of(
            key,
            u16::try_from(self.0.len()).unwrap_or(u16::MAX),
        ))
    }

    /// The first partition that is at home on the server at this place.
    pub(super) fn first_on(&self, place: usize) -> Option<Partition> {
        let first = self.0.iter().position(|home| *home == place)?;
        u16::try_from(first).ok().map(Partition)
    }

    /// The place of a partition's server in the list.
    pub(super) fn of(&self, Partition(partition): Partition) -> usize {
        self.0.get(usize::from(partition)).copied().unwrap_or(0)
    }
}

/// What a server gives a partition.
fn number(server: &str, partition: u16) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&partition.to_be_bytes());
    hasher.update(server.as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What tells one list of servers from another, whatever their order: a hash in hexadecimal.
pub(super) fn shards_hash(servers: &[Address]) -> String {
    let mut names: Vec<String> = servers.iter().map(Address::to_string).collect();
    names.sort_unstable();
    let hash = blake3::hash(names.join("\n").as_bytes()).to_hex();
    hash.get(..16).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Homes, shards_hash};
    use crate::identity::LimitKey;
    use crate::store::redis::names::Partition;
    use crate::store::redis::settings::Address;

    fn servers(count: u16) -> Vec<Address> {
        let server = |number| Address {
            host: "10.0.0.1".to_owned(),
            port: 7_000 + number,
            tls: false,
        };
        (0..count).map(server).collect()
    }

    #[test]
    fn a_further_server_takes_its_share_and_moves_nothing_else() {
        let before = Homes::new(4_096, &servers(3));
        let after = Homes::new(4_096, &servers(4));
        let mut moved = 0;
        for partition in (0..4_096).map(Partition) {
            if before.of(partition) != after.of(partition) {
                assert_eq!(after.of(partition), 3);
                moved += 1;
            }
        }
        assert!((900..1_150).contains(&moved), "{moved} of 4096");
    }

    #[test]
    fn a_key_is_where_its_partition_is() {
        let homes = Homes::new(256, &servers(5));
        for partition in 0..256 {
            let key = LimitKey(u128::from(partition + 256 * 7) << 64);
            assert_eq!(homes.of_key(key), homes.of(Partition(partition)));
        }
    }

    #[test]
    fn the_order_of_servers_does_not_matter() {
        let (list, mut other) = (servers(5), servers(5));
        other.reverse();
        let (homes, others) = (Homes::new(256, &list), Homes::new(256, &other));
        for partition in (0..256).map(Partition) {
            assert_eq!(list[homes.of(partition)], other[others.of(partition)]);
        }
        assert_eq!(shards_hash(&list), shards_hash(&other));
        assert_ne!(shards_hash(&list), shards_hash(&list[1..]));
    }
}
