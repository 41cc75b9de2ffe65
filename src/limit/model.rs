//! A deliberately plain model of the algorithms, to hold the real ones against.
//!
//! It knows one thing of an algorithm: how much is in use at an instant. Every other number is found by trying
//! instants until the definition holds: `next` is the first at which more remains, `full` the first at which nothing is
//! used, `retry` the first at which the cost has room. It shares no arithmetic with what it checks.

use std::collections::BTreeMap;

use tollgate::clock::Micros;
use tollgate::limit::{Kind, Spec, Standing};

/// One caller of one limiter.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) spec: Spec,
    usage: Option<Usage>,
}

#[derive(Clone, Debug)]
enum Usage {
    /// Units of the window that ends at `end`.
    Fixed { end: u128, units: u128 },
    /// Units by instant.
    Log(BTreeMap<u128, u128>),
    /// Units by sub-window number, and the number of the newest.
    Sliding {
        newest: u128,
        units: BTreeMap<u128, u128>,
    },
    /// The debt in 1 / window units.
    Bucket {
        debt: u128,
        at: u128,
        void: u128,
        charged: u128,
        life: u128,
    },
    /// Units in flight.
    Held(u128),
}

/// What the model needs to take a charge back.
#[derive(Clone, Debug)]
pub(crate) struct Slip {
    /// The window's end, the instant, or the sub-window.
    place: u128,
    cost: u128,
    charged: u128,
    paid: u128,
    limit: u128,
    life: u128,
}

/// The model's numbers on a request that it does not charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) admitted: bool,
    /// How long the request would be held.
    pub(crate) hold: Micros,
    pub(crate) standing: Standing,
    pub(crate) retry: Option<Micros>,
}

impl Model {
    pub(crate) fn new(spec: Spec) -> Self {
        Self { spec, usage: None }
    }

    pub(crate) fn quota(&self) -> u128 {
        match (self.spec.kind, self.spec.burst) {
            (Kind::Gcra, None) => 1,
            (Kind::Gcra | Kind::TokenBucket, Some(burst)) => burst.into(),
            _ => self.spec.limit.into(),
        }
    }

    /// What a request of `cost` would be told at `clock`, without changing anything.
    pub(crate) fn read(&self, clock: Micros, cost: u64) -> Reading {
        let mut it = self.clone();
        it.step_back(clock);
        let now = it.now(clock);
        let (quota, used, cost) = (it.quota(), it.used(now), u128::from(cost));
        let remaining = quota.saturating_sub(used);
        if it.spec.kind == Kind::Concurrency {
            return it.read_held(clock, cost);
        }
        let later = |hit: &dyn Fn(u128) -> bool| Micros(first(now, hit).try_into().unwrap());
        let next = (used > 0).then(|| later(&|t| quota.saturating_sub(it.used(t)) > remaining));
        let full = if used == 0 {
            clock
        } else {
            later(&|t| it.used(t) == 0)
        };
        // When the request has room; `None` is never.
        let slot = if cost == 0 || used + cost <= quota {
            Some(clock)
        } else {
            (cost <= quota).then(|| later(&|t| it.used(t) + cost <= quota))
        };
        let queue = it.spec.queue.unwrap_or_default();
        let hold = slot.map(|slot| slot.since(clock)).filter(|hold| *hold <= queue);
        Reading {
            admitted: hold.is_some(),
            hold: hold.unwrap_or_default(),
            standing: Standing {
                remaining: remaining.try_into().unwrap(),
                next,
                full: Some(full),
            },
            retry: slot.filter(|_| hold.is_none()).map(|slot| slot.minus(queue)),
        }
    }

    /// The same of `concurrency`, of which nothing can be told in advance.
    fn read_held(&self, clock: Micros, cost: u128) -> Reading {
        let (quota, used) = (self.quota(), self.used(0));
        let admitted = cost == 0 || used + cost <= quota;
        Reading {
            admitted,
            hold: Micros(0),
            standing: Standing {
                remaining: quota.saturating_sub(used).try_into().unwrap(),
                next: None,
                full: None,
            },
            retry: (!admitted && cost <= quota).then(|| clock.plus(Micros::SECOND)),
        }
    }

