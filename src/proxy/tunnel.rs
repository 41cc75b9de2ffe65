//! What follows a 101: bytes of another protocol, both ways, until both sides have closed.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use crate::clock;

/// How long the side that is still open may be silent after the other has closed.
const HALF_OPEN: Duration = Duration::from_secs(30);

const BUFFER: usize = 16 << 10;

/// Passes on, in the background, what client and upstream say to each other. `held` is dropped at the end.
pub(super) fn start<H: Send + 'static>(client: OnUpgrade, upstream: OnUpgrade, held: H) {
    tokio::spawn(async move {
        if let (Ok(upstream), Ok(client)) = (upstream.await, client.await) {
            let ended = join(client, upstream).await;
            tracing::debug!(broken = ended.is_err(), "tunnel ended");
        }
        drop(held);
    });
}

async fn join(client: Upgraded, upstream: Upgraded) -> io::Result<()> {
    let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
    let (mut up, mut down) = (Pump::new(), Pump::new());
    let mut silence = pin!(sleep(HALF_OPEN));
    let mut seen = None;
    poll_fn(|cx| {
        let up_ended = up
            .poll(cx, Pin::new(&mut client), Pin::new(&mut upstream))?
            .is_ready();
        let down_ended = down
            .poll(cx, Pin::new(&mut upstream), Pin::new(&mut client))?
            .is_ready();
        match (up_ended, down_ended) {
            (true, true) => return Poll::Ready(Ok(())),
            (false, false) => return Poll::Pending,
            _ => {}
        }
        let passed = Some(up.passed + down.passed);
        if seen != passed {
            seen = passed;
            silence.as_mut().reset((clock::now() + HALF_OPEN).into());
        }
        silence.as_mut().poll(cx).map(Ok)
    })
    .await
}

/// One direction.
struct Pump {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    passed: u64,
    dirty: bool,
    stage: Stage,
}

enum Stage {
    Open,
    /// The sender has closed; the receiver is to be told.
    Ending,
    Ended,
}

impl Pump {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER].into(),
            from: 0,
            to: 0,
            passed: 0,
            dirty: false,
            stage: Stage::Open,
        }
    }

    /// Moves what there is. Ready when the sender has closed and the receiver knows.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        mut reader: Pin<&mut R>,
        mut writer: Pin<&mut W>,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead,
        W: AsyncWrite,
    {
        loop {
            while self.from < self.to {
                let left = &self.buffer[self.from..self.to];
                let count = ready!(writer.as_mut().poll_write(cx, left))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.from += count;
                self.passed += count as u64;
                self.dirty = true;
            }
            match self.stage {
                Stage::Open => {}
                Stage::Ending => {
                    ready!(writer.as_mut().poll_shutdown(cx))?;
                    self.stage = Stage::Ended;
                    return Poll::Ready(Ok(()));
                }
                Stage::Ended => return Poll::Ready(Ok(())),
            }
            let mut buffer = ReadBuf::new(&mut self.buffer);
            match reader.as_mut().poll_read(cx, &mut buffer)? {
                Poll::Ready(()) => {
                    (self.from, self.to) = (0, buffer.filled().len());
                    if self.to == 0 {
                        self.stage = Stage::Ending;
                    }
                }
                Poll::Pending => {
                    if self.dirty {
                        ready!(writer.as_mut().poll_flush(cx))?;
                        self.dirty = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}
