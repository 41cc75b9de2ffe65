//! What the gateway would do with a request, without a gateway that runs.

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use http_body::Body;

use super::current::Unfit;
use super::{AppError, snapshot};
use crate::config::Settings;
use crate::identity::Secret;
use crate::proxy::{self, Basis, Explained, RouteTable};
use crate::rules::RuleTable;

/// What the gateway would do with a request, and what that was found by.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// What it would do.
    pub explained: Explained,
    /// The rules.
    pub rules: Arc<RuleTable>,
    /// Whether the hashes of keys are those of a running gateway: the settings name a secret, or a
    /// snapshot keeps it.
    pub same_hashes: bool,
}

/// Explains a request that comes from `peer` under these settings. Nothing is charged, and no socket is opened.
///
/// # Errors
/// The settings do not fit together.
pub fn explain<B: Body>(
    settings: &Settings,
    peer: IpAddr,
    request: &Request<B>,
) -> Result<Explanation, AppError> {
    let (secret, same_hashes) = match snapshot::secret(settings) {
        Some(secret) => (secret, true),
        None => (Secret::random()?, false),
    };
    let rules = Arc::new(RuleTable::new(
        settings.rules.clone(),
        settings.identity.clone(),
        secret,
    ));
    let routes = RouteTable::new(&settings.proxy.routes).map_err(Unfit::from)?;
    let basis = Basis {
        settings: &settings.proxy,
        routes: &routes,
        identity: &settings.identity,
        rules: &rules,
    };
    let explained = proxy::explain(&basis, peer, request);
    Ok(Explanation {
        explained,
        rules,
        same_hashes,
    })
}
