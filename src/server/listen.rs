//! Listeners: a TCP address or a Unix domain socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Mode of a Unix domain socket: its owner and the owner's group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Prefix of a Unix domain socket's address.
const UNIX: &str = "unix:";
/// Silence after which the system asks whether a client still exists, the time between two probes, and their number.
/// A client that has vanished without a word would keep its place: a watch, a tunnel or a slow answer has no other timeout.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;
/// LIMIT: connections that wait to be accepted, unless the system allows fewer; as of a Unix domain socket. Beyond it, a
/// client tries again after a second: after a restart, thousands connect at once.
const QUEUED_MAX: i32 = 4096;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix domain socket.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Returns the TCP address.
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix(UNIX) {
            // The system limits the length of the path.
            Some(path) if Path::new(path).is_absolute() && unix::net::SocketAddr::from_pathname(path).is_ok() => {
                Ok(Self::Unix(PathBuf::from(path)))
            }
            Some(_) => Err(()),
            None => text.parse().map(Self::Tcp).map_err(|_not_an_address| ()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Whether a listener for clients may be bound. An address that other machines reach needs authentication or the
/// explicit insecure setting; encryption alone is not enough.
#[must_use]
pub fn may_bind(address: &Address, has_authentication: bool, insecure: bool) -> bool {
    address.is_local() || has_authentication || insecure
}

/// A bound address.
#[derive(Debug)]
pub enum Listener {
    /// A TCP listener.
    Tcp(TcpListener),
    /// A Unix domain socket and its file, which is removed before the socket is closed.
    Unix(SocketFile, UnixListener),
}

/// File of a bound Unix domain socket; removed when dropped, unless it is another process's by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    /// Binds `address`. A stale socket file is replaced.
    ///
    /// # Errors
    /// When the address is in use or may not be bound.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => bind_tcp(*address).await.map(Self::Tcp),
            Address::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile { path: path.clone(), identity: identity(path)? };
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(file, listener))
            }
        }
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// When the system does not know it.
    pub fn local(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(file, _) => Ok(Address::Unix(file.path.clone())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Accepted::tcp(stream, address)
            }
            Self::Unix(_, listener) => Accepted::Unix(listener.accept().await?.0),
        })
    }

    /// Returns the connections in the accept queue. Asks the system itself, because tokio may not know them yet.
    pub(super) fn queued(self) -> impl Iterator<Item = Accepted> + Send {
        std::iter::from_fn(move || {
            let socket = match &self {
                Self::Tcp(listener) => SockRef::from(listener),
                Self::Unix(_, listener) => SockRef::from(listener),
            };
            let (stream, address) = socket.accept().ok()?;
            stream.set_nonblocking(true).ok()?;
            match address.as_socket() {
                Some(address) => Some(Accepted::tcp(TcpStream::from_std(stream.into()).ok()?, address)),
                None => UnixStream::from_std(stream.into()).ok().map(Accepted::Unix),
            }
        })
    }
}

pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Accepted {
    fn tcp(stream: TcpStream, address: SocketAddr) -> Self {
        // Small answers must not wait for more; without the option they still arrive.
        let _best_effort = stream.set_nodelay(true);
        let probing = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(PROBES);
        let _best_effort = SockRef::from(&stream).set_tcp_keepalive(&probing);
        Self::Tcp(stream, address)
    }
}

/// Binds a TCP address.
///
/// # Errors
/// When the address is in use or may not be bound.
pub async fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    // tokio's queue is short. Listening again only changes its length.
    SockRef::from(&listener).listen(QUEUED_MAX)?;
    Ok(listener)
}

/// Removes the socket of an earlier process at `path`, if it refuses connections.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Ok(()),
        },
        // Binding reports the fault.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip_through_text() {
        for text in ["127.0.0.1:8080", "[::1]:0", "unix:/run/eventweir.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "localhost:1", "unix:", "unix:relative.sock", "/run/eventweir.sock", "127.0.0.1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn other_machines_reach_only_an_authenticated_or_insecure_listener() {
        let (near, far) = (["127.0.0.1:1", "[::ffff:127.0.0.1]:1", "unix:/s"], ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"]);
        for (has_authentication, insecure) in [(false, false), (true, false), (false, true)] {
            let may = |text: &str| may_bind(&text.parse().unwrap(), has_authentication, insecure);
            assert!(near.into_iter().all(may));
            assert!(far.into_iter().all(|text| may(text) == (has_authentication || insecure)));
        }
    }

    /// Fault: a client that vanished kept its watch or tunnel for ever.
    #[tokio::test]
    async fn the_system_probes_silent_clients() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local().unwrap().tcp().unwrap();
        let _clients = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let first = listener.accept().await.unwrap();
        for accepted in [first, listener.queued().next().unwrap()] {
            let Accepted::Tcp(stream, _) = accepted else { unreachable!() };
            let socket = SockRef::from(&stream);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            let probing = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
            assert_eq!(probing, (PROBE_AFTER, PROBE_INTERVAL));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        }
    }

    /// Fault: after a restart, clients beyond the 129th that connected at once waited for seconds.
    #[tokio::test]
    async fn many_clients_may_connect_at_once() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local().unwrap().tcp().unwrap();
        let mut clients = Vec::new();
        for _ in 0..300 {
            // Beyond a full queue, it fails after minutes.
            clients.push(TcpStream::connect(address).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("s"));
        let Address::Unix(path) = &address else { unreachable!() };
        // Dropped without its file being removed, as by a crash.
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        let listener = Listener::bind(&address).await.unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert_eq!(listener.local().unwrap(), address);
        assert_eq!(Listener::bind(&address).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        // Fault: the file of a later process was removed.
        let earlier = Listener::bind(&address).await.unwrap();
        std::fs::remove_file(path).unwrap();
        let later = Listener::bind(&address).await.unwrap();
        drop(earlier);
        assert!(path.exists());
        drop(later);
        assert!(!path.exists());
        std::fs::write(path, "a file").unwrap();
        assert_eq!(Listener::bind(&address).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "a file");
    }
}
