//! HTTP/2 frame by frame: requests that no well-behaved client would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection that sends single frames.
pub(crate) struct Frames {
    stream: TcpStream,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A response; 0 is a status that has no place in HPACK's table.
    Status(u16),
    /// The stream was reset.
    Reset,
    /// The connection was given up.
    Gone,
}

impl Frames {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut frames = Self { stream };
        let _ = frames.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        frames.send(SETTINGS, 0, 0, &[]);
        frames
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        let _ = self.stream.write_all(&frame);
    }

    /// Sends a head.
    pub(crate) fn head(&mut self, stream: u32, fields: &[(&str, &[u8])], last: bool) {
        let flags = END_HEADERS | if last { END_STREAM } else { 0 };
        self.send(HEADERS, flags, stream, &literal(fields));
    }

    /// Sends a part of a body.
    pub(crate) fn data(&mut self, stream: u32, data: &[u8]) {
        self.send(DATA, 0, stream, data);
    }

    /// Takes a stream back.
    pub(crate) fn reset(&mut self, stream: u32) {
        const CANCEL: u32 = 8;
        self.send(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    }

    /// Whether the gateway has closed the connection; reads what it sent until now.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let mut bytes = [0; 64 * 1024];
        let closed = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
            }
        };
        self.stream.set_nonblocking(false).unwrap();
        closed
    }

    /// Reads until there is a reply on the stream.
    pub(crate) fn reply(&mut self, wanted: u32) -> Reply {
        loop {
            let mut head = [0; 9];
            if self.stream.read_exact(&mut head).is_err() {
                return Reply::Gone;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length];
            if self.stream.read_exact(&mut payload).is_err() {
                return Reply::Gone;
            }
            match head[3] {
                SETTINGS if head[4] & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]),
                GOAWAY => return Reply::Gone,
                RST_STREAM if stream == wanted => return Reply::Reset,
                HEADERS if stream == wanted => return Reply::Status(status(&payload)),
                _ => {}
            }
        }
    }
}

/// Fields as literals without compression (RFC 7541, 6.2.2).
fn literal(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name.as_bytes(), *value] {
            assert!(text.len() < 127, "a length of one byte");
            block.push(text.len() as u8);
            block.extend(text);
        }
    }
    block
}

/// The status of a response whose block begins with an entry of the static table, after changes of the table's size.
fn status(block: &[u8]) -> u16 {
    let first = block.iter().find(|byte| **byte & 0xe0 != 0x20);
    match first {
        Some(0x88) => 200,
        Some(0x89) => 204,
        Some(0x8b) => 304,
        Some(0x8c) => 400,
        Some(0x8d) => 404,
        Some(0x8e) => 500,
        _ => 0,
    }
}
