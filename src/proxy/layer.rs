//! The limiting stage, as a tower layer around any HTTP service.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use smallvec::SmallVec;
use tower::{Layer, Service};

use super::Profile;
use super::body::Download;
use super::discard::discard;
use super::fields::{self, Line};
use super::labels::Labels;
use super::respond;
use crate::clock::Micros;
use crate::decide::{Decision, Denial, Limiter, Refusal, Settled};
use crate::identity::{self, Caller};
use crate::limit::Verdict;
use crate::rules::{Outcome, Plan, RoutePattern, RuleTable};
use crate::store::{By, Ruling};

/// What the limiting stage works by.
pub struct Limits {
    pub(super) identity: identity::Settings,
    rules: Arc<RuleTable>,
    limiter: Limiter,
    profiles: Vec<Profile>,
    labels: Labels,
}

impl Limits {
    /// The limits of `rules`, decided by `limiter`, for callers who are told apart by `identity` and read `profiles`.
    pub fn new(
        identity: identity::Settings,
        rules: Arc<RuleTable>,
        limiter: Limiter,
        profiles: Vec<Profile>,
    ) -> Self {
        let labels = Labels::new(&rules);
        Self {
            identity,
            rules,
            limiter,
            profiles,
            labels,
        }
    }

    /// Who decides.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

/// Puts [`Limits`] before a service: a request is charged, forwarded and settled, or refused.
///
/// The service's responses count as the upstream's, unless it puts an [`Outcome`] into a response's extensions. One that
/// fails or panics counts as an upstream that does not answer. Requests carry their [`Peer`](crate::identity::Peer) and
/// perhaps the [`RoutePattern`] that names their endpoint in theirs; the service finds the [`Caller`] there.
///
/// `app::limits` makes one of the text of a rule table.
#[derive(Clone)]
pub struct LimitLayer {
    limits: Arc<Limits>,
}

impl LimitLayer {
    /// A layer that works by `limits`.
    pub fn new(limits: Arc<Limits>) -> Self {
        Self { limits }
    }

    /// To be called about once a second: logs which rules have refused since, and forgets a part of what has expired.
    /// Without it nothing is decided otherwise; but nothing is logged, and a store that falls idle does not shrink.
    pub fn tick(&self) {
        self.limits.limiter.tick();
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            limits: Arc::clone(&self.limits),
            inner,
        }
    }
}

/// A service behind [`Limits`].
#[derive(Clone)]
pub struct Limited<S> {
    limits: Arc<Limits>,
    inner: S,
}

impl<S, B, D> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<D>> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    D: Body<Data = Bytes> + 'static,
{
    type Response = Response<Download<D>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let limits = Arc::clone(&self.limits);
        Box::pin(async move {
            let caller = Caller::identify(&request, &limits.identity);
            let route = request
                .extensions()
                .get()
                .map(|RoutePattern(pattern)| Arc::clone(pattern));
            let departed = AtomicBool::new(false);
            let forward = |mut request: Request<B>| {
                departed.store(true, Relaxed);
                request.extensions_mut().insert(caller);
                inner.call(request)
            };
            handle(&limits, &caller, route.as_deref(), request, &departed, forward).await
        })
    }
}

