//! Protobuf of both API groups: events and delete options from any bytes. A decoded event is the same after it is
//! written and decoded again: alone and in a watch frame.
#![no_main]

use std::sync::Arc;

use eventweir::event::{ApiGroup, Event, WatchEvent, protobuf, validate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let _result = protobuf::decode_delete_options(body);
    for group in [ApiGroup::Core, ApiGroup::Events] {
        if let Ok(decoded) = protobuf::decode(group, body) {
            let event = decoded.event;
            let mut written = Vec::new();
            protobuf::write(group, &event, &mut written);
            let again = protobuf::decode(group, &written).expect("the written event is decoded").event;
            assert_eq!(event, Event { type_meta: event.type_meta, ..again });
            let _result = validate::create(group, &event);
            frame(group, &event);
        }
    }
});

/// Checks a watch frame: a length of four bytes, then a type and the object.
fn frame(group: ApiGroup, event: &Event) {
    let mut frame = Vec::new();
    protobuf::write_watch_frame(&WatchEvent::Modified(Arc::new(event.clone())), &mut frame, |event, out| {
        protobuf::write(group, event, out);
    });
    let (length, rest) = frame.split_first_chunk::<4>().expect("a frame begins with its length");
    assert_eq!(usize::try_from(u32::from_be_bytes(*length)), Ok(rest.len()));
    let at = rest.windows(4).position(|window| window == b"k8s\0").expect("a frame has an object");
    let again = protobuf::decode(group, &rest[at..]).expect("the object of the written frame is decoded").event;
    assert_eq!(*event, Event { type_meta: event.type_meta, ..again });
}
