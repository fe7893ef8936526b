//! A fault of a field, and the 422 that lists all faults. Mirrors `util/validation/field/errors.go` and `NewInvalid`.

use std::collections::HashSet;

use crate::event::cut;
use crate::status::{Status, StatusCause, StatusDetails};

/// A kind of fault: the reason of the cause in a Status, and the beginning of its message.
pub(super) type Kind = [&'static str; 2];

pub(super) const INVALID: Kind = ["FieldValueInvalid", "Invalid value"];
const REQUIRED: Kind = ["FieldValueRequired", "Required value"];
pub(super) const FORBIDDEN: Kind = ["FieldValueForbidden", "Forbidden"];
pub(super) const TOO_LONG: Kind = ["FieldValueTooLong", "Too long"];

/// LIMIT: faults of one event, approximately; further ones are not looked for. An event can have 100,000s of labels,
/// each with several faults.
const FAULTS_MAX: usize = 1000;
/// LIMIT: bytes of all fault texts, approximately. Each controller beyond the first quotes two owners.
const FAULT_BYTES_MAX: usize = 1 << 20;

/// LIMIT: bytes of an invalid text that its fault shows. A label can be as long as the body, and each of its faults has it.
const SHOWN_BYTES: usize = 4 << 10;

pub(super) fn is_enough(faults: &[StatusCause]) -> bool {
    faults.len() >= FAULTS_MAX || faults.iter().map(|fault| fault.message.len()).sum::<usize>() >= FAULT_BYTES_MAX
}

/// Returns the 422 for an Event. Its message lists equal faults once, its causes list each.
// DIFFERENCE(apiserver): the apiserver has no limit of faults.
pub(super) fn invalid(name: &str, faults: &[StatusCause]) -> Status {
    let texts: Vec<String> = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
    let mut seen = HashSet::with_capacity(texts.len());
    let distinct: Vec<&str> = texts.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    let joined = match distinct.as_slice() {
        [only] => (*only).to_owned(),
        several => format!("[{}]", several.join(", ")),
    };
    Status::new(422, "Invalid", format!("Event {name:?} is invalid: {joined}")).with_details(StatusDetails {
        name: name.to_owned(),
        kind: "Event".to_owned(),
        causes: faults.to_vec(),
        ..StatusDetails::default()
    })
}

pub(super) fn invalid_text(field: &str, value: &str, detail: &str) -> StatusCause {
    invalid_value(field, &format!("{:?}", cut(value, SHOWN_BYTES)), detail)
}

/// Adds a fault of an invalid string per detail.
pub(super) fn invalid_texts(field: &str, value: &str, details: Vec<String>, faults: &mut Vec<StatusCause>) {
    faults.extend(details.into_iter().map(|detail| invalid_text(field, value, &detail)));
}

/// Returns the fault of an invalid value, given as it is shown.
pub(super) fn invalid_value(field: &str, value: &str, detail: &str) -> StatusCause {
    plain(INVALID, field, &format!("{value}: {detail}"))
}

pub(super) fn required(field: &str, detail: &str) -> StatusCause {
    plain(REQUIRED, field, detail)
}

/// Returns a fault with this detail, which may be empty.
pub(super) fn plain([reason, text]: Kind, field: &str, detail: &str) -> StatusCause {
    let separator = if detail.is_empty() { "" } else { ": " };
    StatusCause { reason: reason.to_owned(), message: format!("{text}{separator}{detail}"), field: field.to_owned() }
}

#[cfg(test)]
mod tests {
    use crate::event::{ApiGroup, Event, OwnerReference, validate};

    fn causes(change: impl FnOnce(&mut Event)) -> usize {
        let mut event = Event::default();
        change(&mut event);
        let status = validate::create(ApiGroup::Core, &event).unwrap_err();
        assert!(status.message.len() < 3 << 20);
        status.details.unwrap().causes.len()
    }

    #[test]
    fn faults_are_limited() {
        let label = |number: u32| (format!("{number}/").into(), "/".into());
        let three = causes(|event| event.metadata.rare.get_or_insert_default().labels.extend((0..3).map(label)));
        let none = causes(|_| ());
        let each = (three - none) / 3;
        assert!(each >= 2);
        let many = causes(|event| event.metadata.rare.get_or_insert_default().labels.extend((0..300_000).map(label)));
        assert!((1000..1000 + each + none).contains(&many), "{many}");
        // Each controller beyond the first is a fault.
        let owner = OwnerReference { controller: Some(true), ..OwnerReference::default() };
        let owners = causes(|event| event.metadata.rare.get_or_insert_default().owner_references = vec![owner; 10_000]);
        assert!((10..1010).contains(&owners), "{owners}");
    }

    /// Fault: each fault of a label had the whole label, so that 3 MiB had an answer of 85 MB.
    #[test]
    fn a_long_text_is_cut_in_its_faults() {
        let mut event = Event::default();
        let long = "\u{80}".repeat(200_000);
        event.metadata.rare.get_or_insert_default().labels.insert(format!("{long}/{long}").into(), "".into());
        let status = validate::create(ApiGroup::Core, &event).unwrap_err();
        assert!(status.details.unwrap().causes.len() >= 4);
        assert!(status.message.len() < 1 << 20, "{}", status.message.len());
    }
}
