//! An HTTP/1.1 client that sends exact bytes and keeps every byte that it received.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Answer, Ask};

/// How long an answer may take where a test does not say otherwise.
const PATIENCE: Duration = Duration::from_secs(15);

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    /// Received and not yet read as part of an answer.
    buffer: Vec<u8>,
    /// Everything that was received.
    pub(crate) received: Vec<u8>,
    patience: Duration,
}

/// What a read brought.
enum Got {
    Bytes,
    End,
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)
            .unwrap_or_else(|error| panic!("cannot connect to {addr}: {error}"));
        Self::over(stream)
    }

    /// Connects from one of this machine's other loopback addresses.
    pub(crate) fn connect_from(source: Ipv4Addr, addr: SocketAddr) -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&addr.into()).unwrap();
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
            received: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Sends bytes; a connection that the gateway has closed is no failure of the test.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a request and reads its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, ask: &Ask) -> Answer {
        self.send(ask.bytes());
        self.answer_to(&ask.method)
    }

    #[track_caller]
    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.ask(&Ask::get(target))
    }

    /// Reads the next answer, to a request that was not a HEAD.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Answer {
        self.answer_to("GET")
    }

    /// Reads the next answer.
    #[track_caller]
    pub(crate) fn answer_to(&mut self, method: &str) -> Answer {
        match self.try_answer(method) {
            Ok(answer) => answer,
            Err(why) => panic!(
                "no answer: {why}; received {:?}",
                String::from_utf8_lossy(&self.received)
            ),
        }
    }

    /// Reads the next answer, if a complete one comes.
    pub(crate) fn try_answer(&mut self, method: &str) -> Result<Answer, String> {
        let mut interim = Vec::new();
        loop {
            let head = self.until(b"\r\n\r\n")?;
            let (status, fields) = parse_head(&head)?;
            if status < 200 && status != 101 {
                interim.push(status);
                continue;
            }
            let mut answer = Answer {
                status,
                fields,
                interim,
                head,
                ..Answer::default()
            };
            self.body(method, &mut answer)?;
            return Ok(answer);
        }
    }

    /// Reads one interim or final head and nothing more.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Answer {
        let head = self.until(b"\r\n\r\n").unwrap();
        let (status, fields) = parse_head(&head).unwrap();
        Answer {
            status,
            fields,
            head,
            ..Answer::default()
        }
    }

    fn body(&mut self, method: &str, answer: &mut Answer) -> Result<(), String> {
        if method == "HEAD" || matches!(answer.status, 101 | 204 | 304) {
            return Ok(());
        }
        if method == "CONNECT" && answer.status / 100 == 2 {
            return Ok(());
        }
        if let Some(encoding) = answer.field("transfer-encoding") {
            if !encoding.eq_ignore_ascii_case("chunked") {
                return Err(format!("transfer-encoding {encoding}"));
            }
            return self.chunks(answer);
        }
        if let Some(length) = answer.field("content-length") {
            let length = length.parse().map_err(|_| format!("content-length {length}"))?;
            answer.body = self.exactly(length)?;
            return Ok(());
        }
        while let Got::Bytes = self.read(self.patience)? {}
        answer.body = std::mem::take(&mut self.buffer);
        Ok(())
    }

    fn chunks(&mut self, answer: &mut Answer) -> Result<(), String> {
        loop {
            let line = self.until(b"\r\n")?;
            let size = std::str::from_utf8(&line[..line.len() - 2]).map_err(|error| error.to_string())?;
            let size = usize::from_str_radix(size, 16).map_err(|_| format!("chunk size {size:?}"))?;
            if size == 0 {
                break;
            }
            answer.body.extend(self.exactly(size)?);
            self.exactly(2)?;
        }
        loop {
            let line = self.until(b"\r\n")?;
            if line == b"\r\n" {
                return Ok(());
            }
            answer.trailers.push(parse_field(&line[..line.len() - 2])?);
        }
    }

    /// Reads up to and with `end`.
    fn until(&mut self, end: &[u8]) -> Result<Vec<u8>, String> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|window| window == end) {
                return Ok(self.buffer.drain(..at + end.len()).collect());
            }
            if let Got::End = self.read(self.patience)? {
                return Err("the connection ended".to_owned());
            }
        }
    }

    /// Reads so many bytes of a body.
    pub(crate) fn exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.buffer.len() < length {
            if let Got::End = self.read(self.patience)? {
                return Err("the connection ended inside a body".to_owned());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    fn read(&mut self, limit: Duration) -> Result<Got, String> {
        let mut bytes = [0; 16 * 1024];
        self.stream.set_read_timeout(Some(limit)).unwrap();
        match self.stream.read(&mut bytes) {
            Ok(0) => Ok(Got::End),
            Ok(length) => {
                self.buffer.extend(&bytes[..length]);
                self.received.extend(&bytes[..length]);
                Ok(Got::Bytes)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(format!("nothing for {limit:?}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the gateway closes the connection within `limit`, after whatever it still sends.
    pub(crate) fn closes_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            match self.read(left) {
                Ok(Got::Bytes) => {}
                Ok(Got::End) => return true,
                Err(why) => return !why.starts_with("nothing"),
            }
        }
    }

    /// Ends the sending side, as a client does that has said all it wants to.
    pub(crate) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// A second hand on the same connection, to send while answers are read.
    pub(crate) fn sender(&self) -> Self {
        Self::over(self.stream.try_clone().unwrap())
    }

    /// Closes so that the gateway is told by a reset.
    pub(crate) fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

fn parse_head(head: &[u8]) -> Result<(u16, Vec<(String, String)>), String> {
    let mut lines = head[..head.len() - 4].split(|&byte| byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let status = first
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| first.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| format!("status line {first:?}"))?;
    let fields = lines
        .map(|line| parse_field(line.strip_suffix(b"\r").unwrap_or(line)))
        .collect::<Result<_, _>>()?;
    Ok((status, fields))
}

fn parse_field(line: &[u8]) -> Result<(String, String), String> {
    let line = String::from_utf8_lossy(line);
    let (name, value) = line
        .split_once(':')
        .ok_or_else(|| format!("field line {line:?}"))?;
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

/// An address that nothing listens on.
pub(crate) fn unused_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
