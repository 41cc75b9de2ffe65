//! What can become of a request instead of a response.

use std::io;

/// No response. `E` is the error of the request body.
#[derive(Debug, thiserror::Error)]
pub enum SendError<E> {
    /// No target could be connected to; nothing was sent.
    #[error("cannot connect to the upstream")]
    Connect(#[source] ConnectError),
    /// All connections were in use for as long as a request may wait for one; nothing was sent.
    #[error("all connections to the upstream are in use")]
    Busy,
    /// The request was sent, and no response came in time.
    #[error("the upstream does not answer")]
    Timeout,
    /// The connection broke, or what came is not an HTTP response to this request.
    #[error("the upstream broke off")]
    Broken(#[source] Option<hyper::Error>),
    /// The request body failed before there was a response.
    #[error("the request body failed")]
    RequestBody(E),
}

/// Why a target could not be connected to.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Its name has no address.
    #[error("cannot resolve the name of the target")]
    Resolve(#[source] io::Error),
    /// It refused, or cannot be reached.
    #[error("cannot reach the target")]
    Reach(#[source] io::Error),
    /// It did not accept in time.
    #[error("the target does not accept connections")]
    TimedOut,
}
