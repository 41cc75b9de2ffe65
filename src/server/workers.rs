//! The workers: threads with a runtime of their own each.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::thread;

use http::{Request, Response};
use http_body::Body;
use hyper::service::Service;

use super::{Shared, Stop, WorkerListeners, serve};
use crate::inbound::RequestBody;

/// A worker that ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not start.
    #[error("worker {worker} cannot start")]
    Start {
        /// Its number, from 0.
        worker: usize,
        /// What the system says.
        source: io::Error,
    },
    /// Its thread panicked.
    #[error("worker {worker} panicked")]
    Panic {
        /// Its number, from 0.
        worker: usize,
    },
}

/// Runs a worker on each set of listeners until the serving stops and all are drained. `factory` is called once on
/// each worker's own thread, inside its runtime, with the worker's number; what it returns makes the services of that
/// worker's connections. Returns how many connections were cut.
///
/// # Errors
/// A worker could not start or panicked; the others are stopped and drained first.
pub fn run<F, M, S, B>(
    listeners: Vec<WorkerListeners>,
    shared: &Shared,
    factory: F,
) -> Result<usize, WorkerError>
where
    F: Fn(usize) -> M + Sync,
    M: Fn(SocketAddr, SocketAddr) -> S + Clone + Send + 'static,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let factory = &factory;
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(listeners.len());
        for (worker, own) in listeners.into_iter().enumerate() {
            let body = move || {
                let _others = StopOnEnd(&shared.stop);
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async { serve(own, shared, factory(worker)).await })
            };
            let name = format!("worker-{worker}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, body);
            if spawned.is_err() {
                shared.stop.trigger();
            }
            threads.push(spawned);
        }
        let mut cut = Ok(0);
        for (worker, spawned) in threads.into_iter().enumerate() {
            let ended = match spawned.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(Ok(count))) => Ok(count),
                Ok(Ok(Err(source))) | Err(source) => Err(WorkerError::Start { worker, source }),
                Ok(Err(_)) => Err(WorkerError::Panic { worker }),
            };
            cut = match (cut, ended) {
                (Ok(sum), Ok(count)) => Ok(sum + count),
                (Err(first), _) | (_, Err(first)) => Err(first),
            };
        }
        cut
    })
}

/// A worker that ends, for whatever reason, ends them all: none of them may serve alone unseen.
struct StopOnEnd<'a>(&'a Stop);

impl Drop for StopOnEnd<'_> {
    fn drop(&mut self) {
        self.0.trigger();
    }
}
