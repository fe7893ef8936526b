//! TLS in front of a server that speaks none: decrypts and passes on, byte for byte.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{machine, tls};

/// Bytes of each of a connection's two buffers; an event fits.
const BUFFER_BYTES: usize = 2048;

/// `front`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Folder of the certificate.
    #[arg(long)]
    tls: PathBuf,
    /// The server behind it.
    #[arg(long)]
    to: SocketAddr,
}

/// Serves until it is killed; says where on standard output.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    machine::allow_many_files();
    let tls = TlsAcceptor::from(tls::server(&options.tls)?);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(tls, options.to))
}

async fn serve(tls: TlsAcceptor, to: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("LISTEN {}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            // Whatever breaks shows at the client.
            let Ok(mut client) = tls.accept(client).await else { return };
            let Ok(mut server) = TcpStream::connect(to).await else { return };
            drop(copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES).await);
        });
    }
}
