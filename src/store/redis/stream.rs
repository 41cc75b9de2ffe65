//! The bytes to and from a server, in the clear or by TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::cause::Cause;
use super::settings::{Address, Settings};

/// How long a server may take to shake hands: less than a try that is made in the background, so that it is known what a
/// server is silent to. One without TLS waits for more of what it takes for a command.
const HANDSHAKE: Duration = Duration::from_millis(800);

/// The bytes to and from a server.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects, and shakes hands if the address is one for TLS.
    ///
    /// # Errors
    /// There is no connection, or the server is not the one that is meant.
    pub(super) async fn open(address: &Address, settings: &Settings) -> Result<Self, Cause> {
        let connected = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = connected.map_err(|error| Cause::Unreachable(error.to_string()))?;
        stream.set_nodelay(true)?;
        if !address.tls {
            return Ok(Self::Plain(stream));
        }
        let Some(client) = &settings.tls else {
            return Err(Cause::Tls("nobody is trusted".to_owned()));
        };
        match timeout(HANDSHAKE, client.connect(&address.host, stream)).await {
            Ok(stream) => Ok(Self::Tls(Box::new(stream?))),
            Err(_) => Err(Cause::Tls(format!(
                "no answer to a handshake within {} ms, as from a port without TLS",
                HANDSHAKE.as_millis()
            ))),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