/// The life of a request: what its caller will be charged, whether it may go on, and what it owes in the end. `forward` sets
/// `departed` before its service may have any of the request.
pub(super) fn handle<B, D, E, F>(
    limits: &Limits,
    caller: &Caller,
    route: Option<&str>,
    request: Request<B>,
    departed: &AtomicBool,
    forward: impl FnOnce(Request<B>) -> F,
) -> impl Future<Output = Result<Response<Download<D>>, E>>
where
    B: Body<Data = Bytes> + Send + 'static,
    D: Body<Data = Bytes>,
    F: Future<Output = Result<Response<D>, E>>,
{
    let bodiless = request.method() == Method::HEAD;
    async move {
        let plan = match limits.rules.plan(&request, caller, route) {
            Ok(plan) => plan,
            Err(denied) => {
                discard(request);
                limits.limiter.denied(&denied);
                return Ok(respond::denied(&denied).map(Download::made));
            }
        };
        let mut reservation = match limits.limiter.decide(plan).await {
            Decision::Admit(reservation) => reservation,
            Decision::Refuse(refusal) => {
                let grpc = respond::is_grpc(request.headers());
                discard(request);
                return Ok(refused(limits, &refusal, grpc).map(Download::made));
            }
            Decision::Deny(denial) => {
                let grpc = respond::is_grpc(request.headers());
                discard(request);
                return Ok(unavailable(limits, &denial, grpc).map(Download::made));
            }
        };
        reservation.turn().await;
        let reservation = reservation.leave(departed);
        let mut response = match forward(request).await {
            Ok(response) => response,
            Err(error) => {
                reservation.settle(Outcome::Failed(StatusCode::BAD_GATEWAY));
                return Err(error);
            }
        };
        let settled = reservation.settle(outcome(&response));
        show(limits, &settled, &mut response);
        Ok(response.map(|body| Download::passed(body, settled.tail(), bodiless)))
    }
}

/// How a response ended its request: as the service says, else the upstream answered.
fn outcome<D>(response: &Response<D>) -> Outcome {
    response
        .extensions()
        .get()
        .copied()
        .unwrap_or_else(|| Outcome::Answered(response.status()))
}

fn refused(limits: &Limits, refusal: &Refusal, grpc: bool) -> respond::Answer {
    let rulings = &refusal.reserved.rulings;
    let lines = lines(limits, &refusal.plan, rulings);
    let wait = waits(&refusal.plan, rulings).max().unwrap_or_default();
    let mut answer = if grpc {
        respond::resource_exhausted(wait)
    } else {
        let violated: SmallVec<[&str; 4]> = lines
            .iter()
            .filter(|line| line.retry.is_some())
            .map(|line| line.label.rule())
            .collect();
        respond::quota_exceeded(&violated, wait)
    };
    fields::write(answer.headers_mut(), &limits.profiles, &lines);
    answer
}

/// The answer where the store cannot decide and a rule denies requests then.
fn unavailable(limits: &Limits, denial: &Denial, grpc: bool) -> respond::Answer {
    if grpc {
        return respond::unavailable();
    }
    let shown = denial.rules.iter().filter_map(|rule| limits.rules.rule(*rule));
    let violated: SmallVec<[&str; 4]> = shown
        .filter(|rule| rule.is_shown())
        .map(|rule| rule.name.as_str())
        .collect();
    respond::reduced_capacity(&violated)
}

/// How long it is until those limiters admit again that refused.
fn waits<'a>(plan: &'a Plan, rulings: &'a [Ruling]) -> impl Iterator<Item = Micros> + 'a {
    let enforced = plan
        .charges
        .iter()
        .zip(rulings)
        .filter(|(charge, _)| !charge.dry_run);
    enforced.filter_map(|(_, ruling)| Some(ruling.verdict.retry?.since(ruling.now)))
}

fn show<D>(limits: &Limits, settled: &Settled, response: &mut Response<D>) {
    if let Some((plan, rulings)) = settled.rulings() {
        let lines = lines(limits, plan, rulings);
        fields::write(response.headers_mut(), &limits.profiles, &lines);
    }
}

/// What a client may see: the visible rules that are not dry runs.
fn lines<'a>(limits: &'a Limits, plan: &Plan, rulings: &[Ruling]) -> SmallVec<[Line<'a>; 4]> {
    let lines = plan.charges.iter().zip(rulings).filter_map(|(charge, ruling)| {
        let Verdict { standing, retry, .. } = ruling.verdict;
        Some(Line {
            label: match ruling.by {
                By::Memory | By::Server(_) | By::Edge => limits.labels.of(charge)?,
                By::Overflow => limits.labels.of(&charge.shared())?,
                By::Fallback => limits.labels.of_stand_in(charge)?,
            },
            standing,
            retry,
            now: ruling.now,
        })
    });
    lines.collect()
}
