//! The fixed-width name of one limiter's state for one caller.

use std::fmt;

use smallvec::SmallVec;

/// The key of one limiter for one caller: 128 bits of a keyed BLAKE3 hash, which nobody can forge who chooses the text
/// but does not know the secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitKey(pub u128);

impl fmt::Debug for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The secret that keys are hashed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Derives the secret from what an operator configured, so that all who know the text make the same keys.
    pub fn from_text(text: &str) -> Self {
        Self(blake3::derive_key("tollgate limiter keys v1", text.as_bytes()))
    }

    /// A secret of this process alone.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl Secret {
    /// The secret that [`expose`](Self::expose) gave.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The secret itself: for a file that nobody else may read.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// What tells this secret from others, and gives nothing of it away.
    pub fn id(&self) -> [u8; 32] {
        blake3::derive_key("tollgate limiter secret id v1", &self.0)
    }
}

/// Builds a [`LimitKey`] from length-prefixed parts: no part can imitate another or the border between two.
#[derive(Clone, Debug)]
pub struct KeyBuilder(SmallVec<[u8; 128]>);

impl KeyBuilder {
    /// Starts the keys of the limiter that is named by `rule` and `fingerprint`; clone it for each caller.
    pub fn new(rule: &str, fingerprint: &str) -> Self {
        let mut name = Self(SmallVec::new());
        name.part(0, rule.as_bytes());
        name.part(0, fingerprint.as_bytes());
        let name = blake3::hash(&name.0);
        Self(SmallVec::from_slice(&name.as_bytes()[..16]))
    }

    /// Adds a part that is there; `alternative` says which of the part's sources gave it.
    pub fn part(&mut self, alternative: u8, value: &[u8]) {
        self.0.extend_from_slice(&[1, alternative]);
        self.0.extend_from_slice(&(value.len() as u64).to_be_bytes());
        self.0.extend_from_slice(value);
    }

    /// Adds a part that the request does not have: a value of its own, unlike any text.
    pub fn absent(&mut self) {
        self.0.push(0);
    }

    /// Adds the mark of a key that belongs to no caller.
    pub fn nobody(&mut self) {
        self.0.push(2);
    }

    /// The key.
    pub fn finish(&self, secret: &Secret) -> LimitKey {
        let hash = blake3::keyed_hash(&secret.0, &self.0);
        let (first, _) = hash.as_bytes().split_at(16);
        LimitKey(first.iter().fold(0, |key, byte| key << 8 | u128::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(build: impl FnOnce(&mut KeyBuilder)) -> LimitKey {
        let mut builder = KeyBuilder::new("rule", "fixed-window");
        build(&mut builder);
        builder.finish(&Secret::from_text("s"))
    }

    #[test]
    fn no_part_imitates_another() {
        let keys = [
            key(|k| (k.part(0, b"a:b"), k.part(0, b"c")).0),
            key(|k| (k.part(0, b"a"), k.part(0, b"b:c")).0),
            key(|k| (k.part(0, b""), k.part(0, b"a:bc")).0),
            key(|k| (k.part(0, b"a:bc"), k.part(0, b"")).0),
            key(|k| (k.part(0, b"a:bc"), k.absent()).0),
            key(|k| (k.absent(), k.part(0, b"a:bc")).1),
            key(|k| k.part(0, b"a:bc")),
            key(|k| k.part(1, b"a:bc")),
            key(KeyBuilder::absent),
            key(KeyBuilder::nobody),
            key(|_| ()),
            key(|k| k.part(0, b"")),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert!(!keys[i + 1..].contains(one), "{i}");
        }
    }

    #[test]
    fn rules_fingerprints_and_secrets_have_keys_of_their_own() {
        let secret = Secret::from_text("s");
        let one = KeyBuilder::new("a", "bc").finish(&secret);
        assert_ne!(one, KeyBuilder::new("ab", "c").finish(&secret));
        assert_ne!(one, KeyBuilder::new("a", "bc").finish(&Secret::from_text("t")));
        assert_eq!(one, KeyBuilder::new("a", "bc").finish(&Secret::from_text("s")));
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Secret::from_text("hunter2")), "Secret(…)");
    }
}
