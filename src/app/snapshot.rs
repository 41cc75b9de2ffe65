//! The store's snapshot: read at the start, written when the gateway has drained.

use crate::clock::{self, Clock};
use crate::config::Settings;
use crate::identity::Secret;
use crate::store::snapshot::{self, Hashed, SnapshotError};
use crate::store::{Memory, memory};

/// The store to start with, and the secret of this process: from the snapshot, or else empty and new.
///
/// # Errors
/// The operating system has no randomness to give.
pub(super) fn start(settings: &Settings) -> Result<(Memory, Secret), getrandom::Error> {
    let memory = memory::Settings {
        max_keys: settings.store.max_keys,
    };
    let Some(path) = &settings.store.snapshot else {
        return Ok((Memory::new(memory, Clock::monotonic()), Secret::random()?));
    };
    let shown = path.display();
    check(settings);
    match snapshot::load(path, memory, settings.secret.as_ref(), Clock::monotonic()) {
        Ok(restored) => {
            let (done, age) = (restored.recalled, restored.age.secs_up());
            tracing::info!(path = %shown, keys = done.kept, expired = done.expired, age_secs = age, "snapshot read");
            if done.dropped > 0 {
                tracing::warn!(
                    keys = done.dropped,
                    "no place for these keys of the snapshot: see store.max_keys"
                );
            }
            let secret = match restored.secret {
                Some(secret) => secret,
                None => Secret::random()?,
            };
            return Ok((restored.memory, secret));
        }
        Err(SnapshotError::Absent) => tracing::info!(path = %shown, "no snapshot yet: starting empty"),
        Err(error) => tracing::warn!(path = %shown, %error, "snapshot not used: starting empty"),
    }
    Ok((Memory::new(memory, Clock::monotonic()), Secret::random()?))
}

/// Says early that a snapshot could not be written.
pub(super) fn check(settings: &Settings) {
    let Some(path) = &settings.store.snapshot else {
        return;
    };
    if let Err(error) = snapshot::writable(path) {
        tracing::warn!(path = %path.display(), %error, "the snapshot cannot be written there");
    }
}

/// Writes the snapshot that the settings ask for. `own` hashes keys where they name no secret.
pub(super) fn save(settings: &Settings, memory: &Memory, own: &Secret) {
    let Some(path) = &settings.store.snapshot else {
        return;
    };
    let shown = path.display();
    let hashed = match &settings.secret {
        Some(secret) => Hashed::Configured(secret),
        None => Hashed::Own(own),
    };
    match snapshot::save(path, memory, hashed, clock::wall()) {
        Ok(keys) => tracing::info!(path = %shown, keys, "snapshot written"),
        Err(error) => tracing::error!(path = %shown, %error, "snapshot not written"),
    }
}

/// The secret that a gateway with these settings hashes keys with, where one can know it.
pub(super) fn secret(settings: &Settings) -> Option<Secret> {
    let kept = || snapshot::secret(settings.store.snapshot.as_ref()?).ok()?;
    settings.secret.clone().or_else(kept)
}
