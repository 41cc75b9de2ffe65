//! A client's socket, watched: every read and write is noted in the connection's phase.

use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::phase::{Fate, Phase};

const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// A socket whose first bytes may have been read already.
pub(super) struct Watched {
    socket: TcpStream,
    first: Bytes,
    phase: Arc<Phase>,
    shut: bool,
    _open: oneshot::Sender<Infallible>,
}

impl Watched {
    /// The receiver hears when the socket is closed, whoever holds it then.
    pub(super) fn new(
        socket: TcpStream,
        first: Bytes,
        phase: Arc<Phase>,
    ) -> (Self, oneshot::Receiver<Infallible>) {
        let (open, closed) = oneshot::channel();
        let watched = Self {
            socket,
            first,
            phase,
            shut: false,
            _open: open,
        };
        (watched, closed)
    }

    /// The end of what the client sends. It may have no more to say and wait for its answer, or be gone, which looks the
    /// same: while a request is in flight it is not told until the client counts as gone.
    fn poll_half_closed(&self) -> Poll<io::Result<()>> {
        if self.phase.awaits_answer() && self.phase.fate() != Fate::Gone {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// The end that a doomed connection reads; bytes that are there after all go first.
    fn poll_end(&self) -> Poll<io::Result<()>> {
        match self.phase.fate() {
            Fate::Close if self.phase.is_idle() => Poll::Ready(Ok(())),
            Fate::TimeOut if self.phase.in_head() => {
                // This is the next thing on the wire unless the response before still waits to be written.
                if !self.phase.is_stalled() {
                    let _refused = self.socket.try_write(TIMED_OUT);
                }
                Poll::Ready(Ok(()))
            }
            _ => Poll::Pending,
        }
    }

    /// Looks whether the client has hung up, without reading what it sent before. The runtime knows; nothing is asked of
    /// the system.
    fn look(&self) -> io::Result<()> {
        if !self.phase.take_look() {
            return Ok(());
        }
        let ready = pin!(self.socket.ready(Interest::READABLE | Interest::WRITABLE));
        let Poll::Ready(ready) = ready.poll(&mut Context::from_waker(Waker::noop())) else {
            return Ok(());
        };
        let ready = ready?;
        if ready.is_read_closed() && ready.is_write_closed() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if ready.is_read_closed() {
            self.phase.on_hangup();
        }
        Ok(())
    }

    fn wrote(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(_) => self.phase.on_write(),
            Poll::Pending => self.phase.on_blocked(),
        }
        outcome
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let taken = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..taken]);
            self.first.advance(taken);
            self.phase.on_read();
            return Poll::Ready(Ok(()));
        }
        if self.phase.has_ended() {
            return self.poll_half_closed();
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.socket).poll_read(cx, buf) {
            Poll::Pending => {
                self.phase.on_waiting();
                self.poll_end()
            }
            Poll::Ready(Ok(())) if buf.filled().len() == before => {
                self.phase.on_end();
                self.poll_half_closed()
            }
            Poll::Ready(outcome) => {
                self.phase.on_read();
                Poll::Ready(outcome)
            }
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.look()?;
        let outcome = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.look()?;
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look()?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Closes our side, then reads on until the client has closed its own: closing with unread bytes would reset the
    /// connection, and the client might lose the answer that it has not read yet. Another protocol has its own end.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.shut {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            self.shut = true;
        }
        if self.phase.has_ended() || self.phase.has_switched() || self.phase.fate() != Fate::Keep {
            return Poll::Ready(Ok(()));
        }
        self.phase.on_linger();
        let mut waste = [0; 4096];
        loop {
            let mut waste = ReadBuf::new(&mut waste);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut waste)) {
                Ok(()) if !waste.filled().is_empty() => self.phase.on_read(),
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}
