//! Who was refused of late: a request on several servers asks there first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Micros;
use crate::identity::LimitKey;

/// The keys that were refused of late, and until when, on the clock here. It has so many places, and of two keys that
/// share one knows the later. What it does not know costs a call; it decides nothing.
pub(super) struct Refused(Box<[Mutex<Place>]>);

type Place = Option<(LimitKey, Micros)>;

const PLACES: usize = 4_096;

impl Default for Refused {
    fn default() -> Self {
        Self((0..PLACES).map(|_| Mutex::default()).collect())
    }
}

impl Refused {
    /// A limiter has no room for this key until then.
    pub(super) fn note(&self, key: LimitKey, until: Micros) {
        if let Some(mut place) = self.place(key) {
            *place = Some((key, until));
        }
    }

    /// A limiter had room for this key after all.
    pub(super) fn forget(&self, key: LimitKey) {
        if let Some(mut place) = self.place(key)
            && place.is_some_and(|(known, _)| known == key)
        {
            *place = None;
        }
    }

    /// Until when a limiter has no room for this key, as far as is known and still to come.
    pub(super) fn until(&self, key: LimitKey, now: Micros) -> Option<Micros> {
        let (_, until) = self.place(key)?.filter(|(known, _)| *known == key)?;
        (until > now).then_some(until)
    }

    fn place(&self, LimitKey(key): LimitKey) -> Option<MutexGuard<'_, Place>> {
        let place = usize::try_from(key % self.0.len() as u128).ok()?;
        Some(self.0.get(place)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::{PLACES, Refused};
    use crate::clock::Micros;
    use crate::identity::LimitKey;

    #[test]
    fn a_key_is_known_until_it_has_room_or_another_takes_its_place() {
        let (refused, key) = (Refused::default(), LimitKey(5));
        assert_eq!(refused.until(key, Micros(0)), None);
        refused.note(key, Micros(100));
        assert_eq!(refused.until(key, Micros(99)), Some(Micros(100)));
        assert_eq!(refused.until(key, Micros(100)), None);
        refused.forget(LimitKey(5 + PLACES as u128));
        assert_eq!(refused.until(key, Micros(0)), Some(Micros(100)));
        refused.forget(key);
        assert_eq!(refused.until(key, Micros(0)), None);
        refused.note(LimitKey(5 + PLACES as u128), Micros(300));
        assert_eq!(refused.until(key, Micros(0)), None);
    }
}
