//! Decodes and writes the recorded protobuf of a real apiserver and compares the bytes, without a server. `player.rs` replays the
//! answers to these bodies over HTTP.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use base64::prelude::{BASE64_STANDARD, Engine as _};
use eventweir::event::protobuf;
use eventweir::event::{ApiGroup, json};
use eventweir::status::Status;
use eventweir::upstream::WatchEvent;
use serde_json::Value;

use super::case;
use super::compare::{Known, Order, event_list, watch_event};

/// Bodies that are accepted although no writer in Go sends them: they are not written as they came.
const UNUSUAL: [&str; 3] = ["protobuf-nanos", "protobuf-no-type", "protobuf-bad-utf8"];

/// Each step of the cases in `file`, or of all cases, with the name of its case.
fn steps(file: Option<&str>) -> Vec<(String, Value)> {
    let cases = case::lines("api").into_iter().filter(|(name, _)| file.is_none_or(|file| file == name));
    let steps = cases.flat_map(|(_, case)| {
        let id = case["id"].as_str().unwrap().to_owned();
        let steps = case["steps"].as_array().unwrap().clone();
        steps.into_iter().map(move |step| (id.clone(), step))
    });
    steps.collect()
}

fn base64(text: &Value) -> Option<Vec<u8>> {
    text.as_str().map(|text| BASE64_STANDARD.decode(text).unwrap())
}

#[test]
fn a_body_decodes_to_what_its_json_says_and_is_written_as_it_came() {
    let mut compared = 0;
    for (id, step) in steps(Some("protobuf")) {
        let request = &step["request"];
        let (Some(object), Some(body)) = (request.pointer("/decoded/object"), base64(&request["bodyBase64"])) else {
            continue;
        };
        let group = case::group_of(request["path"].as_str().unwrap());
        let Ok(decoded) = protobuf::decode(group, &body) else { continue };
        let mut expected = json::decode(group, object.to_string().as_bytes(), json::FieldValidation::Strict).unwrap();
        if id == "protobuf-no-type" {
            // The envelope names no type; the recorded JSON does.
            expected.event.type_meta = None;
        }
        assert_eq!(decoded, expected, "{id}");
        if !UNUSUAL.contains(&id.as_str()) {
            let mut written = Vec::new();
            protobuf::write(group, &decoded.event, &mut written);
            assert_eq!(written, body, "{id}");
        }
        compared += 1;
    }
    assert!(compared >= 13, "{compared}");
}

#[test]
fn answers_are_written_byte_for_byte_as_the_apiserver_writes_them() {
    let (mut compared, mut frames_compared) = (0, 0);
    for (id, step) in steps(None) {
        let response = &step["response"];
        if let Some(recorded) = base64(&response["bodyBase64"])
            && written_again(&id, &recorded, &response["decoded"])
        {
            compared += 1;
        }
        for frame in response["frames"].as_array().into_iter().flatten() {
            if let Some(recorded) = base64(&frame["base64"]) {
                frame_again(&id, &recorded, frame);
                frames_compared += 1;
            }
        }
    }
    assert!(compared >= 28 && frames_compared >= 6, "{compared} {frames_compared}");
}

/// Decodes a recorded object, compares it with its recorded JSON, writes it and compares the bytes. False for kinds that
/// eventweir does not serve.
fn written_again(id: &str, recorded: &[u8], decoded: &Value) -> bool {
    let group = if decoded["envelope"]["apiVersion"] == "v1" { ApiGroup::Core } else { ApiGroup::Events };
    let object = &decoded["object"];
    let (mut shown, mut written) = (Vec::new(), Vec::new());
    match decoded["envelope"]["kind"].as_str().unwrap() {
        "Event" => {
            let event = protobuf::decode(group, recorded).unwrap().event;
            json::write_json(group, &event, &mut shown);
            protobuf::write(group, &event, &mut written);
            if id == "protobuf-bad-utf8" {
                // The server returns the bytes unchanged; eventweir repairs them, as both do in JSON.
                assert_eq!(protobuf::decode(group, &written).unwrap().event, event);
                written = recorded.to_vec();
            }
        }
        "EventList" => {
            let list = event_list(group, recorded).unwrap();
            json::write_list(group, &list, &mut shown);
            protobuf::write_list(group, &list, &mut written);
        }
        "Status" => {
            let status: Status = serde_json::from_value(object.clone()).unwrap();
            protobuf::write_status(&status, &mut written);
            // A placeholder stands for a time or a version in the message.
            assert!(written == recorded || object.to_string().contains("\"<"), "{id}");
            return true;
        }
        _ => return false,
    }
    let shown = serde_json::from_slice(&shown).unwrap();
    assert_eq!(Known::new(false).value(object, &shown, Order::Kept), Ok(()), "{id}");
    assert_eq!(written, recorded, "{id}");
    true
}

/// Compares a watch's frame, which is recorded without the four bytes of its length.
fn frame_again(id: &str, recorded: &[u8], frame: &Value) {
    let (label, object) = watch_event(recorded).unwrap();
    assert!(frame["type"] == *label && written_again(id, &object, &frame["decoded"]), "{id}");
    let event = || protobuf::decode(ApiGroup::Core, &object).unwrap().event.into();
    let event = match label.as_str() {
        "ADDED" => WatchEvent::Added(event()),
        "MODIFIED" => WatchEvent::Modified(event()),
        "DELETED" => WatchEvent::Deleted(event()),
        "BOOKMARK" => WatchEvent::Bookmark(event()),
        _ => WatchEvent::Error(serde_json::from_value(frame["decoded"]["object"].clone()).unwrap()),
    };
    let mut out = b"before".to_vec();
    protobuf::write_watch_frame(&event, &mut out, |event, out| protobuf::write(ApiGroup::Core, event, out));
    let (length, written) = out.strip_prefix(b"before").unwrap().split_first_chunk::<4>().unwrap();
    assert_eq!(usize::try_from(u32::from_be_bytes(*length)).unwrap(), written.len(), "{id}");
    let is_filled = frame["decoded"]["object"].to_string().contains("\"message\":\"<");
    assert!(written == recorded || is_filled, "{id}");
}
