//! Events as clusters send them, rendered once; what differs from one to the next is stamped into the bytes.
//!
//! A template holds runs of marks of a fixed width: for the object, the reporting node, the serial number in the name,
//! and what varies in a message. So the generator copies a template and overwrites some digits, and costs little.

use crate::proto::Message;

const OBJECT: &str = "~~~~~~~~";
const NODE: &str = "^^^^^^";
const SERIAL: &str = "||||||||||||||||";
const VARYING: &str = "````";

const NAMESPACE: &str = "shop";
const TIME: &str = "2026-03-01T08:00:00Z";
const UNIX: u64 = 1_772_352_000;

/// How events are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// Which events are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mix {
    /// Crash loops, failed scheduling, image pull back-offs, failed probes, and now and then a new pod.
    Mixed,
    /// One kubelet event an object, each object once, in order.
    Walk,
    /// The same events, drawn by chance.
    Draw,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Reported at core/v1 by a node's kubelet, else at events.k8s.io/v1 by this controller.
    controller: Option<&'static str>,
    reason: &'static str,
    warning: bool,
    message: &'static str,
}

const fn kubelet(reason: &'static str, warning: bool, message: &'static str) -> Shape {
    Shape { controller: None, reason, warning, message }
}

const CRASH: Shape = kubelet(
    "BackOff",
    true,
    "Back-off restarting failed container checkout in pod checkout-7d9c5b6f4d-~~~~~~~~_shop(0d2c5f6e-7a8b-4c9d-8e1f-2a3b~~~~~~~~)",
);

/// How often of 64 each repeating shape comes.
const REPEATING: [(usize, Shape); 6] = [
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

/// What is told of a new pod.
const NEW: [Shape; 4] = [
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
    fn path(self) -> &'static str {
        match self.controller {
            None => "/api/v1/namespaces/shop/events",
            Some(_) => "/apis/events.k8s.io/v1/namespaces/shop/events",
        }
    }

    fn severity(self) -> &'static str {
        if self.warning { "Warning" } else { "Normal" }
    }

    fn json(self) -> Vec<u8> {
        let (reason, severity) = (self.reason, self.severity());
        // What a message quotes has no other character that JSON escapes.
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

    fn protobuf(self) -> Vec<u8> {
        let new = Message::default;
        let pod = format!("checkout-7d9c5b6f4d-{OBJECT}");
        let node = format!("node-{NODE}.example.internal");
        let metadata = new().text(1, &format!("{pod}.{SERIAL}")).text(2, "").text(3, NAMESPACE).message(8, new());
        let object = new()
            .text(1, "Pod")
            .text(2, NAMESPACE)
            .text(3, &pod)
            .text(4, &format!("0d2c5f6e-7a8b-4c9d-8e1f-2a3b{OBJECT}"))
            .text(5, "v1")
            .text(6, "48213377")
            .text(7, "spec.containers{checkout}");
        let time = || Message::default().number(1, UNIX).number(2, 0);
        match self.controller {
            None => new()
                .message(1, metadata)
                .message(2, object)
                .text(3, self.reason)
                .text(4, self.message)
                .message(5, new().text(1, "kubelet").text(2, &node))
                .message(6, time())
                .message(7, time())
                .number(8, 1)
                .text(9, self.severity())
                .message(10, new())
                .text(12, "")
                .text(14, "kubelet")
                .text(15, &node)
                .into_body("v1", "Event"),
            Some(controller) => new()
                .message(1, metadata)
                .message(2, time())
                .text(4, controller)
                .text(5, &format!("{controller}-control-plane-1"))
                .text(6, "Scheduling")
                .text(7, self.reason)
                .message(8, object)
                .text(10, self.message)
                .text(11, self.severity())
                .message(12, new().text(1, "").text(2, ""))
                .into_body("events.k8s.io/v1", "Event"),
        }
    }
}

/// What is stamped where.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Object,
    Node,
    Serial,
    Varying,
}

/// A rendered request, and where its marks are.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) bytes: Vec<u8>,
    slots: Vec<(usize, Slot)>,
}

impl Template {
    fn new(bytes: Vec<u8>) -> Self {
        let mut slots = Vec::new();
        for (mark, slot) in
            [(OBJECT, Slot::Object), (NODE, Slot::Node), (SERIAL, Slot::Serial), (VARYING, Slot::Varying)]
        {
            let starts = bytes.windows(mark.len()).enumerate().filter(|(_, run)| *run == mark.as_bytes());
            slots.extend(starts.map(|(at, _)| (at, slot)));
        }
        Self { bytes, slots }
    }
}

/// A stream of events, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Events {
    repeating: Vec<Template>,
    new: Vec<Template>,
    mix: Mix,
    objects: u64,
    nodes: u64,
    /// Of a thousand events of the mix, those about new pods.
    new_permille: u64,
    random: u64,
    serial: u64,
    fresh: u64,
    fresh_step: usize,
    walked: u64,
    walk_step: u64,
}

/// What an event stream is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Population {
    pub(crate) mix: Mix,
    pub(crate) first: u64,
    pub(crate) objects: u64,
    pub(crate) nodes: u64,
    pub(crate) new_permille: u64,
}

