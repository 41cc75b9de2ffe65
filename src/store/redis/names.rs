//! The names of keys in Redis.

use std::fmt;

use smallvec::SmallVec;

use crate::identity::LimitKey;

/// What the names of keys are made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    prefix: String,
    partitions: u16,
}

/// A part of all keys, which are on one server together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partition(pub(super) u16);

/// The name of one key: `PREFIX:{PARTITION}:RULE:FINGERPRINT:HASH`. The partition alone is what a cluster hashes, so that
/// nobody who chooses a text chooses a slot.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Name {
    bytes: SmallVec<[u8; 96]>,
    partition: Partition,
}

const HEX: [u8; 16] = *b"0123456789abcdef";

impl Names {
    /// Names under `prefix`, with at least one partition.
    pub(super) fn new(prefix: &str, partitions: u16) -> Self {
        Self {
            prefix: prefix.to_owned(),
            partitions: partitions.max(1),
        }
    }

    /// The name of a caller's key with a rule, as the rule is [labelled](crate::rules::RuleTable::label).
    pub(super) fn name(&self, label: &str, key: LimitKey) -> Name {
        let partition = self.partition(key);
        let mut name = Name {
            bytes: SmallVec::from_slice(self.prefix.as_bytes()),
            partition,
        };
        name.push(b":{");
        name.push(itoa::Buffer::new().format(partition.0).as_bytes());
        name.push(b"}:");
        name.push(label.as_bytes());
        name.push(b":");
        for byte in key.0.to_be_bytes() {
            name.push(&[byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
        }
        name
    }

    /// The key of this number in a partition.
    pub(super) fn key(&self, Partition(partition): Partition, number: u64) -> LimitKey {
        LimitKey(u128::from(partition) << 64 | u128::from(number))
    }

    /// The partition that a key belongs to.
    pub(super) fn partition(&self, key: LimitKey) -> Partition {
        Partition::of(key, self.partitions)
    }
}

impl Partition {
    /// The one of so many, at least one, that a key belongs to.
    pub(super) fn of(LimitKey(key): LimitKey, partitions: u16) -> Self {
        let high = u64::try_from(key >> 64).unwrap_or_default();
        Self(u16::try_from(high % u64::from(partitions.max(1))).unwrap_or_default())
    }
}

impl Name {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The bytes of the name.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The part of all keys that it is in.
    pub(super) fn partition(&self) -> Partition {
        self.partition
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        let names = Names::new("tollgate", 256);
        let key = LimitKey(0x0123_4567_89ab_cdef_0000_0000_0000_00ff);
        assert_eq!(
            format!("{:?}", names.name("per-user:5f3a9c01", key)),
            "tollgate:{239}:per-user:5f3a9c01:0123456789abcdef00000000000000ff"
        );
    }

    #[test]
    fn keys_are_spread_over_all_partitions() {
        let names = Names::new("t", 7);
        let mut seen = [0; 7];
        for key in 0..7_000_u128 {
            seen[usize::from(names.partition(LimitKey(key << 64 | 5)).0)] += 1;
        }
        assert_eq!(names.partition(names.key(Partition(6), u64::MAX)), Partition(6));
        assert_eq!(seen, [1_000; 7]);
    }
}