    /// Charges, whether or not there is room.
    pub(crate) fn charge(&mut self, clock: Micros, cost: u64) -> Slip {
        self.step_back(clock);
        let (now, cost, limit) = (self.now(clock), u128::from(cost), u128::from(self.spec.limit));
        self.forget(now);
        let (window, part) = (self.window(), self.part());
        let mut slip = Slip {
            place: 0,
            cost,
            charged: 0,
            paid: 0,
            limit,
            life: 0,
        };
        match self
            .usage
            .get_or_insert_with(|| Usage::none(&self.spec, now, window))
        {
            Usage::Fixed { end, units } => {
                *units += cost;
                slip.place = *end;
            }
            Usage::Log(units) => {
                *units.entry(now).or_default() += cost;
                slip.place = now;
            }
            Usage::Sliding { newest, units } => {
                *newest = now / part;
                *units.entry(now / part).or_default() += cost;
                slip.place = now / part;
            }
            Usage::Held(units) => *units += cost,
            Usage::Bucket {
                debt,
                at,
                void,
                charged,
                life,
            } => {
                *debt = debt.saturating_sub(limit * (now - *at)) + cost * window;
                *at = now;
                *charged += cost;
                let paid = now + debt.div_ceil(limit);
                *void = paid.max(*void);
                slip = Slip {
                    place: now,
                    charged: *charged,
                    paid,
                    life: *life,
                    ..slip
                };
            }
        }
        slip
    }

    /// Takes back what is still owed of a charge.
    pub(crate) fn refund(&mut self, clock: Micros, slip: &Slip) {
        self.step_back(clock);
        let (now, window, part, limit) = (
            self.now(clock),
            self.window(),
            self.part(),
            u128::from(self.spec.limit),
        );
        let oldest = (now / part).saturating_sub(self.spec.precision.into());
        let same = match &self.usage {
            None => false,
            Some(Usage::Fixed { end, .. }) => *end == slip.place && now < *end,
            Some(Usage::Log(units)) => units.contains_key(&slip.place) && slip.place + window > now,
            Some(Usage::Sliding { newest, .. }) => (oldest..=*newest).contains(&slip.place),
            Some(Usage::Bucket {
                life, charged, void, ..
            }) => {
                // In a queue, others have their slots after it.
                let last = self.spec.queue.is_none() || *charged == slip.charged;
                last && now < *void && now < slip.paid && *life == slip.life && *charged >= slip.charged
            }
            Some(Usage::Held(_)) => true,
        };
        if !same {
            return;
        }
        self.forget(now);
        match &mut self.usage {
            None => {}
            Some(Usage::Fixed { units, .. } | Usage::Held(units)) => {
                *units = units.saturating_sub(slip.cost);
            }
            Some(Usage::Log(units)) => {
                units
                    .entry(slip.place)
                    .and_modify(|units| *units = units.saturating_sub(slip.cost));
            }
            Some(Usage::Sliding { newest, units }) => {
                *newest = now / part;
                units
                    .entry(slip.place)
                    .and_modify(|units| *units = units.saturating_sub(slip.cost));
            }
            Some(Usage::Bucket {
                debt, at, charged, ..
            }) => {
                *debt = debt.saturating_sub(limit * (now - *at));
                *at = now;
                let cost = slip.cost * window;
                // Later charges are paid last; and a charge owes at least what it would owe alone.
                let before = debt.saturating_sub((*charged - slip.charged) * window).min(cost);
                let comparable = limit == slip.limit && slip.place <= now;
                let alone = if comparable {
                    cost.saturating_sub(limit * (now - slip.place))
                } else {
                    0
                };
                *debt = debt.saturating_sub(before.max(alone));
            }
        }
    }

    /// Moves everything back if the clock was set back by more than a window.
    pub(crate) fn step_back(&mut self, clock: Micros) {
        let (clock, window, part) = (u128::from(clock.0), self.window(), self.part());
        let Some(ahead) = self.ahead(clock).filter(|ahead| *ahead > window) else {
            return;
        };
        match &mut self.usage {
            None | Some(Usage::Held(_)) => {}
            Some(Usage::Fixed { end, .. }) => *end -= ahead,
            Some(Usage::Log(units)) => {
                *units = units.iter().map(|(at, units)| (at - ahead, *units)).collect();
            }
            Some(Usage::Sliding { newest, units }) => {
                let by = *newest - clock / part;
                *newest -= by;
                *units = units
                    .iter()
                    .map(|(number, units)| (number - by, *units))
                    .collect();
            }
            Some(Usage::Bucket { at, void, life, .. }) => {
                *at -= ahead;
                *void -= ahead;
                *life = clock;
            }
        }
    }

