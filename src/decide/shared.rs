//! A decision that a store outside of this process has a part in.
//!
//! What is decided in this process goes first: a request that it refuses costs the store nothing. Where the store cannot
//! decide, a rule's `on_outage` does; a rejection outweighs a denial, and a denial an admission. Whoever refuses, the
//! others give back at once what they charged.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::time::timeout_at;

use super::Limiter;
use super::lasting::decided_by;
use super::reservation::give_back;
use super::shed::{Asked, Word};
use crate::clock::{self, Micros};
use crate::identity::LimitKey;
use crate::limit::{Policy, Receipt, Verdict};
use crate::rules::{Charge, OnOutage, Plan, RuleId, RuleTable, Scope};
use crate::store::{By, Memory, Redis, Refund, Reserved, Ruling};

/// The rules that deny a request because their store cannot decide.
#[derive(Clone, Debug)]
pub struct Denial {
    /// Which, in table order.
    pub rules: SmallVec<[RuleId; 2]>,
}

/// The rulings on a request's charges as far as they are made. Dropped, it gives back what they charged.
struct Docket<'a> {
    limiter: &'a Limiter,
    table: Arc<RuleTable>,
    charges: SmallVec<[Charge; 2]>,
    rulings: SmallVec<[Option<Ruling>; 2]>,
    /// What the store is asked about and has not answered.
    asked: SmallVec<[LimitKey; 2]>,
}

/// What the store is asked about each charge.
type Asks = SmallVec<[Asked; 2]>;

/// The places of some charges, and the charges.
type Some2 = (SmallVec<[usize; 2]>, SmallVec<[Charge; 2]>);

/// Decides a plan together with the store in Redis. The plan keeps the charges that there is a ruling on.
///
/// # Errors
/// The store could not decide, and a rule denies the request then.
pub(super) async fn reserve(
    limiter: &Limiter,
    (redis, memory): (&Redis, &Memory),
    plan: &mut Plan,
) -> Result<Reserved, Denial> {
    let deadline = clock::now() + redis.settings().deadline;
    let mut docket = Docket::new(limiter, plan);
    let (here, charges) = docket.some(is_here);
    let admitted_here = charges.is_empty() || {
        let reserved = memory.decide(&charges);
        docket.fill(&here, reserved.rulings.into_iter().map(Some));
        reserved.admitted
    };
    let (places, charges) = docket.some(|rule, charge| !is_here(rule, charge));
    if charges.is_empty() {
        return Ok(docket.close(plan, admitted_here));
    }
    let asked = match docket.edge(&charges, memory, deadline).await {
        Ok(asked) => asked,
        Err((known, ruling)) => {
            docket.refuse(places.get(known), ruling, admitted_here);
            return Ok(docket.close(plan, false));
        }
    };
    if !admitted_here {
        return Ok(docket.close(plan, false));
    }
    docket.asked = charges.iter().map(|charge| charge.key).collect();
    let sent = memory.clock();
    let reserved = redis.reserve_by(deadline, &plan.table, &charges).await;
    let heard = memory.clock();
    let (is_whole, admitted, rulings): (bool, bool, SmallVec<[Option<Ruling>; 2]>) = match reserved {
        Ok(reserved) => (
            true,
            reserved.admitted,
            reserved.rulings.into_iter().map(Some).collect(),
        ),
        Err(partial) => (false, partial.admitted, partial.rulings),
    };
    docket.asked.clear();
    docket.learn(&charges, &asked, &rulings, (sent, heard));
    docket.fill(&places, rulings.into_iter());
    let admitted = admitted && (is_whole || docket.stand_in(memory)?);
    Ok(docket.close(plan, admitted))
}

/// Whether a charge is decided in this process, whatever the store.
fn is_here(scope: Scope, charge: &Charge) -> bool {
    scope == Scope::Gateway || matches!(charge.policy, Policy::Concurrency(_))
}

impl<'a> Docket<'a> {
    fn new(limiter: &'a Limiter, plan: &Plan) -> Self {
        Self {
            limiter,
            table: Arc::clone(&plan.table),
            charges: plan.charges.clone(),
            rulings: plan.charges.iter().map(|_| None).collect(),
            asked: SmallVec::new(),
        }
    }

    /// The charges that are `wanted` by the scope of their rule.
    fn some(&self, wanted: impl Fn(Scope, &Charge) -> bool) -> Some2 {
        let scope = |charge: &Charge| {
            self.table
                .rule(charge.rule)
                .map_or(Scope::Store, |rule| rule.scope)
        };
        let charges = self.charges.iter().enumerate();
        charges
            .filter(|(_, charge)| wanted(scope(charge), charge))
            .map(|(place, charge)| (place, charge.clone()))
            .unzip()
    }

    fn fill(&mut self, places: &[usize], rulings: impl Iterator<Item = Option<Ruling>>) {
        for (place, ruling) in places.iter().zip(rulings) {
            if let Some(slot) = self.rulings.get_mut(*place) {
                *slot = ruling;
            }
        }
    }

