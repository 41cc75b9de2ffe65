//! What the gateway would do with a request, and why: the same questions in the same order as
//! [`Connection::handle`](super::Connection::handle), up to the one that a store answers.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Request, StatusCode};
use http_body::Body;

use super::admission;
use super::fields;
use super::labels::Labels;
use super::respond;
use super::route::RouteTable;
use super::{Profile, Settings};
use crate::identity::{self, Caller, Found};
use crate::rules::{self, RuleTable};

/// What an explanation goes by: what a [`Generation`](super::Generation) has, without anything that is connected.
pub struct Basis<'a> {
    /// The limits of requests, and the routes.
    pub settings: &'a Settings,
    /// The routes of `settings`.
    pub routes: &'a RouteTable,
    /// How callers are told apart.
    pub identity: &'a identity::Settings,
    /// The rules.
    pub rules: &'a Arc<RuleTable>,
}

/// What the gateway would do with a request.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Who is calling.
    pub caller: Caller,
    /// How that was found.
    pub found: Found,
    /// The place of its route, if it gets as far as that.
    pub route: Option<usize>,
    /// What each rule makes of it; nothing where it has no route.
    pub rules: Vec<rules::Explained>,
    /// What it is answered with, whatever the limiters say: the status, and the detail.
    pub refused: Option<(StatusCode, String)>,
    /// The `RateLimit-Policy` that its response would have.
    pub policies: Option<HeaderValue>,
}

/// Explains a request that comes from `peer`. Nothing is charged.
pub fn explain<B: Body>(basis: &Basis<'_>, peer: IpAddr, request: &Request<B>) -> Explained {
    let (caller, found) = Caller::trace(peer, request.headers(), basis.identity);
    let mut explained = Explained {
        caller,
        found,
        route: None,
        rules: Vec::new(),
        refused: None,
        policies: None,
    };
    let place = match admission::route(request, basis.settings, basis.routes) {
        Ok(place) => place,
        Err(refusal) => {
            explained.refused = Some((refusal.status, refusal.detail.to_owned()));
            return explained;
        }
    };
    explained.route = Some(place);
    let pattern = basis.settings.routes.get(place).map(|route| route.path.text());
    explained.rules = basis.rules.explain(request, &caller, pattern);
    match basis.rules.plan(request, &caller, pattern) {
        Err(denied) => {
            explained.refused = Some((respond::denied_status(&denied), denied.to_string()));
        }
        Ok(plan) if basis.settings.profiles.contains(&Profile::Draft) => {
            let labels = Labels::new(basis.rules);
            explained.policies = fields::policies(plan.charges.iter().filter_map(|charge| labels.of(charge)));
        }
        Ok(_) => {}
    }
    explained
}
