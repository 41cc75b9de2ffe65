//! One target: where it is, and how it has been doing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::Authority;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout_at;

use super::ConnectError;
use crate::clock;

/// How long a target that could not be connected to is passed over while there are others, before one request probes it:
/// at first, and at most, for each probe that fails doubles it.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);

/// HTTP/2 with prior knowledge.
const H2C: &str = "h2c";

/// A URI that is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a target: {0}")]
pub struct TargetError(pub Uri);

#[derive(Debug)]
pub(super) struct Target {
    place: Place,
    /// As it was configured.
    pub(super) name: Box<str>,
    /// What requests without a host are for.
    pub(super) authority: Authority,
    /// Whether it speaks HTTP/2.
    pub(super) http2: bool,
    failing: AtomicBool,
    rest: Mutex<Option<Rest>>,
}

/// A target that could not be connected to.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    length: Duration,
    /// Whether a request is probing it.
    probed: bool,
}

/// The leave to connect to a target, as the only one if it is failing. Dropped without a connection, the target rests
/// again.
#[derive(Debug)]
pub(super) struct Claim<'a>(Option<&'a Target>);

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    Name(String, u16),
}

impl TryFrom<&Uri> for Target {
    type Error = TargetError;

    fn try_from(uri: &Uri) -> Result<Self, TargetError> {
        let fault = || TargetError(uri.clone());
        Ok(Self {
            place: place(uri).ok_or_else(fault)?,
            name: uri.to_string().trim_end_matches('/').into(),
            authority: uri.authority().cloned().ok_or_else(fault)?,
            http2: uri.scheme_str() == Some(H2C),
            failing: AtomicBool::new(false),
            rest: Mutex::new(None),
        })
    }
}

fn place(uri: &Uri) -> Option<Place> {
    let host = uri.host()?;
    let port = match (uri.port_u16(), uri.scheme_str()) {
        (Some(port), Some("http" | H2C)) => port,
        (None, Some("http" | H2C)) => 80,
        _ => return None,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Some(match bare.parse::<IpAddr>() {
        Ok(ip) => Place::Address((ip, port).into()),
        Err(_) => Place::Name(host.to_owned(), port),
    })
}

impl Target {
    /// Whether it could be connected to when that was last tried.
    pub(super) fn is_well(&self) -> bool {
        !self.failing.load(Ordering::Relaxed)
    }

    /// Whether it is worth a try: it is well, or has rested and is not being probed.
    pub(super) fn is_due(&self) -> bool {
        self.is_well() || self.rest().as_ref().is_none_or(Rest::is_over)
    }

    /// The leave to connect to it, if it [is due](Self::is_due).
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        if self.is_well() {
            return Some(Claim(None));
        }
        match &mut *self.rest() {
            Some(rest) if rest.is_over() => {
                rest.probed = true;
                Some(Claim(Some(self)))
            }
            Some(_) => None,
            None => Some(Claim(None)),
        }
    }

    fn rest(&self) -> MutexGuard<'_, Option<Rest>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn connect(&self, deadline: Instant) -> Result<TcpStream, ConnectError> {
        let began = clock::now();
        let connected = match timeout_at(deadline.into(), self.reach()).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(ConnectError::TimedOut),
        };
        if connected.is_ok() && self.is_well() {
            return connected;
        }
        let mut rest = self.rest();
        *rest = match connected {
            Ok(_) => None,
            Err(_) => Some(Rest::after(*rest, began)),
        };
        self.failing.store(rest.is_some(), Ordering::Relaxed);
        connected
    }

    /// Tries the addresses in order.
    async fn reach(&self) -> Result<TcpStream, ConnectError> {
        let (name, port) = match &self.place {
            Place::Address(address) => return dial(*address).await.map_err(ConnectError::Reach),
            Place::Name(name, port) => (name.as_str(), *port),
        };
        let addresses = lookup_host((name, port)).await.map_err(ConnectError::Resolve)?;
        let mut last = ConnectError::Resolve(io::ErrorKind::NotFound.into());
        for address in addresses {
            match dial(address).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = ConnectError::Reach(error),
            }
        }
        Err(last)
    }
}

impl Rest {
    /// The rest after one more failure; what `began` before the last rest was over says nothing new.
    fn after(last: Option<Self>, began: Instant) -> Self {
        let length = match last {
            Some(last) if began < last.until => return last,
            Some(last) => (last.length * 2).min(LONGEST_REST),
            None => REST,
        };
        Self {
            until: clock::now() + length,
            length,
            probed: last.is_some_and(|last| last.probed),
        }
    }

    fn is_over(&self) -> bool {
        !self.probed && self.until <= clock::now()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let Some(target) = self.0 else {
            return;
        };
        if let Some(rest) = &mut *target.rest() {
            rest.probed = false;
            rest.until = rest.until.max(clock::now() + rest.length);
        }
    }
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_grows_once_for_each_probe_that_fails() {
        let now = clock::now();
        let first = Rest::after(None, now);
        assert_eq!(first.length, REST);
        let meanwhile = Rest::after(Some(first), now);
        assert_eq!((meanwhile.length, meanwhile.until), (REST, first.until));
        let mut last = first;
        for seconds in [2, 4, 8, 16, 30, 30] {
            last = Rest::after(Some(last), last.until);
            assert_eq!(last.length, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn one_at_a_time_probes_a_target_that_has_rested() {
        let target = Target::try_from(&"http://127.0.0.1:1".parse().unwrap()).unwrap();
        assert!(target.claim().is_some_and(|claim| claim.0.is_none()));
        let mut rest = Rest::after(None, clock::now());
        target.failing.store(true, Ordering::Relaxed);
        *target.rest() = Some(rest);
        assert!(!target.is_due() && target.claim().is_none(), "it rests");
        rest.until = clock::now();
        *target.rest() = Some(rest);
        assert!(target.is_due());
        let claim = target.claim();
        assert!(claim.is_some() && !target.is_due() && target.claim().is_none());
        drop(claim);
        assert!(!target.is_due(), "it rests again");
    }

    #[test]
    fn a_target_is_a_host_and_a_port() {
        let of = |text: &str| place(&text.parse().unwrap());
        assert_eq!(
            of("http://[::1]:3000"),
            Some(Place::Address("[::1]:3000".parse().unwrap()))
        );
        assert_eq!(
            of("http://10.0.0.1"),
            Some(Place::Address("10.0.0.1:80".parse().unwrap()))
        );
        assert_eq!(of("http://api:81"), Some(Place::Name("api".into(), 81)));
        assert_eq!(of("h2c://api"), Some(Place::Name("api".into(), 80)));
        assert_eq!(of("https://api:81"), None);
        assert_eq!(of("/path"), None);
    }
}
