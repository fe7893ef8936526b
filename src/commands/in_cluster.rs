//! `--in-cluster`: finds the pods of a Service, and reaches each by the API server's port forwarding.

use std::io;

use futures_util::{SinkExt as _, StreamExt as _};
use http::{StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::ListParams;
use kube::client::Body;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::Error;
use super::remote::{ConnectionError, DEADLINE, Server, Shared, authorities, certificates, credentials, refusal};
use crate::app;
use crate::cli::Remote;
use crate::upstream::apiserver::{self, cause_of};

/// Name of the Service, unless the flag has one.
const SERVICE: &str = "eventweir";

/// Returns the running replicas behind a Service; `service` is `NAMESPACE` or `NAMESPACE/NAME`.
pub(super) async fn replicas(service: &str, remote: &Remote) -> Result<Vec<Server>, Error> {
    let (namespace, name) = service.split_once('/').unwrap_or((service, SERVICE));
    let settings = apiserver::Settings {
        kubeconfig: remote.kubeconfig.clone(),
        context: remote.context.clone(),
        ..apiserver::Settings::default()
    };
    let config = apiserver::config(&settings).await.map_err(app::Error::from)?;
    let fault = |why: &str| Error::NotReady(format!("--in-cluster={namespace}/{name}: {why}"));
    let found = timeout(DEADLINE, ServiceInfo::of(&config, namespace, name)).await;
    let silent = |_elapsed| fault(&format!("no answer from the API server {}", config.cluster_url));
    let found = found.map_err(silent)?.map_err(|why| fault(&why))?;

    // The host of a forwarded port, which a listener on a loopback address accepts too.
    let address = if found.is_secure() { "https://localhost" } else { "http://localhost" };
    let mut to_replica = kube::Config::new(http::Uri::from_static(address));
    to_replica.default_namespace.clone_from(&config.default_namespace);
    to_replica.tls_server_name = Some(format!("{name}.{namespace}.svc"));
    to_replica.root_cert = authorities(remote)?.or_else(|| found.authorities.clone());
    credentials(&mut to_replica, remote)?;
    // Those of the kubeconfig are for servers whose certificate is valid.
    if found.is_secure() && remote.token_file.is_none() && remote.client_certificate.is_none() {
        to_replica.auth_info = config.auth_info;
    }
    let to_replica = Shared::of(to_replica).map_err(|error| fault(&cause_of(&error)))?;
    let running: Vec<_> = found.replicas().collect();
    if running.is_empty() {
        return Err(fault("no pod of this Service is running"));
    }
    let mut replicas = Vec::new();
    for (pod, port) in &running {
        if remote.pod.as_ref().is_some_and(|only| only != pod) {
            continue;
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}");
        let forward = Forward { cluster: found.cluster.clone(), path, fault: ConnectionError::default() };
        let ended = ConnectionError::clone(&forward.fault);
        let client = to_replica.client(move || forward.clone().connect());
        replicas.push(Server::new(client, format!("{namespace}/{pod}"), ended, remote));
    }
    match &remote.pod {
        Some(pod) if replicas.is_empty() => {
            let names = running.iter().map(|(pod, _)| *pod).collect::<Vec<_>>().join(", ");
            Err(Error::Input(format!("--pod {pod}: not running; these are: {names}")))
        }
        _ => Ok(replicas),
    }
}

/// What the API server knows about a Service.
struct ServiceInfo {
    cluster: kube::Client,
    behind: Vec<Pod>,
    port: ServicePort,
    /// What the chart publishes for clients; `None` if it cannot be read.
    authorities: Option<Vec<Vec<u8>>>,
}

impl ServiceInfo {
    async fn of(config: &kube::Config, namespace: &str, name: &str) -> Result<Self, String> {
        let unanswered = |error: kube::Error| match error {
            kube::Error::Api(_) => cause_of(&error),
            _ => format!("the API server {}: {}", config.cluster_url, cause_of(&error)),
        };
        let cluster =
            apiserver::checked(|| kube::Client::try_from(config.clone())).map_err(|error| cause_of(&error))?;
        let service = Api::<Service>::namespaced(cluster.clone(), namespace).get(name).await.map_err(unanswered)?;
        let spec = service.spec.unwrap_or_default();
        // The chart names the listener's port after its scheme.
        let port = spec.ports.into_iter().flatten().find(|port| matches!(port.name.as_deref(), Some("https" | "http")));
        let port = port.ok_or("the Service has no port with the name `https` or `http`")?;
        let selector = spec.selector.filter(|labels| !labels.is_empty()).ok_or("the Service selects no pods")?;
        let labels = ListParams::default().labels_from(&selector.into_iter().collect());
        let behind = Api::<Pod>::namespaced(cluster.clone(), namespace).list(&labels).await.map_err(unanswered)?.items;
        let published = Api::<ConfigMap>::namespaced(cluster.clone(), namespace).get_opt(&published_name(name)).await;
        let pem = published.ok().flatten().and_then(|map| map.data?.remove("ca.crt"));
        Ok(Self { cluster, behind, port, authorities: pem.and_then(|pem| certificates(pem.as_bytes())) })
    }

    fn is_secure(&self) -> bool {
        self.port.name.as_deref() == Some("https")
    }

    /// Returns the name and the port of each running pod.
    fn replicas(&self) -> impl Iterator<Item = (&str, u16)> {
        let is_running =
            |pod: &&Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        self.behind
            .iter()
            .filter(is_running)
            .filter_map(|pod| Some((pod.metadata.name.as_deref()?, self.port_of(pod)?)))
    }

    fn port_of(&self, pod: &Pod) -> Option<u16> {
        let number = match &self.port.target_port {
            None => self.port.port,
            Some(IntOrString::Int(number)) => *number,
            Some(IntOrString::String(name)) => {
                let mut ports =
                    pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|each| each.ports.iter().flatten());
                ports.find(|port| port.name.as_ref() == Some(name))?.container_port
            }
        };
        u16::try_from(number).ok()
    }
}

