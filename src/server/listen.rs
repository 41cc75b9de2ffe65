//! Listeners: one of its own for each worker and address.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// Connections that the kernel keeps ready for a worker to accept.
const BACKLOG: i32 = 1024;

/// Silence after which the kernel asks whether the client's machine is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Bytes that a socket holds beyond what the client's machine has acknowledged. Without this bound the kernel buffers
/// megabytes and takes no more until a third of them has left, which for a slow client looks like one that reads nothing.
const UNSENT: u32 = 128 << 10;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What the system says.
    pub source: io::Error,
}

/// The listeners of one worker, one for each address.
#[derive(Debug)]
pub struct WorkerListeners(pub(super) Vec<TcpListener>);

impl WorkerListeners {
    /// The addresses listened on, in order, with the ports that the system chose.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.0.iter().filter_map(|listener| listener.local_addr().ok())
    }
}

/// Listens on every address once for each worker; the kernel spreads connections over them. Port 0 becomes one port
/// that all workers share.
///
/// # Errors
/// The first address that cannot be listened on; nothing is listened on then.
pub fn bind(addresses: &[SocketAddr], workers: usize) -> Result<Vec<WorkerListeners>, BindError> {
    let refused = |address: SocketAddr| move |source| BindError { address, source };
    for address in addresses {
        claim(*address).map_err(refused(*address))?;
    }
    let mut actual = addresses.to_vec();
    let mut bound = Vec::with_capacity(workers);
    for _ in 0..workers {
        let mut own = Vec::with_capacity(actual.len());
        for address in &mut actual {
            let listener = listen(*address).map_err(refused(*address))?;
            if let Ok(chosen) = listener.local_addr() {
                *address = chosen;
            }
            own.push(listener);
        }
        bound.push(WorkerListeners(own));
    }
    Ok(bound)
}

/// Whether nobody else listens there. A second gateway would get its share of the connections without a word, and each
/// caller twice the limits, because the workers' sockets allow company.
fn claim(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// Accepted sockets inherit TCP_NODELAY, the keep-alive probes and the bound of what is unsent from the listener, which saves calls on each.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE / 4),
    )?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
