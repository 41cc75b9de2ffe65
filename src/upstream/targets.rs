//! The targets of an upstream: whose turn it is, and which of them can be connected to.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use http::Uri;
use http::uri::Authority;
use tokio::net::TcpStream;

use super::failures::Failures;
use super::target::Target;
use super::{ConnectError, TargetError};
use crate::clock;

#[derive(Debug)]
pub(super) struct Targets {
    all: Box<[Target]>,
    next: AtomicUsize,
}

impl Targets {
    /// # Errors
    /// One that is no target, or that does not speak what the first speaks.
    pub(super) fn new(uris: &[Uri]) -> Result<Self, TargetError> {
        let all: Box<[Target]> = uris.iter().map(Target::try_from).collect::<Result<_, _>>()?;
        let http2 = all.first().is_some_and(|first| first.http2);
        if let Some(other) = all.iter().position(|target| target.http2 != http2) {
            return Err(TargetError(uris[other].clone()));
        }
        let next = AtomicUsize::new(0);
        Ok(Self { all, next })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether they speak HTTP/2.
    pub(super) fn http2(&self) -> bool {
        self.all.first().is_some_and(|first| first.http2)
    }

    /// What requests without a host are for.
    pub(super) fn authority(&self, target: usize) -> &Authority {
        &self.all[target].authority
    }

    /// As it was configured.
    pub(super) fn name(&self, target: usize) -> &str {
        self.all.get(target).map_or("", |target| &target.name)
    }

    pub(super) fn is_well(&self, target: usize) -> bool {
        self.all[target].is_well()
    }

    /// The next target by turns, passing over those that are failing and not due for a probe.
    pub(super) fn turn(&self) -> usize {
        let count = self.all.len().max(1);
        let first = self.next.fetch_add(1, Relaxed) % count;
        (first..first + count)
            .map(|turn| turn % count)
            .find(|turn| self.all.get(*turn).is_some_and(Target::is_due))
            .unwrap_or(first)
    }

    /// Connects to `first` or, if that fails, to the others, each at most once: those that are well or due for a probe,
    /// then the rest. One that is silent may use half of the time that is left, but the last all of it.
    pub(super) async fn connect(
        &self,
        first: usize,
        until: Instant,
        failures: &Failures,
    ) -> Result<(TcpStream, usize), ConnectError> {
        let count = self.all.len();
        let mut left: Vec<usize> = (first..first + count).map(|turn| turn % count).collect();
        loop {
            let due = |(at, target): (usize, &usize)| Some((at, self.all[*target].claim()?));
            let (at, claim) = left.iter().enumerate().find_map(due).unzip();
            let target = left.remove(at.unwrap_or(0));
            let now = clock::now();
            let deadline = match left.len() {
                0 => until,
                _ => now + until.saturating_duration_since(now) / 2,
            };
            let connected = self.all[target].connect(deadline).await;
            drop(claim);
            match connected {
                Ok(socket) => return Ok((socket, target)),
                Err(error) => {
                    failures.note(&error, error.source(), self.name(target));
                    if left.is_empty() || until <= clock::now() {
                        return Err(error);
                    }
                }
            }
        }
    }
}
