//! Events as in clusters: templates that are rendered once, with varying digits.
//!
//! A template has marks of a fixed width for the object, the node, the serial number in the name, and a number in the
//! message. The generator copies a template and overwrites the marks, which takes little CPU.

use crate::shapes::{CRASH, NEW, NODE, OBJECT, REPEATING, SERIAL, Shape, VARYING};

/// The kinds of events that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mix {
    /// Crash loops, failed scheduling, image pull back-offs, failed probes, and a few new pods.
    Mixed,
    /// One kubelet event per object, each object once, in order.
    Walk,
    /// The same events in random order.
    Draw,
}

/// Events about new pods, per thousand events of the mix.
const NEW_PERMILLE: u64 = 10;

/// The kind of a mark.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Object,
    Node,
    Serial,
    Varying,
}

/// A rendered request with the positions of its marks.
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
    random: u64,
    serial: u64,
    /// The newest pod, and the number of its events so far.
    fresh: u64,
    fresh_step: usize,
    walked: u64,
}

/// The population of an event stream.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Population {
    #[arg(long, value_enum, default_value = "mixed")]
    mix: Mix,
    /// The number of a walk's first object.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Objects have numbers below this.
    #[arg(long, default_value_t = 4000)]
    objects: u64,
    /// Nodes that report.
    #[arg(long, default_value_t = 200)]
    nodes: u64,
}

impl Events {
    /// Renders the templates; `frame` makes a request from an event's path and body.
    pub(crate) fn new(population: Population, mut frame: impl FnMut(&str, &[u8]) -> Vec<u8>) -> Self {
        let mut render = |shape: Shape| Template::new(frame(shape.path(), &shape.json()));
        let Population { mix, first, objects, nodes } = population;
        let repeating = match mix {
            Mix::Mixed => REPEATING.iter().flat_map(|(times, shape)| vec![*shape; *times]).map(&mut render).collect(),
            Mix::Walk | Mix::Draw => vec![render(CRASH)],
        };
        Self {
            repeating,
            new: NEW.map(&mut render).into(),
            mix,
            objects,
            nodes,
            random: 0x9e37_79b9_7f4a_7c15,
            serial: 0x18a3_f4c5 << 32,
            fresh: 0x8000_0000,
            fresh_step: 0,
            walked: first,
        }
    }

    /// Whether a walk has covered all objects.
    pub(crate) fn is_over(&self) -> bool {
        self.mix == Mix::Walk && self.walked >= self.objects
    }

    /// Draws a number by xorshift64*, which is cheap and random enough for this.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((u128::from(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(below)) >> 64) as u64
    }

    /// Appends the next request.
    pub(crate) fn append(&mut self, out: &mut Vec<u8>) {
        let varying = self.draw(64) + 4936;
        let is_new = self.mix == Mix::Mixed && self.draw(1000) < NEW_PERMILLE;
        let (object, choice) = if is_new {
            // The four events about a pod follow each other.
            let step = self.fresh_step;
            self.fresh_step = (step + 1) % self.new.len();
            self.fresh += u64::from(step == 0);
            (self.fresh, step)
        } else {
            let object = match self.mix {
                Mix::Mixed | Mix::Draw => self.draw(self.objects),
                Mix::Walk => self.walked,
            };
            self.walked += 1;
            // Each object has one kind of problem.
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
    use super::{Events, Mix, NODE, OBJECT, Population, SERIAL, VARYING};

    fn events(mix: Mix) -> Events {
        let population = Population { mix, first: 0, objects: 40, nodes: 4 };
        Events::new(population, |_, body| body.to_vec())
    }

    #[test]
    fn events_are_json_of_the_promised_size_and_each_has_its_name() {
        let mut events = events(Mix::Mixed);
        let (mut names, mut length) = (std::collections::BTreeSet::new(), 0);
        for _ in 0..1000 {
            let mut body = Vec::new();
            events.append(&mut body);
            let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
            names.insert(event["metadata"]["name"].to_string());
            length += body.len();
            assert!((600..1000).contains(&body.len()), "{} bytes: {event}", body.len());
            for mark in [OBJECT, NODE, SERIAL, VARYING] {
                assert!(!event.to_string().contains(mark), "{mark} is left in {event}");
            }
        }
        assert_eq!(names.len(), 1000);
        assert!((700_000..900_000).contains(&length), "{length} bytes in 1,000 events");
    }

    #[test]
    fn a_walk_comes_by_every_object_once() {
        let mut events = events(Mix::Walk);
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
