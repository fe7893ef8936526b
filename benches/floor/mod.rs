//! The least that a repeat can cost, and the events that the benches measure with.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::io::Write as _;

use eventweir::correlator::KeySecret;
use eventweir::event::{Event, core_v1};
use siphasher::sip128::{Hasher128, SipHasher13};
use smol_str::{SmolStr, format_smolstr};

pub(crate) const SECRET: KeySecret = KeySecret(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
pub(crate) const START: i64 = 1_772_352_000_000_000_000;

/// A kubelet's event.
pub(crate) fn template() -> Event {
    core_v1::from_json(include_bytes!("../event.json")).unwrap()
}

/// An event about an object of its own.
pub(crate) fn event(template: &Event, source: usize, object: usize) -> Event {
    let mut event = template.clone();
    event.source.host = format_smolstr!("node-{source:06}.example.internal");
    event.reporting_instance = event.source.host.clone();
    event.involved_object.name = format_smolstr!("checkout-7d9c5b6f4d-{object:07}");
    event.involved_object.uid = format_smolstr!("0d2c5f6e-7a8b-4c9d-8e1f-{object:012}");
    // No string but the short ones is shared with another event, as none is with a decoded one.
    event.involved_object.field_path = template.involved_object.field_path.as_str().into();
    event.message = format_smolstr!("{} {object:07}", template.message);
    event.metadata.name = format_smolstr!("{}.18a3f4c5d6e7b8a9", event.involved_object.name);
    event
}

/// The least that has to be done for a repeat.
#[derive(Default)]
pub(crate) struct Floor {
    groups: HashMap<u128, (i64, u32), foldhash::fast::FixedState>,
    observations: HashMap<u128, (i32, SmolStr), foldhash::fast::FixedState>,
    budgets: HashMap<u128, (f64, i64), foldhash::fast::FixedState>,
    out: Vec<u8>,
}

impl Floor {
    fn hash(fields: &[&str]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(SECRET.0, SECRET.1);
        for field in fields {
            hasher.write(&(field.len() as u64).to_le_bytes());
            hasher.write(field.as_bytes());
        }
        hasher.finish128().as_u128()
    }

    pub(crate) fn repeat(&mut self, event: &Event) -> usize {
        let (source, object) = (&event.source, &event.involved_object);
        let (kind, namespace, name, uid) = (&object.kind, &object.namespace, &object.name, &object.uid);
        let common =
            [&source.component, &source.host, kind, namespace, name, uid, &object.api_version, &event.event_type];
        let [a, b, c, d, e, f, g, h] = common.map(|text| text.as_str());
        let spam = Self::hash(&[a, b, c, d, e, f, g, h]);
        let (controller, instance) = (&event.reporting_controller, &event.reporting_instance);
        let group = Self::hash(&[a, b, c, d, e, f, g, h, &event.reason, controller, instance]);
        let key = Self::hash(&[a, b, c, d, e, f, g, h, &event.reason, &object.field_path, &event.message]);
        self.groups.entry(group).or_default().1 += 1;
        self.budgets.entry(spam).or_default().0 += 1.0;
        let (count, _) = self.observations.entry(key).or_insert_with(|| (0, event.metadata.name.clone()));
        *count += 1;
        self.out.clear();
        write!(self.out, r#"{{"count":{count},"lastTimestamp":"#).unwrap();
        write!(self.out, r#""{}","message":"#, event.last_timestamp.unwrap()).unwrap();
        serde_json::to_writer(&mut self.out, event.message.as_str()).unwrap();
        self.out.push(b'}');
        self.out.len()
    }
}
