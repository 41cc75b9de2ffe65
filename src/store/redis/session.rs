//! One connection to a server: commands go out, replies come in, in order.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use redis::Value;
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::cause::{Cause, Refused};
use super::guard::Server;
use super::scripts::Scripts;
use super::settings::{Address, Password, Settings};
use super::stream::Stream;
use super::wire;
use crate::clock::Micros;

/// A connection that is logged in and knows the scripts.
pub(super) struct Session {
    address: Address,
    stream: Stream,
    /// Commands, of which the first `sent` bytes are written.
    outbox: Vec<u8>,
    sent: usize,
    inbox: BytesMut,
}

/// What a server says of itself when a connection begins.
pub(super) struct Greeting {
    /// What it is.
    pub(super) server: Server,
    /// Its clock.
    pub(super) now: Micros,
}

/// What a server answers: a value, or an error reply.
pub(super) type Reply = Result<Value, Refused>;

impl Session {
    /// Connects, logs in, and loads the scripts. How long it may take is for the caller to say.
    ///
    /// # Errors
    /// There is no connection, or the server does not let it in.
    pub(super) async fn open(
        address: &Address,
        settings: &Settings,
        scripts: &Scripts,
    ) -> Result<(Self, Greeting), Cause> {
        let mut session = Self::reach(address, settings).await?;
        let greeting = session.greet(settings, scripts).await?;
        Ok((session, greeting))
    }

    /// Connects, and no more.
    ///
    /// # Errors
    /// There is no connection.
    pub(super) async fn reach(address: &Address, settings: &Settings) -> Result<Self, Cause> {
        Ok(Self {
            address: address.clone(),
            stream: Stream::open(address, settings).await?,
            outbox: Vec::new(),
            sent: 0,
            inbox: BytesMut::new(),
        })
    }

    /// Logs in, if there is anything to log in with.
    ///
    /// # Errors
    /// The server does not let it in.
    pub(super) async fn log_in(&mut self, settings: &Settings) -> Result<(), Cause> {
        if let Some(login) = login(settings) {
            self.say(&login);
            self.reply().await??;
        }
        Ok(())
    }

    async fn greet(&mut self, settings: &Settings, scripts: &Scripts) -> Result<Greeting, Cause> {
        let mut needed = 0_usize;
        if let Some(login) = login(settings) {
            self.say(&login);
            needed = needed.saturating_add(1);
        }
        if settings.database != 0 {
            self.say(redis::cmd("SELECT").arg(settings.database));
            needed = needed.saturating_add(1);
        }
        self.say(redis::cmd("CLIENT").arg("SETNAME").arg("tollgate"));
        self.say(&redis::cmd("INFO"));
        for _ in 0..needed {
            self.reply().await??;
        }
        // A server that does not know `CLIENT`, or keeps `SCRIPT` from us, still runs scripts that are sent whole.
        let _ = self.reply().await?;
        let server = Server::read(&self.reply().await??)?;
        // Not before we are known to be let in: a stranger who sends as much is cut off, and what was answered before is lost.
        for script in scripts.all() {
            self.say(redis::cmd("SCRIPT").arg("LOAD").arg(script.source()));
        }
        self.say(&redis::cmd("TIME"));
        for _ in scripts.all() {
            let _ = self.reply().await?;
        }
        let now = time(&self.reply().await??)?;
        Ok(Greeting { server, now })
    }

    /// The server.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Where commands are written to.
    pub(super) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Puts a command behind those that wait to be written.
    pub(super) fn say(&mut self, command: &redis::Cmd) {
        self.outbox.extend_from_slice(&command.get_packed_command());
    }

    /// The next reply; meanwhile what waits to be written is. Dropped before it is done, it has lost nothing.
    ///
    /// # Errors
    /// The connection ended, or what comes is no reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, Cause> {
        poll_fn(|cx| self.poll_reply(cx)).await
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Cause>> {
        loop {
            if let Some(length) = wire::whole(&self.inbox)? {
                return Poll::Ready(self.take(length));
            }
            // What cannot be written now must not keep replies from being read.
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Err(error.into()));
            }
            let read = pin!(self.stream.read_buf(&mut self.inbox));
            if ready!(read.poll(cx))? == 0 {
                return Poll::Ready(Err(Cause::closed()));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent = self.sent.saturating_add(written);
        }
        self.outbox.clear();
        self.sent = 0;
        // TLS may hold back what it was given.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn take(&mut self, length: usize) -> Result<Reply, Cause> {
        let parsed = redis::parse_redis_value(self.inbox.get(..length).unwrap_or_default());
        self.inbox.advance(length);
        match parsed {
            Ok(Value::ServerError(error)) => Ok(Err(Refused::new(error.code(), error.details()))),
            Ok(value) => Ok(Ok(value)),
            Err(_) => Err(Cause::Odd),
        }
    }
}

/// The command that logs in, if there is anything to log in with.
fn login(settings: &Settings) -> Option<redis::Cmd> {
    if settings.username.is_none() && settings.password.is_none() {
        return None;
    }
    let mut login = redis::cmd("AUTH");
    if let Some(username) = &settings.username {
        login.arg(username);
    }
    login.arg(settings.password.as_ref().map_or("", Password::expose));
    Some(login)
}

/// An instant as `TIME` gives it.
fn time(value: &Value) -> Result<Micros, Cause> {
    let number = |value: &Value| match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let Value::Array(parts) = value else {
        return Err(Cause::Odd);
    };
    match parts.as_slice() {
        [secs, micros] => match (number(secs), number(micros)) {
            (Some(secs), Some(micros)) => Ok(Micros::from_secs(secs).plus(Micros(micros))),
            _ => Err(Cause::Odd),
        },
        _ => Err(Cause::Odd),
    }
}
