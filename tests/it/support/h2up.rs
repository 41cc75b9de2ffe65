//! An upstream that speaks HTTP/2 with prior knowledge.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

/// One request as the upstream read it; `trailers` and `body` are those of its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenH2 {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
    pub(crate) reset: bool,
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<SeenH2>>,
    /// How often a path was asked for.
    turns: Mutex<HashMap<String, usize>>,
    connections: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// It answers by path:
///
/// `/echo` repeats what it hears, as it hears it, and ends with trailers that were not announced; `/error` answers with a
/// head alone that is a gRPC error; `/once/refused` and `/once/goaway` refuse the first request without a look at it;
/// `/cancel` takes the request and resets it; `/wait` answers when the gate opens, and everything else with the path.
pub(crate) struct H2Upstream {
    addr: SocketAddr,
    state: Arc<State>,
    gate: Arc<Semaphore>,
    _stop: oneshot::Sender<()>,
}

impl H2Upstream {
    /// One that allows so many streams at once on a connection.
    pub(crate) fn start(streams: u32) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State::default());
        let gate = Arc::new(Semaphore::new(0));
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = (Arc::clone(&state), Arc::clone(&gate));
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        let (state, gate) = shared.clone();
                        tokio::spawn(connection(socket, streams, state, gate));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            addr,
            state,
            gate,
            _stop: stop,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn seen(&self) -> Vec<SeenH2> {
        self.state.seen.lock().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn last(&self) -> SeenH2 {
        self.seen().pop().expect("the upstream saw a request")
    }

    /// How often a path was asked for, those that were refused included.
    pub(crate) fn turns(&self, path: &str) -> usize {
        self.state.turns.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The most requests that were under way at once.
    pub(crate) fn most(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

async fn connection(socket: TcpStream, streams: u32, state: Arc<State>, gate: Arc<Semaphore>) {
    state.connections.fetch_add(1, Ordering::SeqCst);
    socket.set_nodelay(true).unwrap();
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(streams)
        .handshake(socket);
    let Ok(mut connection) = handshake.await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let path = request.uri().path().to_owned();
        let turn = {
            let mut turns = state.turns.lock().unwrap();
            let turn = turns.entry(path.clone()).or_default();
            *turn += 1;
            *turn
        };
        match path.as_str() {
            "/once/refused" if turn == 1 => respond.send_reset(Reason::REFUSED_STREAM),
            "/once/goaway" if turn == 1 => {
                // The last stream that it names is 0, as far as this crate lets us.
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            }
            _ => {
                tokio::spawn(answer(request, respond, Arc::clone(&state), Arc::clone(&gate)));
            }
        }
    }
}

async fn answer(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    state: Arc<State>,
    gate: Arc<Semaphore>,
) {
    let now = state.now.fetch_add(1, Ordering::SeqCst) + 1;
    state.most.fetch_max(now, Ordering::SeqCst);
    let (head, mut body) = request.into_parts();
    let index = {
        let mut seen = state.seen.lock().unwrap();
        seen.push(SeenH2 {
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            fields: head.headers.clone(),
            ..SeenH2::default()
        });
        seen.len() - 1
    };
    let path = head.uri.path().to_owned();
    let plain = || Response::builder().header("content-type", "application/grpc");
    match path.as_str() {
        "/error" => {
            let head = plain().header("grpc-status", "5").header("grpc-message", "none");
            let _ = respond.send_response(head.body(()).unwrap(), true);
        }
        "/cancel" => respond.send_reset(Reason::CANCEL),
        "/echo" => {
            let mut sender = respond.send_response(plain().body(()).unwrap(), false).unwrap();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
                state.seen.lock().unwrap()[index].body.extend(&data);
                let _ = sender.send_data(data, false);
            }
            if let Ok(Some(trailers)) = body.trailers().await {
                state.seen.lock().unwrap()[index].trailers = trailers;
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let _ = sender.send_trailers(trailers);
        }
        _ => {
            if path == "/wait" {
                tokio::select! {
                    _ = gate.acquire() => {}
                    _ = std::future::poll_fn(|cx| respond.poll_reset(cx)) => {
                        state.seen.lock().unwrap()[index].reset = true;
                    }
                }
            } else if let Some(millis) = path.strip_prefix("/after/") {
                tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
            }
            if let Ok(mut sender) = respond.send_response(Response::new(()), false) {
                let _ = sender.send_data(format!("{} {path}\n", head.method).into(), true);
            }
        }
    }
    state.now.fetch_sub(1, Ordering::SeqCst);
}
