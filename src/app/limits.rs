//! The limiting stage without a gateway, for a service of one's own.

use std::path::Path;
use std::sync::Arc;

use super::AppError;
use crate::clock::Clock;
use crate::config::{self, Surroundings};
use crate::decide::{EdgeSettings, Lasting, Limiter};
use crate::identity::Secret;
use crate::proxy::{LimitLayer, Limits};
use crate::rules::RuleTable;
use crate::store::{Backend, Memory, memory};
use crate::telemetry::Metrics;

/// The name of the text in messages.
const NAME: &str = "limits";

/// A tower layer that puts a rule table before any HTTP service. `text` is what `gateway.toml` has of it: `[[rule]]`,
/// `[identity]`, `[headers]`, `server.trusted_proxies`, `store.max_keys` and `store.hash_key`; everything else is
/// checked and does nothing. Files are relative to the working folder.
///
/// The state is in memory, and shared by all clones of the layer and by all services that it is put before.
///
/// # Errors
/// The text has faults; the report has each with its line.
pub fn limits(text: &str) -> Result<LimitLayer, AppError> {
    let surroundings = Surroundings::of_process(Path::new(""));
    let loaded = config::parse_limits(NAME, text, &surroundings)
        .map_err(|report| AppError::Config(Box::new(report)))?;
    for finding in loaded.report.findings() {
        tracing::warn!("{finding}");
    }
    let settings = loaded.settings;
    let secret = match settings.secret {
        Some(secret) => secret,
        None => Secret::random()?,
    };
    let memory = memory::Settings {
        max_keys: settings.store.max_keys,
    };
    let store = Backend::Memory(Arc::new(Memory::new(memory, Clock::monotonic())));
    let rules = Arc::new(RuleTable::new(settings.rules, settings.identity.clone(), secret));
    let limiter = Limiter::new(
        store,
        &rules,
        &Arc::new(Metrics::new()?),
        Lasting::default(),
        EdgeSettings::default(),
    );
    let limits = Limits::new(settings.identity, rules, limiter, settings.proxy.profiles);
    Ok(LimitLayer::new(Arc::new(limits)))
}
