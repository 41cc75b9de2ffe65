//! Scripted upstreams that keep what they received, byte for byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a script waits for the gateway.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One request as the upstream read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Number of the connection that it came by.
    pub(crate) connection: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// The head, byte for byte.
    pub(crate) head: Vec<u8>,
    /// Names in lower case, in order.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    /// The body without its chunks; what was read of it.
    pub(crate) body: Vec<u8>,
    /// The body as it was sent.
    pub(crate) raw_body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether the body was read to its end.
    pub(crate) complete: bool,
}

impl Seen {
    /// The value of a field that occurs at most once.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} came {} times: {self:?}", all.len());
        all.into_iter().next()
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.fields
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    /// How the body was framed: none, its length, or chunked.
    #[track_caller]
    pub(crate) fn framing(&self) -> String {
        match (self.field("content-length"), self.field("transfer-encoding")) {
            (None, None) => "none".to_owned(),
            (Some(length), None) => length,
            (None, Some(encoding)) => encoding,
            both => panic!("both framings: {both:?}"),
        }
    }
}

/// Something that a script waits for until the test opens it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        drop(
            self.0
                .1
                .wait_timeout_while(open, PATIENCE, |open| !*open)
                .unwrap(),
        );
    }
}

type Script = dyn Fn(&mut Exchange<'_>) + Send + Sync;

struct Shared {
    seen: Mutex<Vec<Seen>>,
    changed: Condvar,
    connections: AtomicUsize,
    open: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
    script: Box<Script>,
    idle: Option<Duration>,
}

/// An upstream that answers by a script.
pub(crate) struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Upstream {
    /// An upstream with a script of the test's own; it is called once for each request head.
    pub(crate) fn script(script: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self::build(None, Box::new(script))
    }

    /// The same; with `idle`, it closes connections after so long a silence.
    pub(super) fn build(idle: Option<Duration>, script: Box<Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            changed: Condvar::new(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            streams: Mutex::default(),
            script,
            idle,
        });
        let accepting = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), Some(shared)) = (stream, accepting.upgrade()) else {
                    break;
                };
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                shared.open.fetch_add(1, Ordering::SeqCst);
                shared.streams.lock().unwrap().push(stream.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    serve(&stream, number, &shared);
                    let _ = stream.shutdown(Shutdown::Both);
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The last request.
    #[track_caller]
    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("the upstream saw a request")
    }

    /// How many requests came.
    pub(crate) fn count(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    /// How many requests came for a target.
    pub(crate) fn count_of(&self, target: &str) -> usize {
        self.seen().iter().filter(|seen| seen.target == target).count()
    }

    /// How many connections were ever opened.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Waits until so many requests came.
    #[track_caller]
    pub(crate) fn await_count(&self, count: usize) {
        let end = Instant::now() + PATIENCE;
        let mut seen = self.shared.seen.lock().unwrap();
        while seen.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} requests came, not {count}", seen.len());
            seen = self.shared.changed.wait_timeout(seen, left).unwrap().0;
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(stream: &TcpStream, number: usize, shared: &Shared) {
    let mut buffer = Vec::new();
    loop {
        let _ = stream.set_read_timeout(shared.idle);
        let Some(head) = read_until(stream, &mut buffer, b"\r\n\r\n") else {
            return;
        };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let mut request = parse(&head);
        request.connection = number;
        let index = {
            let mut seen = shared.seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        shared.changed.notify_all();
        let mut exchange = Exchange {
            request,
            index,
            stream,
            buffer: &mut buffer,
            shared,
            open: true,
        };
        (shared.script)(&mut exchange);
        if !exchange.open {
            return;
        }
    }
}

/// A request and the connection to answer it on.
pub(crate) struct Exchange<'c> {
    pub(crate) request: Seen,
    index: usize,
    stream: &'c TcpStream,
    buffer: &'c mut Vec<u8>,
    shared: &'c Shared,
    open: bool,
}

impl Exchange<'_> {
    /// Reads the body to its end; a script that does not call this leaves it unread.
    pub(crate) fn body(&mut self) -> Vec<u8> {
        if self.request.complete {
            return self.request.body.clone();
        }
        let done = match (
            self.request.all("transfer-encoding").pop(),
            self.request.all("content-length").pop(),
        ) {
            (Some(_), _) => self.chunks(),
            (None, Some(length)) => self.length(length.parse().unwrap_or(0)),
            (None, None) => Some(()),
        };
        self.request.complete = done.is_some();
        self.shared.seen.lock().unwrap()[self.index] = self.request.clone();
        self.shared.changed.notify_all();
        self.request.body.clone()
    }

    /// Reads a part of a body that is not chunked; less where the connection ends.
    pub(crate) fn part(&mut self, length: usize) {
        let bytes = read_exactly(self.stream, self.buffer, length);
        let bytes = bytes.unwrap_or_else(|| std::mem::take(self.buffer));
        self.request.body.extend(bytes);
        self.shared.seen.lock().unwrap()[self.index] = self.request.clone();
        self.shared.changed.notify_all();
    }

    fn length(&mut self, length: usize) -> Option<()> {
        let left = length.saturating_sub(self.request.body.len());
        let bytes = read_exactly(self.stream, self.buffer, left)?;
        self.request.body.extend(&bytes);
        self.request.raw_body.extend(&bytes);
        Some(())
    }

    fn chunks(&mut self) -> Option<()> {
        loop {
            let line = read_until(self.stream, self.buffer, b"\r\n")?;
            self.request.raw_body.extend(&line);
            let size = usize::from_str_radix(std::str::from_utf8(&line[..line.len() - 2]).ok()?, 16).ok()?;
            if size == 0 {
                break;
            }
            let data = read_exactly(self.stream, self.buffer, size + 2)?;
            self.request.raw_body.extend(&data);
            self.request.body.extend(&data[..size]);
        }
        loop {
            let line = read_until(self.stream, self.buffer, b"\r\n")?;
            self.request.raw_body.extend(&line);
            if line == b"\r\n" {
                return Some(());
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            let (name, value) = line.split_once(':')?;
            self.request
                .trailers
                .push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) {
        if (&mut &*self.stream).write_all(bytes.as_ref()).is_err() {
            self.open = false;
        }
    }

    /// The same; false where the gateway has closed the connection.
    pub(crate) fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.write(bytes);
        self.open
    }

    /// Writes a response with a length.
    pub(crate) fn reply(&mut self, status: u16, fields: &str, body: &[u8]) {
        let length = if matches!(status, 204 | 304) {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        self.write(format!("HTTP/1.1 {status} Scripted\r\n{fields}{length}\r\n"));
        if self.request.method != "HEAD" && !matches!(status, 204 | 304) {
            self.write(body);
        }
    }

    /// Ends the connection after this exchange.
    pub(crate) fn close(&mut self) {
        self.open = false;
    }

    /// Waits until the gateway has closed the connection; false if it has not by `limit`.
    pub(crate) fn closed_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        self.open = false;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match (&mut &*self.stream).read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }
}

fn parse(head: &[u8]) -> Seen {
    let mut lines = head[..head.len() - 4].split(|&byte| byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let mut words = first.trim_end().splitn(2, ' ');
    let method = words.next().unwrap_or_default().to_owned();
    let rest = words.next().unwrap_or_default();
    let target = rest
        .rsplit_once(' ')
        .map_or(rest, |(target, _)| target)
        .to_owned();
    let fields = lines
        .filter_map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|&byte| byte == b':')?;
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            Some((name, line[colon + 1..].trim_ascii().to_vec()))
        })
        .collect();
    Seen {
        method,
        target,
        head: head.to_vec(),
        fields,
        ..Seen::default()
    }
}

fn read_until(stream: &TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|window| window == end) {
            return Some(buffer.drain(..at + end.len()).collect());
        }
        more(stream, buffer)?;
    }
}

fn read_exactly(stream: &TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        more(stream, buffer)?;
    }
    Some(buffer.drain(..length).collect())
}

fn more(mut stream: &TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; 64 * 1024];
    match stream.read(&mut bytes) {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            buffer.extend(&bytes[..length]);
            Some(())
        }
    }
}
