//! What waits for the next call to a server, and how much of it leaves together: the rule that combines, and nothing else.

use std::collections::VecDeque;

/// Most charges of a call, and most refunds: it stays below a millisecond of the server's time.
pub const CHARGES: usize = 128;

/// The requests and refunds that wait for the next call to a server. Whoever empties it waits for the reply before it takes
/// the [next](Self::next): so what comes meanwhile leaves together, and nothing waits where nothing is under way.
#[derive(Debug)]
pub struct Queue<A, D> {
    asks: VecDeque<A>,
    debts: VecDeque<D>,
    /// How many charges a request has.
    charges: fn(&A) -> usize,
}

/// What leaves together: refunds, and after them requests, each in the order that they came.
#[derive(Debug)]
pub struct Together<A, D> {
    /// Refunds: at most [`CHARGES`].
    pub debts: Vec<D>,
    /// Requests with at most [`CHARGES`] charges, or one that has more.
    pub asks: Vec<A>,
}

impl<A, D> Queue<A, D> {
    /// With nothing waiting; `charges` says how many charges a request has.
    pub const fn new(charges: fn(&A) -> usize) -> Self {
        Self {
            asks: VecDeque::new(),
            debts: VecDeque::new(),
            charges,
        }
    }

    /// Takes a request, behind all others.
    pub fn ask(&mut self, ask: A) {
        self.asks.push_back(ask);
    }

    /// Takes a refund, behind all others.
    pub fn owe(&mut self, debt: D) {
        self.debts.push_back(debt);
    }

    /// Puts requests back that were taken but not decided, in their order ahead of all others.
    pub fn put_back(&mut self, asks: Vec<A>) {
        for ask in asks.into_iter().rev() {
            self.asks.push_front(ask);
        }
    }

    /// Takes what leaves with the next call. What `ask` and `debt` keep for themselves waits no more, and takes no place in
    /// the call.
    pub fn next(
        &mut self,
        mut ask: impl FnMut(A) -> Option<A>,
        mut debt: impl FnMut(D) -> Option<D>,
    ) -> Together<A, D> {
        let (mut asks, mut debts, mut charges) = (Vec::new(), Vec::new(), 0_usize);
        while debts.len() < CHARGES {
            match self.debts.pop_front() {
                Some(first) => debts.extend(debt(first)),
                None => break,
            }
        }
        while let Some(first) = self.asks.front() {
            let more = charges.saturating_add((self.charges)(first));
            if more > CHARGES && !asks.is_empty() {
                break;
            }
            if let Some(first) = self.asks.pop_front().and_then(&mut ask) {
                asks.push(first);
                charges = more;
            }
        }
        Together { debts, asks }
    }

    /// The request that has waited longest.
    pub fn first(&self) -> Option<&A> {
        self.asks.front()
    }

    /// How many refunds wait.
    pub fn debts(&self) -> usize {
        self.debts.len()
    }

    /// Takes all requests.
    pub fn take_asks(&mut self) -> VecDeque<A> {
        std::mem::take(&mut self.asks)
    }

    /// Takes all refunds.
    pub fn take_debts(&mut self) -> VecDeque<D> {
        std::mem::take(&mut self.debts)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHARGES, Queue};

    /// Requests that are as many charges.
    fn queue(asks: &[usize]) -> Queue<usize, usize> {
        let mut queue = Queue::new(|ask| *ask);
        asks.iter().for_each(|ask| queue.ask(*ask));
        queue
    }

    #[test]
    fn all_that_waits_leaves_together() {
        let mut queue = queue(&[1, 2, 3]);
        queue.owe(7);
        let next = queue.next(Some, Some);
        assert_eq!((next.debts, next.asks), (vec![7], vec![1, 2, 3]));
        assert!(queue.first().is_none() && queue.debts() == 0);
        let next = queue.next(Some, Some);
        assert!(next.asks.is_empty() && next.debts.is_empty());
    }

    #[test]
    fn a_call_is_bounded_and_keeps_the_order() {
        let mut queue = queue(&[100, 28, 1, CHARGES + 1, 1, 127]);
        let mut next = || queue.next(Some, Some).asks;
        assert_eq!(next(), [100, 28]);
        assert_eq!(next(), [1]);
        assert_eq!(next(), [CHARGES + 1], "more than a call has, alone");
        assert_eq!(next(), [1, 127]);
        assert!(next().is_empty());
    }

    #[test]
    fn refunds_are_bounded_too() {
        let mut queue = queue(&[]);
        (0..CHARGES + 2).for_each(|debt| queue.owe(debt));
        assert_eq!(queue.next(Some, Some).debts.len(), CHARGES);
        assert_eq!(queue.next(Some, Some).debts, [CHARGES, CHARGES + 1]);
    }

    #[test]
    fn who_waits_no_more_takes_no_place() {
        let mut queue = queue(&[100, 20, 8, 20, 100]);
        (0..CHARGES + 2).for_each(|debt| queue.owe(debt));
        let next = queue.next(
            |ask| (ask != 20).then_some(ask),
            |debt| (debt >= 2).then_some(debt),
        );
        assert_eq!(next.asks, [100, 8]);
        assert_eq!(next.debts, (2..CHARGES + 2).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_put_back_is_next() {
        let mut queue = queue(&[1, 2, 3]);
        let next = queue.next(Some, Some);
        queue.ask(4);
        queue.put_back(next.asks);
        assert_eq!(queue.first(), Some(&1));
        assert_eq!(queue.take_asks(), [1, 2, 3, 4]);
    }
}
