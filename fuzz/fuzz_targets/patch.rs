//! Patches: a patched event is the same after it is written and decoded, and a merge patch is idempotent.
#![no_main]

use eventweir::event::json::{self, FieldValidation};
use eventweir::event::patching::{self, PatchType};
use eventweir::event::{ApiGroup, Event, Time};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, body) = input;
    let group = if choice & 1 == 0 { ApiGroup::Core } else { ApiGroup::Events };
    let kinds = [PatchType::StrategicMerge, PatchType::Merge, PatchType::Json];
    let kind = kinds[usize::from(choice >> 1) % kinds.len()];
    let mut current = Event {
        reason: "BackOff".into(),
        message: "m".into(),
        count: 3,
        last_timestamp: Some(Time(1_772_352_000)),
        ..Event::default()
    };
    current.metadata.name = "a".into();
    current.metadata.namespace = "shop".into();
    let Ok(patched) = patching::apply(kind, body, group, FieldValidation::Warn, &current) else { return };
    let mut written = Vec::new();
    json::write_json(group, &patched.event, &mut written);
    let read = json::decode(group, &written, FieldValidation::Strict).expect("the written event is decoded");
    let mut again = Vec::new();
    json::write_json(group, &read.event, &mut again);
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&again));
    if kind == PatchType::Merge {
        let twice = patching::apply(kind, body, group, FieldValidation::Warn, &patched.event);
        if let Ok(twice) = twice {
            assert_eq!(twice.event, patched.event);
        }
    }
});
