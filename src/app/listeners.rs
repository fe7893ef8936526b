//! The two listeners: their addresses, certificates, and the requests that they refuse.

use std::net::SocketAddr;

use parking_lot::Mutex;
use prometheus::Registry;
use tokio::net::TcpListener;

use super::{ADMIN_CONNECTIONS, App, Error};
use crate::admin::Web;
use crate::clock::Now;
use crate::config::{self, AdminWeb, Config};
use crate::server::tls::{self, FileError, Limits, Tls};
use crate::server::{Address, Listener, Origins, bind_tcp, raise_descriptors};

/// The two listeners, which are bound first.
#[derive(Debug)]
pub struct Listeners {
    /// Listener for components.
    pub ingest: Listener,
    /// Listener for metrics and health.
    pub admin: TcpListener,
}

impl Listeners {
    /// Binds the addresses of `config`, and makes room for their connections.
    ///
    /// # Errors
    /// When an address is in use or not one of this machine.
    pub async fn bind(config: &Config) -> Result<Self, Error> {
        raise_descriptors(config.ingest.max_connections.get());
        let ingest = Listener::bind(&config.listen).await.map_err(failed(LISTEN, config.listen.clone()))?;
        let admin = bind_tcp(config.admin_listen).await.map_err(failed(ADMIN_LISTEN, config.admin_listen.into()))?;
        Ok(Self { ingest, admin })
    }

    pub(super) fn addresses(&self, config: &Config) -> Result<(Address, SocketAddr), Error> {
        let ingest = self.ingest.local().map_err(failed(LISTEN, config.listen.clone()))?;
        let admin = self.admin.local_addr().map_err(failed(ADMIN_LISTEN, config.admin_listen.into()))?;
        Ok((ingest, admin))
    }
}

/// Keys of the addresses, and their flags.
const LISTEN: &str = "listen, --listen";
const ADMIN_LISTEN: &str = "adminListen, --admin-listen";

/// Makes the error of a listener.
fn failed(key: &'static str, address: Address) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Listen { key, address, source }
}

/// Returns which requests are accepted at `address`. A loopback address accepts only known hosts, because any name on
/// the web may resolve to it in a browser. A listener on all addresses accepts any, also from loopback, where a service
/// mesh's proxy passes on requests with the host of their client.
pub(super) fn origins(config: &Config, address: &Address) -> Origins {
    match address {
        Address::Tcp(_) if address.is_local() => Origins::hosts(&config.accept_hosts).unwrap_or_default(),
        Address::Tcp(_) | Address::Unix(_) => Origins::any_host(),
    }
}

/// Returns why TLS handshakes will fail although the listeners' files can be used. Each reason begins with a key.
pub fn doubts(config: &Config, now: Now) -> Vec<String> {
    let web = config.admin_web_config_file.as_deref().and_then(|path| config::load_web(path).ok());
    let listeners = [("tls.certFile", config.tls.settings()), ("adminWebConfigFile", web.and_then(|web| web.tls))];
    let of = |(key, settings): (&'static str, Option<tls::Settings>)| {
        let doubts = settings.map_or_else(Vec::new, |settings| tls::doubts(&settings, now));
        doubts.into_iter().map(move |doubt| format!("{key}: {doubt}"))
    };
    listeners.into_iter().flat_map(of).collect()
}

/// TLS of the listeners, and the web configuration of the admin port.
#[derive(Debug)]
pub(super) struct Secured {
    pub(super) ingest: Option<Tls>,
    pub(super) admin: Option<Tls>,
    web: Mutex<AdminWeb>,
    /// The newest web configuration that was refused, so that it is logged once.
    refused: Mutex<Option<Result<AdminWeb, config::Errors>>>,
}

impl Secured {
    /// Reads all files.
    pub(super) fn new(config: &Config, now: Now, registry: &Registry) -> Result<Self, Error> {
        let web = config.admin_web_config_file.as_deref().map(config::load_web).transpose()?.unwrap_or_default();
        let settings = [config.tls.settings(), web.tls.clone()];
        let names = ["main", "admin"].into_iter().zip(&settings).filter(|(_, settings)| settings.is_some());
        let mut metrics = tls::Metrics::new(registry, names.map(|(name, _)| name)).into_iter();
        let [ingest, admin] = settings;
        let mut open = |settings: Option<tls::Settings>, connections: usize| {
            let Some(settings) = settings else { return Ok(None) };
            let Some(metrics) = metrics.next() else { return Ok(None) };
            // Half-open handshakes must leave room for the connections of others.
            let at_once = tls::MAX_HANDSHAKES.min(connections.div_ceil(2));
            let tls = Tls::new(settings, Limits { at_once, ..Limits::default() }, now, metrics);
            tls.map(Some).map_err(|faults| {
                let reasons: Vec<String> = faults.into_iter().map(|FileError { reason, .. }| reason).collect();
                Error::Tls(reasons.join("; "))
            })
        };
        let ingest = open(ingest, config.ingest.max_connections.get())?;
        Ok(Self { ingest, admin: open(admin, ADMIN_CONNECTIONS)?, web: Mutex::new(web), refused: Mutex::default() })
    }

    /// Returns users and headers of the admin port.
    pub(super) fn web(&self) -> Web {
        self.web.lock().web.clone()
    }

    /// Whether the admin port requires a client certificate.
    pub(super) fn admin_requires_certificate(&self) -> bool {
        self.web.lock().tls.as_ref().is_some_and(|tls| tls.requires_certificate)
    }

    /// Reads the web configuration again. Returns users and headers if they are new and valid.
    fn reread_web(&self, config: &Config) -> Option<Web> {
        let path = config.admin_web_config_file.as_deref()?;
        let (new, mut active, mut refused) = (config::load_web(path), self.web.lock(), self.refused.lock());
        if new.as_ref() == Ok(&*active) {
            *refused = None;
            return None;
        }
        if refused.as_ref() == Some(&new) {
            return None;
        }
        match &new {
            // A file that is being written may be empty for a moment.
            Ok(AdminWeb { web, .. }) if web.users.is_empty() && !active.web.users.is_empty() => tracing::error!(
                "the new web configuration is refused: without basic_auth_users the admin port would need no password; a \
                 restart accepts it"
            ),
            Ok(new) => {
                if active.tls != new.tls {
                    tracing::warn!("tls_server_config has changed; the change applies after a restart");
                }
                tracing::info!("the web configuration was reloaded");
                active.clone_from(new);
                *refused = None;
                return Some(new.web.clone());
            }
            Err(errors) => tracing::error!(%errors, "the new web configuration is refused; the old one stays active"),
        }
        *refused = Some(new);
        None
    }
}

impl App {
    /// Polls the files of the listeners until the program stops.
    pub(super) fn follow_files(self: &std::sync::Arc<Self>) {
        let (app, stop) = (std::sync::Arc::downgrade(self), self.stop_admin.clone());
        self.guard(async move {
            let following = async {
                loop {
                    tokio::time::sleep(tls::POLL).await;
                    let Some(app) = app.upgrade() else { return };
                    app.reread_files();
                }
            };
            stop.run_until_cancelled(following).await;
        });
    }

    /// Reads certificates, users and headers of the listeners again. A file that cannot be used changes nothing.
    pub fn reread_files(&self) {
        let now = self.shards.clock().now();
        for tls in [&self.secured.ingest, &self.secured.admin].into_iter().flatten() {
            tls.reread(now);
        }
        if let Some(web) = self.secured.reread_web(&self.started_with) {
            self.admin.set_web(web);
        }
    }
}
