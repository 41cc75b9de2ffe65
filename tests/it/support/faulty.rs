//! A proxy in front of a Redis server that knows its protocol, and gets in the way as a test asks.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::noise;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Connections stay open, and nothing passes; when it ends, what was held goes on its way.
    Silence,
    /// Replies come so much later.
    Delay(Duration),
    /// Commands reach the server; from the next reply on, a connection gets none.
    LoseReplies,
    /// Of so many calls of a script one is answered so, and never reaches the server.
    Answer { text: String, of: usize },
    /// The same of so many percent of the calls, at random.
    Sometimes { text: String, percent: u64 },
    /// A new connection ends at once.
    Refuse,
}

impl Fault {
    /// Each call of a script is answered with this error.
    pub(crate) fn error(text: &str) -> Self {
        Self::reply(&format!("-{text}\r\n"))
    }

    /// So many percent of the calls of scripts are answered with this error.
    pub(crate) fn errors(text: &str, percent: u64) -> Self {
        let text = format!("-{text}\r\n");
        Self::Sometimes { text, percent }
    }

    /// Each call of a script is answered with these bytes.
    pub(crate) fn reply(text: &str) -> Self {
        Self::Answer {
            text: text.to_owned(),
            of: 1,
        }
    }
}

/// The proxy; it ends with the value.
pub(crate) struct Faulty {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    connects: AtomicUsize,
    calls: AtomicUsize,
}

struct State {
    target: u16,
    fault: Fault,
    lines: Vec<Arc<Line>>,
    ended: bool,
}

/// One connection through the proxy.
struct Line {
    client: TcpStream,
    server: TcpStream,
    /// Whether nothing passes any more, for good.
    dead: AtomicBool,
    /// For each command that the server has not answered, what the client is told instead.
    told: Mutex<VecDeque<Option<String>>>,
}

impl Faulty {
    /// In front of the server at this port, with nothing wrong.
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                target: port,
                fault: Fault::None,
                lines: Vec::new(),
                ended: false,
            }),
            changed: Condvar::new(),
            connects: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if serving.state().ended {
                    break;
                }
                serving.connects.fetch_add(1, SeqCst);
                if let Ok(client) = client {
                    let _ = serving.open(client);
                }
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Changes what goes wrong.
    pub(crate) fn set(&self, fault: Fault) {
        self.shared.state().fault = fault;
        self.shared.changed.notify_all();
    }

    /// New connections lead to this port; those that are open stay.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.state().target = port;
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for line in self.shared.state().lines.drain(..) {
            line.end();
        }
    }

    /// Lets all connections go dead without a word; new ones are well.
    pub(crate) fn cut_silently(&self) {
        for line in &self.shared.state().lines {
            line.dead.store(true, SeqCst);
        }
    }

    /// How many connections there were.
    pub(crate) fn connects(&self) -> usize {
        self.shared.connects.load(SeqCst)
    }

    /// How many calls of scripts there were.
    pub(crate) fn calls(&self) -> usize {
        self.shared.calls.load(SeqCst)
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        self.cut();
        // The thread that accepts looks up.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let mut state = self.state();
        if state.fault == Fault::Refuse {
            return Ok(());
        }
        let server = TcpStream::connect(("127.0.0.1", state.target))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let line = Arc::new(Line {
            client,
            server,
            dead: AtomicBool::new(false),
            told: Mutex::default(),
        });
        state.lines.push(Arc::clone(&line));
        drop(state);
        for pump in [Self::up, Self::down] {
            let (shared, line) = (Arc::clone(self), Arc::clone(&line));
            std::thread::spawn(move || {
                let _ = pump(&shared, &line);
                if !line.dead.load(SeqCst) {
                    line.end();
                }
            });
        }
        Ok(())
    }

    /// Brings commands to the server.
    fn up(&self, line: &Line) -> io::Result<()> {
        let mut from = BufReader::new(line.client.try_clone()?);
        let mut to = line.server.try_clone()?;
        loop {
            let command = frame(&mut from)?;
            let fault = self.fault();
            if line.dead.load(SeqCst) {
                continue;
            }
            let mut told = None;
            if is_call(&command) {
                let call = self.calls.fetch_add(1, SeqCst);
                told = match fault {
                    Fault::Answer { text, of } if call.is_multiple_of(of) => Some(text),
                    Fault::Sometimes { text, percent } if lot(call) < percent => Some(text),
                    _ => None,
                };
            }
            // Something is sent in its place, so that the replies keep their order.
            let sent = if told.is_some() {
                &b"PING\r\n"[..]
            } else {
                &command
            };
            line.told.lock().unwrap().push_back(told);
            to.write_all(sent)?;
        }
    }

    /// Brings replies to the client.
    fn down(&self, line: &Line) -> io::Result<()> {
        let mut from = BufReader::new(line.server.try_clone()?);
        let mut to = line.client.try_clone()?;
        loop {
            let is_first = from.buffer().is_empty();
            let reply = frame(&mut from)?;
            match self.fault() {
                Fault::LoseReplies => line.dead.store(true, SeqCst),
                // Those that came with the one before have waited with it.
                Fault::Delay(delay) if is_first => std::thread::sleep(delay),
                _ => {}
            }
            if line.dead.load(SeqCst) {
                continue;
            }
            match line.told.lock().unwrap().pop_front().flatten() {
                Some(told) => to.write_all(told.as_bytes())?,
                None => to.write_all(&reply)?,
            }
        }
    }

    /// What goes wrong, once it is not silence.
    fn fault(&self) -> Fault {
        let state = self.state();
        let silent = |state: &mut State| state.fault == Fault::Silence && !state.ended;
        let state = self.changed.wait_while(state, silent);
        state.unwrap_or_else(PoisonError::into_inner).fault.clone()
    }
}

impl Line {
    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

/// Reads one command or reply.
fn frame(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let (mut frame, mut left) = (Vec::new(), 1_usize);
    while left > 0 {
        let start = frame.len();
        from.read_until(b'\n', &mut frame)?;
        let line = &frame[start..];
        let Some((kind, rest)) = line.split_first() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let length = String::from_utf8_lossy(rest).trim_end().parse().unwrap_or(-1_i64);
        let length = usize::try_from(length).unwrap_or(0);
        left -= 1;
        match kind {
            b'*' => left += length,
            b'$' if !line.starts_with(b"$-") => {
                let body = u64::try_from(length + 2).unwrap();
                from.take(body).read_to_end(&mut frame)?;
            }
            _ => {}
        }
    }
    Ok(frame)
}

/// A number below 100 that looks random, the same for the same call.
fn lot(call: usize) -> u64 {
    let bytes = noise(16, 2 * call as u64);
    bytes
        .iter()
        .fold(0, |sum, byte| sum * 256 % 100 + u64::from(*byte))
        % 100
}

/// Whether a command calls a script.
fn is_call(command: &[u8]) -> bool {
    let word = command.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    word.starts_with(b"EVAL")
}