/// Returns the name of the ConfigMap with the Service's authorities, cut as in the chart (templates/tls.yaml).
fn published_name(service: &str) -> String {
    let name = service.get(..60).unwrap_or(service);
    format!("{}-ca", name.strip_suffix('-').unwrap_or(name))
}

/// A port of a pod. A protocol of the API server: binary messages whose first byte is the channel, over WebSocket.
#[derive(Clone)]
struct Forward {
    cluster: kube::Client,
    path: String,
    /// Why the pod does not answer, as the API server reports it on a channel of its own.
    fault: ConnectionError,
}

/// Name of the protocol.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Channel of the bytes.
const BYTES: u8 = 0;
/// Channel of the text of a fault.
const FAULT: u8 = 1;

impl Forward {
    #[expect(clippy::disallowed_methods, reason = "ends with the connection, and has no state to keep")]
    async fn connect(self) -> io::Result<UnixStream> {
        *self.fault.lock() = None;
        let request = http::Request::get(&self.path)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, generate_key())
            .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
            .body(Body::empty())
            .map_err(io::Error::other)?;
        let answer = self.cluster.send(request).await.map_err(io::Error::other)?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let code = answer.status();
            let body = answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
            return Err(io::Error::other(format!("port forwarding: {}", refusal(code, &body))));
        }
        if answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL).is_none_or(|chosen| chosen != PROTOCOL) {
            return Err(io::Error::other(format!("port forwarding: the API server does not offer {PROTOCOL}")));
        }
        let upgraded = TokioIo::new(hyper::upgrade::on(answer).await.map_err(io::Error::other)?);
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let (ours, theirs) = UnixStream::pair()?;
        tokio::spawn(carry(socket, theirs, self.fault));
        Ok(ours)
    }
}

/// Returns the beginning of a message of bytes.
fn message() -> Vec<u8> {
    let mut message = Vec::with_capacity(8 << 10);
    message.push(BYTES);
    message
}

/// Carries bytes until one side ends.
async fn carry(
    mut socket: WebSocketStream<TokioIo<Upgraded>>,
    mut stream: UnixStream,
    fault: ConnectionError,
) -> io::Result<()> {
    let (mut bytes, mut has_begun, mut is_open) = (message(), [false; 2], true);
    loop {
        tokio::select! {
            // A fault explains why nothing can be sent any more.
            biased;
            message = socket.next() => {
                let Some(Ok(message)) = message else { return Ok(()) };
                let Message::Binary(message) = message else { continue };
                let Some((channel, message)) = message.split_first() else { continue };
                let Some(has_begun) = has_begun.get_mut(usize::from(*channel)) else { continue };
                // The first message of each channel repeats the port.
                if !std::mem::replace(has_begun, true) {
                    continue;
                }
                if *channel == FAULT {
                    *fault.lock() = Some(String::from_utf8_lossy(message).into_owned());
                    return Ok(());
                }
                stream.write_all(message).await?;
            }
            read = stream.read_buf(&mut bytes), if has_begun[1] && is_open => {
                if read? == 0 {
                    return Ok(());
                }
                is_open = socket.send(Message::binary(std::mem::replace(&mut bytes, message()))).await.is_ok();
            }
        }
    }
}
