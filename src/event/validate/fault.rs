//! One fault of a field, and the 422 that tells them all. Mirrors `util/validation/field/errors.go` and `NewInvalid`.

use crate::event::json::{self, go};
use crate::status::{Status, StatusCause, StatusDetails};

/// A fault of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What sort of fault.
    pub kind: FaultKind,
    /// Path of the field.
    pub field: String,
    /// What is wrong: `Invalid value: "x": must not be empty`.
    pub body: String,
}

/// The sorts of fault that events can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A value that is not allowed.
    Invalid,
    /// A missing value.
    Required,
    /// A value that must not be there.
    Forbidden,
    /// A value over its size limit.
    TooLong,
}

impl FaultKind {
    /// The reason of the Status' cause.
    const fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
        }
    }
}

/// The 422 for an Event. Its message tells equal faults once, its causes tell each.
#[must_use]
pub fn invalid(name: &str, faults: &[Fault]) -> Status {
    let mut told: Vec<String> = Vec::new();
    for fault in faults {
        let text = format!("{}: {}", fault.field, fault.body);
        if !told.contains(&text) {
            told.push(text);
        }
    }
    let joined = match told.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let causes = faults.iter().map(|fault| StatusCause {
        reason: fault.kind.reason().to_owned(),
        message: fault.body.clone(),
        field: fault.field.clone(),
    });
    Status::new(422, "Invalid", format!("Event {} is invalid: {joined}", go::quote(name))).with_details(StatusDetails {
        name: name.to_owned(),
        kind: "Event".to_owned(),
        causes: causes.collect(),
        ..StatusDetails::default()
    })
}

/// An invalid string.
pub(super) fn invalid_text(field: &str, value: &str, detail: &str) -> Fault {
    invalid_json(field, &go::quote(value), detail)
}

/// An invalid value of another type, already written as Go shows it.
pub(super) fn invalid_json(field: &str, value: &str, detail: &str) -> Fault {
    Fault { kind: FaultKind::Invalid, field: field.to_owned(), body: format!("Invalid value: {value}: {detail}") }
}

pub(super) fn required(field: &str, detail: &str) -> Fault {
    plain(FaultKind::Required, field, detail)
}

/// A fault that does not show the value.
pub(super) fn plain(kind: FaultKind, field: &str, detail: &str) -> Fault {
    let separator = if detail.is_empty() { "" } else { ": " };
    Fault { kind, field: field.to_owned(), body: format!("{}{separator}{detail}", kind.text()) }
}

/// A string as Go's JSON encoder writes it.
pub(super) fn json_text(text: &str) -> String {
    shown(|out| json::write_text(text, out))
}

/// What a writer writes, as text.
pub(super) fn shown(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    go::lossy(&out)
}
