//! What the query and the User-Agent of a patch ask for (`PatchOptions`). After `ValidatePatchOptions` in
//! `k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go`.

use axum::http::HeaderMap;
use axum::http::header::USER_AGENT;
use smol_str::SmolStr;

use crate::event::ApiGroup;
use crate::event::json::{FieldValidation, go};
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::PatchOptions;

/// LIMIT: bytes of a manager's name; a longer one is refused, and a longer User-Agent cut.
const MANAGER_BYTES_MAX: usize = 128;

/// Reads the options of a patch that is no apply.
///
/// # Errors
/// The apiserver's 422, one cause a fault.
pub(super) fn options(group: ApiGroup, query: Option<&str>, headers: &HeaderMap) -> Result<PatchOptions, Status> {
    let (mut manager, mut validation, mut forces) = (String::new(), String::new(), false);
    let mut dry_runs = Vec::new();
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match key.as_ref() {
            "dryRun" => dry_runs.push(value.into_owned()),
            // COMPAT(apiserver): of several the first counts.
            "fieldManager" if manager.is_empty() => manager = value.into_owned(),
            "fieldValidation" if validation.is_empty() => validation = value.into_owned(),
            "force" => forces = true,
            _ => {}
        }
    }
    let mut faults = Vec::new();
    if forces {
        faults.push(fault("Forbidden", "force", "Forbidden: may not be specified for non-apply patch".to_owned()));
    }
    manager_faults(&manager, &mut faults);
    if dry_runs.iter().any(|value| value != "All") {
        let told: Vec<String> = dry_runs.iter().map(|value| go::quote(value)).collect();
        let message = format!("Unsupported value: [{}]: supported values: \"All\"", told.join(","));
        faults.push(fault("NotSupported", "dryRun", message));
    }
    let known = match validation.as_str() {
        "Ignore" => Some(FieldValidation::Ignore),
        "" | "Warn" => Some(FieldValidation::Warn),
        "Strict" => Some(FieldValidation::Strict),
        _ => None,
    };
    if known.is_none() {
        let supported = r#""", "Ignore", "Strict", "Warn""#;
        let message = format!("Unsupported value: {}: supported values: {supported}", go::quote(&validation));
        faults.push(fault("NotSupported", "fieldValidation", message));
    }
    match known {
        Some(validation) if faults.is_empty() => {
            let manager = if manager.is_empty() { agent(headers) } else { manager.into() };
            Ok(PatchOptions { group, dry_run: !dry_runs.is_empty(), validation, manager })
        }
        Some(_) | None => Err(invalid(faults)),
    }
}

fn manager_faults(manager: &str, faults: &mut Vec<StatusCause>) {
    if manager.len() > MANAGER_BYTES_MAX {
        let message = format!("Too long: may not be more than {MANAGER_BYTES_MAX} bytes");
        faults.push(fault("TooLong", "fieldManager", message));
    }
    for (place, letter) in manager.char_indices().filter(|(_, letter)| !go::is_print(*letter)) {
        let told = go::quote(manager);
        let code = u32::from(letter);
        let message = format!("Invalid value: {told}: invalid character U+{code:04X} (at position {place})");
        faults.push(fault("Invalid", "fieldManager", message));
    }
}

/// Who a request comes from when it does not say who manages fields: its User-Agent up to the first `/`.
fn agent(headers: &HeaderMap) -> SmolStr {
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name: String = agent.split('/').next().unwrap_or_default().chars().filter(|c| go::is_print(*c)).collect();
    crate::event::cut(&name, MANAGER_BYTES_MAX)
}

fn fault(reason: &str, field: &str, message: String) -> StatusCause {
    StatusCause { reason: format!("FieldValue{reason}"), message, field: field.to_owned() }
}

fn invalid(causes: Vec<StatusCause>) -> Status {
    let told: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    let told = match told.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let text = format!("PatchOptions.meta.k8s.io \"\" is invalid: {told}");
    Status::new(422, "Invalid", text).with_details(StatusDetails {
        group: "meta.k8s.io".to_owned(),
        kind: "PatchOptions".to_owned(),
        causes,
        ..StatusDetails::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, agent: &'static str) -> Result<PatchOptions, Status> {
        let headers = HeaderMap::from_iter([(USER_AGENT, agent.parse().unwrap())]);
        options(ApiGroup::Core, Some(query), &headers)
    }

    #[test]
    fn the_manager_is_who_says_so_or_who_asks() {
        let check = |query, agent, manager: &str| assert_eq!(read(query, agent).unwrap().manager, manager);
        check("fieldManager=me", "kubectl/v1", "me");
        check("fieldManager=", "kubectl/v1 (x)", "kubectl");
        check("", "", "");
        assert_eq!(agent(&HeaderMap::from_iter([(USER_AGENT, "x".repeat(200).parse().unwrap())])).len(), 128);
        let options = read("dryRun=All&dryRun=All&fieldValidation=Strict&other=1", "").unwrap();
        assert!(options.dry_run && options.validation == FieldValidation::Strict);
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let status = read("force=&dryRun=Some&fieldValidation=x&fieldManager=a%01b", "").unwrap_err();
        assert_eq!(
            status.message,
            "PatchOptions.meta.k8s.io \"\" is invalid: [force: Forbidden: may not be specified for non-apply patch, \
             fieldManager: Invalid value: \"a\\x01b\": invalid character U+0001 (at position 1), dryRun: Unsupported value: \
             [\"Some\"]: supported values: \"All\", fieldValidation: Unsupported value: \"x\": supported values: \"\", \
             \"Ignore\", \"Strict\", \"Warn\"]"
        );
        assert_eq!(status.details.unwrap().causes.len(), 4);
        let long = read(&format!("fieldManager={}", "x".repeat(129)), "").unwrap_err();
        assert!(long.message.ends_with("fieldManager: Too long: may not be more than 128 bytes"));
    }
}
