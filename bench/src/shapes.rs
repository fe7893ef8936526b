//! Events as in clusters, as JSON with marks where [`crate::events`] writes the varying parts.

pub(crate) const OBJECT: &str = "~~~~~~~~";
pub(crate) const NODE: &str = "^^^^^^";
pub(crate) const SERIAL: &str = "||||||||||||||||";
pub(crate) const VARYING: &str = "````";

const NAMESPACE: &str = "shop";
const TIME: &str = "2026-03-01T08:00:00Z";

/// The kind of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The controller that reports at events.k8s.io/v1; `None` is a node's kubelet at core/v1.
    controller: Option<&'static str>,
    reason: &'static str,
    warning: bool,
    message: &'static str,
}

const fn kubelet(reason: &'static str, warning: bool, message: &'static str) -> Shape {
    Shape { controller: None, reason, warning, message }
}

pub(crate) const CRASH: Shape = kubelet(
    "BackOff",
    true,
    "Back-off restarting failed container checkout in pod checkout-7d9c5b6f4d-~~~~~~~~_shop(0d2c5f6e-7a8b-4c9d-8e1f-2a3b~~~~~~~~)",
);

/// The repeating shapes, with their shares of 64.
pub(crate) const REPEATING: [(usize, Shape); 6] = [
    (26, CRASH),
    (
        10,
        kubelet(
            "Unhealthy",
            true,
            "Readiness probe failed: Get \"http://10.244.17.23:8080/healthz\": context deadline exceeded (Client.Timeout exceeded)",
        ),
    ),
    (
        12,
        Shape {
            controller: Some("default-scheduler"),
            reason: "FailedScheduling",
            warning: true,
            message: "0/```` nodes are available: 37 Insufficient cpu, 12 node(s) had untolerated taint {dedicated: batch}. preemption: 0/```` nodes are available: No preemption victims found for incoming pod.",
        },
    ),
    (
        8,
        kubelet(
            "BackOff",
            false,
            "Back-off pulling image \"registry.example.com/shop/checkout:v1.42.7\": ErrImagePull: rpc error: code = NotFound",
        ),
    ),
    (
        4,
        kubelet(
            "Failed",
            true,
            "Failed to pull image \"registry.example.com/shop/checkout:v1.42.7\": rpc error: code = NotFound desc = failed to resolve reference",
        ),
    ),
    (4, kubelet("Pulling", false, "Pulling image \"registry.example.com/shop/checkout:v1.42.7\"")),
];

/// The events of a new pod.
pub(crate) const NEW: [Shape; 4] = [
    Shape {
        controller: Some("default-scheduler"),
        reason: "Scheduled",
        warning: false,
        message: "Successfully assigned shop/checkout-7d9c5b6f4d-~~~~~~~~ to node-^^^^^^.example.internal",
    },
    kubelet(
        "Pulled",
        false,
        "Container image \"registry.example.com/shop/checkout:v1.42.6\" already present on machine",
    ),
    kubelet("Created", false, "Container created"),
    kubelet("Started", false, "Container started"),
];

impl Shape {
    pub(crate) fn path(self) -> &'static str {
        match self.controller {
            None => "/api/v1/namespaces/shop/events",
            Some(_) => "/apis/events.k8s.io/v1/namespaces/shop/events",
        }
    }

    fn severity(self) -> &'static str {
        if self.warning { "Warning" } else { "Normal" }
    }

    pub(crate) fn json(self) -> Vec<u8> {
        let (reason, severity) = (self.reason, self.severity());
        // The messages have no other characters that JSON escapes.
        let message = self.message.replace('"', "\\\"");
        let pod = format!("checkout-7d9c5b6f4d-{OBJECT}");
        let object = format!(
            r#"{{"kind":"Pod","namespace":"{NAMESPACE}","name":"{pod}","uid":"0d2c5f6e-7a8b-4c9d-8e1f-2a3b{OBJECT}","apiVersion":"v1","resourceVersion":"48213377","fieldPath":"spec.containers{{checkout}}"}}"#
        );
        match self.controller {
            None => format!(
                r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"{pod}.{SERIAL}","namespace":"{NAMESPACE}","creationTimestamp":null}},"involvedObject":{object},"reason":"{reason}","message":"{message}","source":{{"component":"kubelet","host":"node-{NODE}.example.internal"}},"firstTimestamp":"{TIME}","lastTimestamp":"{TIME}","count":1,"type":"{severity}","eventTime":null,"reportingComponent":"kubelet","reportingInstance":"node-{NODE}.example.internal"}}"#
            ),
            Some(controller) => format!(
                r#"{{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{{"name":"{pod}.{SERIAL}","namespace":"{NAMESPACE}","creationTimestamp":null}},"eventTime":"2026-03-01T08:00:00.000000Z","reportingController":"{controller}","reportingInstance":"{controller}-control-plane-1","action":"Scheduling","reason":"{reason}","regarding":{object},"note":"{message}","type":"{severity}","deprecatedSource":{{}},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null}}"#
            ),
        }
        .into_bytes()
    }
}
