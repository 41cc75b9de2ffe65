//! An HTTP/2 client with prior knowledge, over plain TCP.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::{Answer, Ask};

const PATIENCE: Duration = Duration::from_secs(15);

/// A connection. It is worked on in a thread of its own, also while the test does something else.
pub(crate) struct H2 {
    runtime: Handle,
    sender: SendRequest<Bytes>,
    _stop: oneshot::Sender<()>,
}

/// A request under way.
pub(crate) struct Stream {
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    pub(crate) sender: SendStream<Bytes>,
}

impl Stream {
    fn new(response: ResponseFuture, sender: SendStream<Bytes>) -> Self {
        Self {
            response: Some(response),
            body: None,
            sender,
        }
    }
}

/// Why there is no answer.
pub(crate) type Failure = h2::Error;

impl H2 {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let sender = handle.block_on(async {
            let stream = TcpStream::connect(addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Self {
            runtime: handle,
            sender,
            _stop: stop,
        }
    }

    fn wait<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, future)
                .await
                .unwrap_or_else(|_| panic!("waited in vain over HTTP/2: {what}"))
        })
    }

    /// Sends a request with all of its body, and reads the answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, ask: &Ask) -> Answer {
        self.try_ask(ask)
            .unwrap_or_else(|error| panic!("no answer to {} {}: {error}", ask.method, ask.target))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.ask(&Ask::get(target))
    }

    /// The same where the gateway may refuse to speak.
    pub(crate) fn try_ask(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        let stream = self.send(ask)?;
        self.answer(stream)
    }

    /// Sends a request with all of its body, as far as the gateway wants it.
    pub(crate) fn send(&mut self, ask: &Ask) -> Result<Stream, Failure> {
        let bare = ask.body.is_none() && ask.trailers.is_empty();
        let mut stream = self.open(ask, bare)?;
        if bare {
            return Ok(stream);
        }
        let body = Bytes::from(ask.body.clone().unwrap_or_default());
        let trailers = (!ask.trailers.is_empty()).then(|| {
            let pairs = ask.trailers.iter().map(|(name, value)| {
                (
                    HeaderName::try_from(name.as_str()).unwrap(),
                    HeaderValue::try_from(value.as_str()).unwrap(),
                )
            });
            pairs.collect::<HeaderMap>()
        });
        // An answer that comes before the body is read ends the sending, not the request.
        let _ = self.wait("sending a body", upload(&mut stream.sender, body, trailers));
        Ok(stream)
    }

    /// Opens a stream; the body is the caller's.
    pub(crate) fn open(&mut self, ask: &Ask, end: bool) -> Result<Stream, Failure> {
        let request = request(ask);
        let ready = self.wait("a stream", self.sender.clone().ready())?;
        self.sender = ready;
        let (response, sender) = self.sender.send_request(request, end)?;
        Ok(Stream::new(response, sender))
    }

    /// Reads the answer of a stream to its end.
    pub(crate) fn answer(&self, stream: Stream) -> Result<Answer, Failure> {
        self.wait("an answer", async {
            let Stream {
                response,
                body,
                sender,
            } = stream;
            let mut answer = Answer::default();
            let mut body = match (body, response) {
                (Some(rest), _) => rest,
                (None, response) => {
                    let (head, body) = response.expect("a response").await?.into_parts();
                    answer.status = head.status.as_u16();
                    answer.fields = pairs(&head.headers);
                    body
                }
            };
            while let Some(data) = body.data().await {
                // After a complete answer, NO_ERROR says that the rest of the request is not wanted.
                let data = match data {
                    Err(error) if error.reason() == Some(Reason::NO_ERROR) => break,
                    data => data?,
                };
                body.flow_control().release_capacity(data.len())?;
                answer.body.extend(&data);
            }
            if let Ok(Some(trailers)) = body.trailers().await {
                answer.trailers = pairs(&trailers);
            }
            drop(sender);
            Ok(answer)
        })
    }

    /// Sends a part of a body.
    pub(crate) fn say(&self, stream: &mut Stream, text: &str, last: bool) {
        let text = Bytes::from(text.to_owned());
        self.wait("sending", async { stream.sender.send_data(text, last) })
            .unwrap();
    }

    /// Reads the head if it was not read yet, and one part of the body.
    #[track_caller]
    pub(crate) fn hear(&self, stream: &mut Stream) -> Vec<u8> {
        self.wait("a part of an answer", async {
            if let Some(response) = stream.response.take() {
                stream.body = Some(response.await.unwrap().into_body());
            }
            let body = stream.body.as_mut().unwrap();
            let data = body.data().await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            data.to_vec()
        })
    }

    /// Asks for a tunnel.
    #[track_caller]
    pub(crate) fn connect_to(&mut self, authority: &str) -> Answer {
        let request = Request::connect(authority).version(http::Version::HTTP_2);
        let ready = self.wait("a stream", self.sender.clone().ready()).unwrap();
        self.sender = ready;
        let (response, sender) = self.sender.send_request(request.body(()).unwrap(), true).unwrap();
        self.answer(Stream::new(response, sender)).unwrap()
    }

    /// Takes a request back.
    pub(crate) fn cancel(&self, mut stream: Stream) {
        stream.sender.send_reset(Reason::CANCEL);
    }
}

fn request(ask: &Ask) -> Request<()> {
    let uri = match &ask.host {
        Some(host) => format!("http://{host}{}", ask.target),
        None => ask.target.clone(),
    };
    let mut request = Request::builder()
        .version(http::Version::HTTP_2)
        .method(ask.method.as_str())
        .uri(uri);
    for (name, value) in &ask.fields {
        request = request.header(
            name.as_str(),
            HeaderValue::from_bytes(value).expect("a legal field value"),
        );
    }
    if let (Some(body), false) = (&ask.body, ask.chunked) {
        request = request.header("content-length", body.len());
    }
    request.body(()).unwrap()
}

async fn upload(
    sender: &mut SendStream<Bytes>,
    mut body: Bytes,
    trailers: Option<HeaderMap>,
) -> Result<(), Failure> {
    let last = trailers.is_none();
    while !body.is_empty() {
        sender.reserve_capacity(body.len().min(64 * 1024));
        let Some(capacity) = poll_fn(|cx| sender.poll_capacity(cx)).await else {
            return Ok(());
        };
        let part = body.split_to(capacity?.min(body.len()));
        let end = last && body.is_empty();
        sender.send_data(part, end)?;
        if end {
            return Ok(());
        }
    }
    match trailers {
        Some(trailers) => sender.send_trailers(trailers),
        None => sender.send_data(Bytes::new(), true),
    }
}

fn pairs(fields: &HeaderMap) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect()
}
