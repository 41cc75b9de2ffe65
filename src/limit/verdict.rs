//! What a limiter says of one request.

use crate::clock::Micros;

/// Where one caller stands with one limiter, at the instant of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Units that would be admitted now.
    pub remaining: u64,
    /// When `remaining` next rises; `None` if nothing is used, or if no instant can be told.
    pub next: Option<Micros>,
    /// When, with no more requests, `remaining` is the limit again; `None` if no instant can be told.
    pub full: Option<Micros>,
}

/// What a limiter says of one request; `R` is its proof of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<R> {
    /// Whether the limiter has room for the cost.
    pub admitted: bool,
    /// How long a request that is admitted is to be held until it has room.
    pub hold: Micros,
    /// What `remaining` counts down from: the limit, or a bucket's burst.
    pub limit: u64,
    /// The standing that the call leaves: with the charge if it was made, else without.
    pub standing: Standing,
    /// The standing that an immediate refund of the charge would leave; equal to `standing` if nothing was charged.
    pub refunded: Standing,
    /// On a rejection: the instant at which the same request would be admitted; `None` if its cost is above the limit,
    /// so that it never would be. Of `concurrency` only a hint: nobody knows when a request will end.
    pub retry: Option<Micros>,
    /// The proof of the charge, if one was made.
    pub receipt: Option<R>,
}

impl<R> Verdict<R> {
    /// The same verdict with another form of its receipt.
    #[inline]
    pub(crate) fn proven<P>(self) -> Verdict<P>
    where
        R: Into<P>,
    {
        let Self {
            admitted,
            hold,
            limit,
            standing,
            refunded,
            retry,
            receipt,
        } = self;
        Verdict {
            admitted,
            hold,
            limit,
            standing,
            refunded,
            retry,
            receipt: receipt.map(R::into),
        }
    }
}
