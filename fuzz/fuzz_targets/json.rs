//! JSON of both API groups: a decoded event is the same after it is written and decoded again, and all rules accept any
//! event.
#![no_main]

use eventweir::event::json::{self, FieldValidation};
use eventweir::event::repair::repair;
use eventweir::event::{ApiGroup, Event, validate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    for group in [ApiGroup::Core, ApiGroup::Events] {
        let lenient = json::decode(group, body, FieldValidation::Warn);
        let strict = json::decode(group, body, FieldValidation::Strict);
        match (&lenient, &strict) {
            (Ok(lenient), Ok(strict)) => assert_eq!(lenient, strict),
            (Ok(lenient), Err(_)) => {
                assert!(!lenient.warnings.is_empty(), "strict refuses an event without a fault")
            }
            (Err(_), strict) => assert!(strict.is_err(), "strict accepts an event that lenient refuses"),
        }
        if let Ok(decoded) = lenient {
            let event = decoded.event;
            round_trip(group, &event);
            rules(group, event);
        }
    }
    for group in [ApiGroup::Core, ApiGroup::Events] {
        let Ok(list) = json::list_from_json(group, body) else { continue };
        let mut written = Vec::new();
        json::write_list(group, &list, &mut written);
        let again = json::list_from_json(group, &written).expect("the written list is decoded");
        let mut twice = Vec::new();
        json::write_list(group, &again, &mut twice);
        assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(&twice));
    }
});

fn round_trip(group: ApiGroup, event: &Event) {
    let mut written = Vec::new();
    json::write_json(group, event, &mut written);
    let again =
        json::decode(group, &written, FieldValidation::Strict).expect("the written event is decoded, even strictly");
    assert_eq!(*event, Event { type_meta: event.type_meta, ..again.event });
}

fn rules(group: ApiGroup, mut event: Event) {
    let _result = validate::create(group, &event);
    let _result = validate::update(group, &Event::default(), &event);
    validate::update(group, &event, &event).map_or_else(|_| (), |()| ());
    repair(group, &mut event, 4096, || 7);
    assert!(repair(group, &mut event, 4096, || 7).is_empty(), "a repaired event needs no second repair");
}