    /// Asks the edge about charges that the store decides: the place of one that it refuses, which has room again last, or
    /// what is to be asked. Waits for who asks the same already.
    async fn edge(
        &self,
        charges: &[Charge],
        memory: &Memory,
        deadline: Instant,
    ) -> Result<Asks, (usize, Ruling)> {
        let shed = &self.limiter.lasting.shed;
        let staleness = self.limiter.edge.max_staleness;
        if staleness.is_zero() {
            return Ok(Asks::new());
        }
        let longest = |charge: &Charge| {
            let rule = self.table.rule(charge.rule);
            let refundable = rule.is_none_or(|rule| !rule.refund.is_empty());
            refundable.then(|| Micros::from(staleness))
        };
        loop {
            let (now, mut refusal, mut waits) = (memory.clock(), None::<(usize, Ruling)>, None);
            let enforced = charges.iter().enumerate().filter(|(_, charge)| !charge.dry_run);
            for (place, charge) in enforced {
                match shed.look(charge, longest(charge), now) {
                    Word::Refuse(ruling)
                        if refusal
                            .as_ref()
                            .is_none_or(|(_, known)| known.off() < ruling.off()) =>
                    {
                        refusal = Some((place, ruling));
                    }
                    Word::Refuse(_) | Word::Ask => {}
                    Word::Wait(asked) => waits = Some(asked),
                }
            }
            match (refusal, waits) {
                (Some(refusal), _) => return Err(refusal),
                (None, Some(mut asked)) => {
                    if timeout_at(deadline.into(), asked.changed()).await.is_err() {
                        return Ok(Asks::new());
                    }
                }
                (None, None) => {
                    let asks: Option<Asks> = charges.iter().map(|charge| shed.ask(charge)).collect();
                    if let Some(asks) = asks {
                        return Ok(asks);
                    }
                }
            }
        }
    }

    /// The edge refuses, and speaks alone unless somebody here refuses as well.
    fn refuse(&mut self, place: Option<&usize>, ruling: Ruling, admitted_here: bool) {
        if admitted_here {
            self.give_back();
            self.rulings.iter_mut().for_each(|ruling| *ruling = None);
        }
        if let Some(slot) = place.and_then(|place| self.rulings.get_mut(*place)) {
            *slot = Some(ruling);
        }
    }

    /// The edge takes note of what the store said.
    fn learn(&self, charges: &[Charge], asked: &Asks, rulings: &[Option<Ruling>], when: (Micros, Micros)) {
        let shed = &self.limiter.lasting.shed;
        let refused = rulings.iter().zip(charges).any(|(ruling, charge)| {
            !charge.dry_run && ruling.as_ref().is_some_and(|ruling| !ruling.verdict.admitted)
        });
        for ((charge, asked), ruling) in charges.iter().zip(asked).zip(rulings) {
            let Some(ruling) = ruling else { continue };
            if !charge.dry_run {
                shed.learn(charge, asked, ruling, when);
            }
            // Where another limiter refused, it was charged for a moment, and may have refused somebody for that.
            if refused && ruling.verdict.admitted && charges.len() > 1 {
                shed.forget(charge.key);
            }
        }
    }

    /// Decides by `on_outage` what nobody has ruled on. Says whether those have room.
    fn stand_in(&mut self, memory: &Memory) -> Result<bool, Denial> {
        let mut denying = SmallVec::new();
        let (mut places, mut charges) = (SmallVec::<[usize; 2]>::new(), SmallVec::<[Charge; 2]>::new());
        for (place, (charge, ruling)) in self.charges.iter().zip(&self.rulings).enumerate() {
            let outage = self.table.rule(charge.rule).map(|rule| rule.on_outage);
            match outage {
                _ if ruling.is_some() => {}
                Some(OnOutage::Local(_)) => {
                    let policy = decided_by(&self.table, charge, By::Fallback, charge.policy);
                    let own = decided_by(&self.table, charge, By::Fallback, charge.own);
                    places.push(place);
                    charges.push(Charge {
                        policy,
                        own,
                        ..charge.clone()
                    });
                }
                Some(OnOutage::Deny) if !charge.dry_run => denying.push(charge.rule),
                Some(OnOutage::Deny | OnOutage::Allow) | None => self.limiter.stood_in(charge.rule, "admit"),
            }
        }
        let reserved = memory.decide(&charges);
        let stand_in = |ruling| Ruling {
            by: By::Fallback,
            ..ruling
        };
        self.fill(&places, reserved.rulings.into_iter().map(stand_in).map(Some));
        if reserved.admitted && !denying.is_empty() {
            for rule in &denying {
                self.limiter.stood_in(*rule, "deny");
            }
            return Err(Denial { rules: denying });
        }
        Ok(reserved.admitted)
    }

    /// What was decided. If the request is not admitted, whoever charged it gives that back.
    fn close(mut self, plan: &mut Plan, admitted: bool) -> Reserved {
        if !admitted {
            self.give_back();
        }
        let (charges, rulings) = std::mem::take(&mut self.charges)
            .into_iter()
            .zip(std::mem::take(&mut self.rulings))
            .filter_map(|(charge, ruling)| Some((charge, ruling?)))
            .unzip();
        plan.charges = charges;
        Reserved {
            now: self.limiter.store.memory().clock(),
            admitted,
            rulings,
        }
    }

    /// Gives back what was charged, and leaves the numbers after that.
    fn give_back(&mut self) {
        let mut refunds: SmallVec<[Refund; 2]> = SmallVec::new();
        for (charge, ruling) in self.charges.iter().zip(&mut self.rulings) {
            let Some(ruling) = ruling else { continue };
            let (by, table) = (ruling.by, &self.table);
            let policy = || decided_by(table, charge, by, charge.policy);
            if let Some(refund) = give_back(charge, ruling, policy, |_: &Receipt| true) {
                refunds.push(refund);
                let Verdict {
                    standing, refunded, ..
                } = &mut ruling.verdict;
                *standing = *refunded;
            }
        }
        if !refunds.is_empty() {
            self.limiter.refund(&self.table, &refunds);
        }
    }
}

impl Drop for Docket<'_> {
    fn drop(&mut self) {
        // Who leaves before the answer gets back what it was charged, which may have refused somebody for a moment.
        for key in &self.asked {
            self.limiter.lasting.shed.forget(*key);
        }
        self.give_back();
    }
}
