//! The fixed-width name of one limiter's state for one caller.

use std::cell::RefCell;
use std::fmt;

use smallvec::SmallVec;
use thread_local::ThreadLocal;

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
#[derive(Debug)]
pub struct KeyBuilder(SmallVec<[u8; 128]>);

impl Clone for KeyBuilder {
    /// As one piece: the derived way goes byte by byte.
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

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
        let [a, b, c, d, e, f, g, h] = (value.len() as u64).to_be_bytes();
        self.0
            .extend_from_slice(&[1, alternative, a, b, c, d, e, f, g, h]);
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

    /// The key, and the same at once for who asks again: to hash costs more than the rest of a decision.
    pub fn finish_by(&self, secret: &Secret, recent: &Recent) -> LimitKey {
        recent.key(&self.0, || self.finish(secret))
    }

    /// The key.
    pub fn finish(&self, secret: &Secret) -> LimitKey {
        let hash = blake3::keyed_hash(&secret.0, &self.0);
        let (first, _) = hash.as_bytes().split_at(16);
        LimitKey(first.iter().fold(0, |key, byte| key << 8 | u128::from(*byte)))
    }
}

/// The keys that a thread has made last, of one secret: callers ask many times in a row.
#[derive(Debug, Default)]
pub struct Recent(ThreadLocal<RefCell<Vec<Made>>>);

/// What a key was made of, and the key.
type Made = (SmallVec<[u8; 64]>, LimitKey);

impl Recent {
    /// Keys that are remembered: 24 KB for each thread.
    const MOST: usize = 256;

    /// The key of `text`, which `make` makes if it is not known.
    fn key(&self, text: &[u8], make: impl FnOnce() -> LimitKey) -> LimitKey {
        let mut recent = self.0.get_or_default().borrow_mut();
        let place = Self::place(text);
        match recent.get(place) {
            Some((known, key)) if **known == *text => return *key,
            Some(_) => {}
            None => recent.resize(Self::MOST, (SmallVec::new(), LimitKey(0))),
        }
        let key = make();
        // A longer one is not worth its memory.
        if text.len() <= 64
            && let Some(made) = recent.get_mut(place)
        {
            *made = (SmallVec::from_slice(text), key);
        }
        key
    }

    /// The one place where a text may be. Who chooses texts for the same place gains nothing but the cost of a hash.
    fn place(text: &[u8]) -> usize {
        let mixed = text.rchunks(8).fold(0_u64, |mixed, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (mixed.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        usize::from((mixed >> 56) as u8)
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
    fn what_is_remembered_is_what_would_be_made() {
        let (secret, recent) = (Secret::from_text("s"), Recent::default());
        for _ in 0..2 {
            for caller in 0..2_000_u32 {
                let mut builder = KeyBuilder::new("rule", "fixed-window");
                builder.part(0, &caller.to_be_bytes());
                builder.part(0, &vec![7; caller as usize % 90]);
                assert_eq!(
                    builder.finish_by(&secret, &recent),
                    builder.finish(&secret),
                    "{caller}"
                );
            }
        }
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
