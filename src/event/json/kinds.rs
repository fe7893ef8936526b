//! Which kinds the apiserver's scheme knows, and what it says to a body that claims another kind than Event.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::sniff::TypeMeta;
use super::{DecodeError, go};
use crate::event::ApiGroup;

/// What the scheme makes of a kind and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registration {
    /// An Event of one of the two served groups.
    Event {
        /// The group.
        group: ApiGroup,
    },
    /// An Event of events.k8s.io/v1beta1: still known, no longer served.
    EventBeta,
    /// Another known kind; it does not convert to an Event.
    Other,
}

/// Kind and version after the door's defaults.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'t> {
    pub(super) kind: &'t str,
    pub(super) group: &'t str,
    pub(super) version: &'t str,
}

impl Identity<'_> {
    pub(super) fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `Event in version "v1" cannot be handled as a Event: …`.
    pub(super) fn unhandled(&self, fault: &str) -> Box<DecodeError> {
        DecodeError::unhandled(self.kind, self.version, fault)
    }
}

/// The kind and version a body means at the door of `group` (`gvkWithDefaults`).
pub(super) fn identity<'t>(group: ApiGroup, type_meta: &'t TypeMeta) -> Identity<'t> {
    let door_group = match group {
        ApiGroup::Core => "",
        ApiGroup::Events => "events.k8s.io",
    };
    let kind = if type_meta.kind.is_empty() { "Event" } else { &type_meta.kind };
    let (mut stated_group, mut version) = match type_meta.api_version.split_once('/') {
        Some(both) => both,
        None => ("", type_meta.api_version.as_str()),
    };
    if version.is_empty() && (stated_group.is_empty() || stated_group == door_group) {
        (stated_group, version) = (door_group, "v1");
    }
    Identity { kind, group: stated_group, version }
}

/// Looks a body's kind up as the apiserver does before it decodes.
pub(super) fn register(group: ApiGroup, type_meta: &TypeMeta, body: &[u8]) -> Result<Registration, Box<DecodeError>> {
    // What nearly every event says.
    match (type_meta.api_version.as_str(), type_meta.kind.as_str()) {
        ("v1", "Event") => return Ok(Registration::Event { group: ApiGroup::Core }),
        ("events.k8s.io/v1", "Event") => return Ok(Registration::Event { group: ApiGroup::Events }),
        _ => {}
    }
    if type_meta.api_version.matches('/').count() > 1 {
        let fault = format!("unexpected GroupVersion string: {}", type_meta.api_version);
        return Err(DecodeError::unrecognized(body, &fault));
    }
    let identity = identity(group, type_meta);
    if identity.version.is_empty() {
        return Err(identity.unhandled(&format!("Object 'apiVersion' is missing in '{}'", go::lossy(body))));
    }
    match (identity.group, identity.version, identity.kind) {
        ("", "v1", "Event") => Ok(Registration::Event { group: ApiGroup::Core }),
        ("events.k8s.io", "v1", "Event") => Ok(Registration::Event { group: ApiGroup::Events }),
        ("events.k8s.io", "v1beta1", "Event") => Ok(Registration::EventBeta),
        (group, version, kind) if is_known(group, version, kind) => Ok(Registration::Other),
        (_, _, kind) => Err(identity.unhandled(&format!(
            "no kind {} is registered for version {} in scheme \"pkg/runtime/scheme.go:111\"",
            go::quote(kind),
            go::quote(&identity.group_version())
        ))),
    }
}

/// Kinds that every served group and version has beside its own.
const EVERYWHERE: &[&str] =
    &["WatchEvent", "ListOptions", "GetOptions", "DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions"];

/// The kinds a client could plausibly send by mistake: all of core/v1, and of the other built-in groups the workloads.
/// A kind missing here is told "no kind … is registered", the same refusal in other words.
const KNOWN: &[(&str, &str, &[&str])] = &[
    ("", "v1", CORE),
    ("events.k8s.io", "v1", &["EventList"]),
    ("events.k8s.io", "v1beta1", &["EventList"]),
    ("apps", "v1", &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Scale"]),
    ("batch", "v1", &["CronJob", "Job"]),
    ("autoscaling", "v1", &["HorizontalPodAutoscaler", "Scale"]),
    ("autoscaling", "v2", &["HorizontalPodAutoscaler"]),
    ("coordination.k8s.io", "v1", &["Lease"]),
    ("discovery.k8s.io", "v1", &["EndpointSlice"]),
    ("networking.k8s.io", "v1", &["Ingress", "IngressClass", "NetworkPolicy"]),
    ("policy", "v1", &["Eviction", "PodDisruptionBudget"]),
    ("rbac.authorization.k8s.io", "v1", &["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]),
    ("storage.k8s.io", "v1", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
];

const CORE: &[&str] = &[
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "Binding",
    "ComponentStatus",
    "ComponentStatusList",
    "ConfigMap",
    "ConfigMapList",
    "Endpoints",
    "EndpointsList",
    "EventList",
    "LimitRange",
    "LimitRangeList",
    "List",
    "Namespace",
    "NamespaceList",
    "Node",
    "NodeList",
    "NodeProxyOptions",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PersistentVolumeClaimList",
    "PersistentVolumeList",
    "Pod",
    "PodAttachOptions",
    "PodExecOptions",
    "PodList",
    "PodLogOptions",
    "PodPortForwardOptions",
    "PodProxyOptions",
    "PodStatusResult",
    "PodTemplate",
    "PodTemplateList",
    "RangeAllocation",
    "ReplicationController",
    "ReplicationControllerList",
    "ResourceQuota",
    "ResourceQuotaList",
    "Secret",
    "SecretList",
    "SerializedReference",
    "Service",
    "ServiceAccount",
    "ServiceAccountList",
    "ServiceList",
    "ServiceProxyOptions",
    "Status",
];

fn is_known(group: &str, version: &str, kind: &str) -> bool {
    KNOWN.iter().filter(|(known, at, _)| (*known, *at) == (group, version)).any(|(known, _, kinds)| {
        kinds.contains(&kind)
            || EVERYWHERE.contains(&kind)
            || (!known.is_empty() && kind.strip_suffix("List").is_some_and(|item| kinds.contains(&item)))
    })
}