    /// Whether the clock was set back so far, and nothing has stored it yet.
    pub(crate) fn is_set_back(&self, clock: Micros) -> bool {
        self.ahead(clock.0.into())
            .is_some_and(|ahead| ahead > self.window())
    }

    fn ahead(&self, clock: u128) -> Option<u128> {
        self.newest().and_then(|newest| newest.checked_sub(clock))
    }

    fn window(&self) -> u128 {
        self.spec.window.map_or(1, |window| window.0.into())
    }

    fn part(&self) -> u128 {
        self.window().div_ceil(u128::from(self.spec.precision))
    }

    /// The newest instant that is stored.
    fn newest(&self) -> Option<u128> {
        match self.usage.as_ref()? {
            Usage::Fixed { end, .. } => Some(end - self.window()),
            Usage::Log(units) => units.keys().next_back().copied(),
            Usage::Sliding { newest, .. } => Some(newest * self.part()),
            Usage::Bucket { at, .. } => Some(*at),
            Usage::Held(_) => None,
        }
    }

    /// The clock, held at the newest instant that is stored.
    fn now(&self, clock: Micros) -> u128 {
        u128::from(clock.0).max(self.newest().unwrap_or(0))
    }

    /// What is in use at `t`, if nothing happens until then.
    fn used(&self, t: u128) -> u128 {
        let (window, part) = (self.window(), self.part());
        match &self.usage {
            None => 0,
            Some(Usage::Held(units)) => *units,
            Some(Usage::Fixed { end, .. }) if t >= *end => 0,
            Some(Usage::Fixed { units, .. }) => *units,
            Some(Usage::Log(units)) => units
                .iter()
                .filter(|(at, _)| *at + window > t)
                .map(|(_, units)| units)
                .sum(),
            Some(Usage::Sliding { units, .. }) => {
                let oldest = (t / part).saturating_sub(self.spec.precision.into());
                let full: u128 = units.range(oldest + 1..).map(|(_, units)| units).sum();
                let fading = units.get(&oldest).copied().unwrap_or(0);
                let left = part - t % part;
                full + if self.spec.blend {
                    (fading * left).div_ceil(part)
                } else {
                    fading
                }
            }
            Some(Usage::Bucket { void, .. }) if t >= *void => 0,
            Some(Usage::Bucket { debt, at, .. }) => {
                let drained = u128::from(self.spec.limit) * (t - *at);
                debt.saturating_sub(drained).div_ceil(window)
            }
        }
    }

    /// Drops what is over at `now`.
    fn forget(&mut self, now: u128) {
        let (window, part, precision) = (self.window(), self.part(), u128::from(self.spec.precision));
        let over = match &mut self.usage {
            None => false,
            Some(Usage::Held(units)) => *units == 0,
            Some(Usage::Fixed { end, .. }) => now >= *end,
            Some(Usage::Log(units)) => {
                units.retain(|at, _| *at + window > now);
                units.is_empty()
            }
            Some(Usage::Sliding { units, .. }) => {
                units.retain(|number, _| number + precision >= now / part);
                false
            }
            Some(Usage::Bucket { void, .. }) => now >= *void,
        };
        if over {
            self.usage = None;
        }
    }
}

impl Usage {
    fn none(spec: &Spec, now: u128, window: u128) -> Self {
        match spec.kind {
            Kind::FixedWindow => Self::Fixed {
                end: now + window,
                units: 0,
            },
            Kind::SlidingLog => Self::Log(BTreeMap::new()),
            Kind::SlidingWindow => Self::Sliding {
                newest: 0,
                units: BTreeMap::new(),
            },
            Kind::TokenBucket | Kind::Gcra => Self::Bucket {
                debt: 0,
                at: now,
                void: 0,
                charged: 0,
                life: now,
            },
            Kind::Concurrency => Self::Held(0),
        }
    }
}

/// The first instant after `now` at which `hit` holds, given that it holds for ever from then on.
fn first(now: u128, hit: &dyn Fn(u128) -> bool) -> u128 {
    let (mut low, mut high) = (now, now + 1);
    while !hit(high) {
        low = high;
        high = now + (high - now) * 2;
        assert!(high < 1 << 60, "it never holds");
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if hit(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}