impl Events {
    /// The stream of one of `workers` generators. `frame` makes a request of an event's path and body.
    pub(crate) fn new(
        population: Population,
        encoding: Encoding,
        (worker, workers): (u64, u64),
        mut frame: impl FnMut(&str, &[u8]) -> Vec<u8>,
    ) -> Self {
        let mut render = |shape: Shape| {
            let body = match encoding {
                Encoding::Json => shape.json(),
                Encoding::Protobuf => shape.protobuf(),
            };
            Template::new(frame(shape.path(), &body))
        };
        let Population { mix, first, objects, nodes, new_permille } = population;
        let repeating = match mix {
            Mix::Mixed => REPEATING.iter().flat_map(|(times, shape)| vec![*shape; *times]).map(&mut render).collect(),
            Mix::Walk | Mix::Draw => vec![render(CRASH)],
        };
        let new = NEW.map(&mut render).into();
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(worker + 1);
        Self {
            repeating,
            new,
            mix,
            objects,
            nodes,
            new_permille: if mix == Mix::Mixed { new_permille } else { 0 },
            random: seed,
            serial: (0x18a3_f4c5 << 32) | (worker << 28 & 0xffff_ffff),
            fresh: 0x8000_0000 | worker << 24,
            fresh_step: 0,
            walked: first + worker,
            walk_step: workers,
        }
    }

    /// Whether a walk has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.mix == Mix::Walk && self.walked >= self.objects
    }

    /// xorshift64*: cheap, and good enough to draw objects with.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((u128::from(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(below)) >> 64) as u64
    }

    /// Appends the next request, and returns where it begins.
    pub(crate) fn append(&mut self, out: &mut Vec<u8>) -> usize {
        let varying = self.draw(64) + 4936;
        let is_new = self.new_permille > 0 && self.draw(1000) < self.new_permille;
        let (object, choice) = if is_new {
            // The four events about a pod come one after the other.
            let step = self.fresh_step;
            self.fresh_step = (step + 1) % self.new.len();
            self.fresh += u64::from(step == 0);
            (self.fresh, step)
        } else {
            let object = match self.mix {
                Mix::Mixed | Mix::Draw => self.draw(self.objects),
                Mix::Walk => self.walked,
            };
            self.walked += self.walk_step;
            // An object is in one kind of trouble.
            (object, (object % self.repeating.len() as u64) as usize)
        };
        self.serial += 1;
        let template = if is_new { &self.new[choice] } else { &self.repeating[choice] };
        let begin = out.len();
        out.extend_from_slice(&template.bytes);
        let request = &mut out[begin..];
        for (at, slot) in &template.slots {
            match slot {
                Slot::Object => hex::<8>(&mut request[*at..], object),
                Slot::Node => decimal::<6>(&mut request[*at..], object % self.nodes),
                Slot::Serial => hex::<16>(&mut request[*at..], self.serial),
                Slot::Varying => decimal::<4>(&mut request[*at..], varying),
            }
        }
        begin
    }
}

fn hex<const WIDTH: usize>(to: &mut [u8], value: u64) {
    for (digit, byte) in to[..WIDTH].iter_mut().rev().enumerate() {
        *byte = b"0123456789abcdef"[(value >> (digit * 4) & 15) as usize];
    }
}

fn decimal<const WIDTH: usize>(to: &mut [u8], mut value: u64) {
    for byte in to[..WIDTH].iter_mut().rev() {
        *byte = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::{Encoding, Events, Mix, Population};

    fn events(mix: Mix, encoding: Encoding) -> Events {
        let population = Population { mix, first: 0, objects: 40, nodes: 4, new_permille: 100 };
        Events::new(population, encoding, (0, 1), |_, body| body.to_vec())
    }

    #[test]
    fn events_are_json_of_the_promised_size_and_each_has_its_name() {
        let mut events = events(Mix::Mixed, Encoding::Json);
        let (mut names, mut length) = (std::collections::BTreeSet::new(), 0);
        for _ in 0..1000 {
            let mut body = Vec::new();
            events.append(&mut body);
            let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
            names.insert(event["metadata"]["name"].to_string());
            length += body.len();
            assert!((600..1000).contains(&body.len()), "{} bytes: {event}", body.len());
            for mark in [super::OBJECT, super::NODE, super::SERIAL, super::VARYING] {
                assert!(!event.to_string().contains(mark), "{mark} is left in {event}");
            }
        }
        assert_eq!(names.len(), 1000);
        assert!((700_000..900_000).contains(&length), "{length} bytes in 1,000 events");
    }

    #[test]
    fn protobuf_is_stamped_as_json_is() {
        let mut events = events(Mix::Mixed, Encoding::Protobuf);
        let mut body = Vec::new();
        events.append(&mut body);
        assert!(body.starts_with(b"k8s\0"));
        let text = String::from_utf8_lossy(&body);
        assert!([super::OBJECT, super::NODE, super::SERIAL].iter().all(|mark| !text.contains(mark)));
    }

    #[test]
    fn a_walk_comes_by_every_object_once() {
        let mut events = events(Mix::Walk, Encoding::Json);
        let mut seen = std::collections::BTreeSet::new();
        while !events.is_over() {
            let mut body = Vec::new();
            events.append(&mut body);
            let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(seen.insert(event["involvedObject"]["uid"].to_string()));
        }
        assert_eq!(seen.len(), 40);
    }
}
