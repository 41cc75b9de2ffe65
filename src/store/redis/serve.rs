//! The task that serves a link: it keeps a connection as long as it is of use, and opens the next when it is needed.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::cause::Cause;
use super::line::{End, Line};
use super::link::Link;
use crate::clock;

/// How often a connection is replaced for an error that another one might not give: an address may lead to servers that
/// do not agree, and connections must stay few.
const REPLACED: Duration = Duration::from_secs(1);

/// Serves a link until it is closed and has nothing left to send.
pub(super) async fn serve(link: Arc<Link>) {
    let whole = Arc::new(link.shard.scripts.whole());
    let mut left_behind: Option<AbortHandle> = None;
    let mut stays = None;
    link.begin();
    while link.filled().await {
        let shard = Arc::clone(&link.shard);
        if shard.is_in_trouble() {
            link.refuse();
            continue;
        }
        let patience = link.patience();
        let patience = patience.unwrap_or_else(|| clock::now() + shard.settings.deadline);
        let opened = timeout_at(patience.into(), shard.connect()).await;
        let cause = match opened {
            Ok(Ok(connected)) => {
                let mut line = Line::new(&link, &whole, connected, stays);
                match line.serve().await {
                    End::Doubtful => {
                        // One at a time: connections do not pile up.
                        let behind = tokio::spawn(line.linger()).abort_handle();
                        if let Some(earlier) = left_behind.replace(behind) {
                            earlier.abort();
                        }
                        continue;
                    }
                    End::Closed => continue,
                    End::Of(cause) => {
                        let waited = line.give_up_all();
                        // A server may end a connection that nobody waits at.
                        if !waited && matches!(cause, Cause::Cut(_)) {
                            continue;
                        }
                        if matches!(cause, Cause::Answered(_)) {
                            stays = Some(clock::now() + REPLACED);
                        }
                        cause
                    }
                }
            }
            Ok(Err(cause)) => refuse(&link, cause),
            Err(_) => refuse(&link, Cause::Silent(shard.settings.deadline)),
        };
        match cause {
            Cause::Unfit(_) => shard.trip(&cause),
            _ => shard.failed(&cause),
        }
    }
    link.end();
}

/// Nothing can be sent.
fn refuse(link: &Link, cause: Cause) -> Cause {
    link.shard.meter.not_executed.inc();
    link.refuse();
    cause
}
