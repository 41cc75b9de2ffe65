//! The keys of one script call.

use smallvec::SmallVec;

use crate::limit::Policy;

use super::names::Name;

/// The keys of a call, each once: those of sliding logs come last, for they are not read whole.
pub(super) struct Keys<'a> {
    /// What they are called, and the limiter that asked for each first.
    pub(super) named: SmallVec<[(&'a Name, &'a Policy); 8]>,
    /// How many of them are no log's.
    pub(super) fixed: usize,
    /// For each charge, in order, the place of its key.
    pub(super) places: SmallVec<[usize; 8]>,
}

impl<'a> Keys<'a> {
    /// The keys of these charges; `I` is what tells one key from another.
    pub(super) fn of<I: PartialEq>(charges: impl Iterator<Item = (I, &'a Name, &'a Policy)>) -> Self {
        let (mut fixed, mut logs) = (Kind::default(), Kind::default());
        let mut places: SmallVec<[(bool, usize); 8]> = SmallVec::new();
        for (id, name, policy) in charges {
            let is_log = matches!(policy, Policy::SlidingLog(_));
            let kind = if is_log { &mut logs } else { &mut fixed };
            places.push((is_log, kind.place(id, name, policy)));
        }
        let before = fixed.named.len();
        fixed.named.append(&mut logs.named);
        Self {
            named: fixed.named,
            fixed: before,
            places: places
                .into_iter()
                .map(|(is_log, place)| {
                    if is_log {
                        before.saturating_add(place)
                    } else {
                        place
                    }
                })
                .collect(),
        }
    }
}

/// Keys that are read in one way.
struct Kind<'a, I> {
    ids: SmallVec<[I; 8]>,
    named: SmallVec<[(&'a Name, &'a Policy); 8]>,
}

impl<I> Default for Kind<'_, I> {
    fn default() -> Self {
        Self {
            ids: SmallVec::new(),
            named: SmallVec::new(),
        }
    }
}

impl<'a, I: PartialEq> Kind<'a, I> {
    fn place(&mut self, id: I, name: &'a Name, policy: &'a Policy) -> usize {
        if let Some(place) = self.ids.iter().position(|known| *known == id) {
            return place;
        }
        self.ids.push(id);
        self.named.push((name, policy));
        self.ids.len().saturating_sub(1)
    }
}
