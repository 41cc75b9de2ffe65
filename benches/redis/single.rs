//! The baseline: a call for each decision, with as many of them in flight on one connection.
//!
//! What is sent is what the store sends for one decision that is alone: it is recorded once, and sent over and over. So
//! the script and its arguments are the same, and the client has less to do than the store has.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tollgate::clock;
use tollgate::limit::Spec;

use crate::worker::{Order, Worker};

/// A connection, and the calls that are sent over it in turn.
pub(crate) struct Single {
    calls: Vec<Vec<u8>>,
    at: usize,
    out: TcpStream,
    replies: BufReader<TcpStream>,
}

/// Stands between the store and a server, and keeps what the store says.
struct Tap {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Single {
    /// Records the calls for these requests.
    pub(crate) fn new(port: u16, spec: &Spec, order: &Order) -> Self {
        let tap = Tap::before(port);
        let worker = Worker::new(tap.port, order[0].len(), spec);
        // The first decision connects.
        worker.decide(&order[0]);
        tap.take();
        let record = |keys: &Vec<_>| {
            worker.decide(keys);
            tap.take()
        };
        let out = connect(port);
        Self {
            calls: order.iter().map(record).collect(),
            at: 0,
            replies: BufReader::with_capacity(1 << 16, out.try_clone().unwrap()),
            out,
        }
    }

    /// Decides so long, with so many in flight at all times; says how many it were.
    pub(crate) fn run(&mut self, in_flight: usize, long: Duration) -> u64 {
        let until = clock::now() + long;
        let (mut decided, mut missing) = (0, in_flight);
        while clock::now() < until {
            self.send(missing);
            missing = self.answers();
            decided += missing as u64;
        }
        for _ in missing..in_flight {
            self.answer();
            decided += 1;
        }
        decided
    }

    fn send(&mut self, calls: usize) {
        let mut all = Vec::new();
        for _ in 0..calls {
            all.extend_from_slice(&self.calls[self.at]);
            self.at = (self.at + 1) % self.calls.len();
        }
        self.out.write_all(&all).unwrap();
    }

    /// Reads the replies that came together, at least one.
    fn answers(&mut self) -> usize {
        let mut answers = 0;
        loop {
            self.answer();
            answers += 1;
            if self.replies.buffer().is_empty() {
                return answers;
            }
        }
    }

    fn answer(&mut self) {
        let parts = value(&mut self.replies);
        assert_eq!(parts, Some(3), "no decision");
    }
}

impl Tap {
    fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tap = Self {
            port: listener.local_addr().unwrap().port(),
            heard: Arc::default(),
        };
        let heard = Arc::clone(&tap.heard);
        thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            client.set_nodelay(true).unwrap();
            pass(client, connect(port), &heard);
        });
        tap
    }

    /// What was said since the last time.
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

/// Passes on what both say, until the client ends.
fn pass(mut client: TcpStream, mut server: TcpStream, heard: &Mutex<Vec<u8>>) {
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || io::copy(&mut from, &mut to));
    let mut bytes = [0; 1 << 14];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        heard.lock().unwrap().extend_from_slice(&bytes[..length]);
        server.write_all(&bytes[..length]).unwrap();
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads over one value; says how many parts an array has.
fn value(replies: &mut impl BufRead) -> Option<usize> {
    let mut line = Vec::new();
    replies.read_until(b'\n', &mut line).unwrap();
    let number = || {
        std::str::from_utf8(&line[1..])
            .unwrap()
            .trim_end()
            .parse::<usize>()
            .ok()
    };
    match line.first()? {
        b'*' => {
            let parts = number()?;
            for _ in 0..parts {
                value(replies);
            }
            Some(parts)
        }
        b'$' => {
            let mut rest = vec![0; number()? + 2];
            replies.read_exact(&mut rest).unwrap();
            None
        }
        _ => None,
    }
}
