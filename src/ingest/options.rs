//! The options that a query carries, checked as the apiserver checks them: `CreateOptions`, `UpdateOptions`, `PatchOptions`
//! and `ListOptions` of `meta.k8s.io`. After `k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go` and
//! `…/internalversion/validation/validation.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use crate::event::json::{FieldValidation, StrictFault, Strictness, go};
use crate::event::{ApiGroup, validate};
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{FieldSelector, LabelSelector, ListOptions, Version, WatchOptions};

/// LIMIT: bytes of a fieldManager; a longer one is refused.
const FIELD_MANAGER_MAX: usize = 128;
/// The only rule that a watch knows.
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// What a write's query asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
}

impl Options {
    /// What a body is decoded with.
    pub(super) const fn strictness(self) -> Strictness {
        match self.validation {
            FieldValidation::Strict => Strictness::Refuse,
            FieldValidation::Warn | FieldValidation::Ignore => Strictness::Report,
        }
    }

    /// What the client is warned of.
    pub(super) fn warnings(self, faults: &[StrictFault]) -> Vec<String> {
        match self.validation {
            FieldValidation::Warn => faults.iter().map(ToString::to_string).collect(),
            FieldValidation::Ignore | FieldValidation::Strict => Vec::new(),
        }
    }
}

/// Faults of options, told all at once.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<StatusCause>);

impl Faults {
    fn push(&mut self, reason: &str, field: &str, message: String) {
        self.0.push(StatusCause { reason: reason.to_owned(), message, field: field.to_owned() });
    }

    /// A value of the wrong form.
    pub(super) fn invalid(&mut self, field: &str, value: &str, detail: &str) {
        self.push("FieldValueInvalid", field, format!("Invalid value: {}: {detail}", go::quote(value)));
    }

    /// A value that must not be there.
    pub(super) fn forbidden(&mut self, field: &str, detail: &str) {
        self.push("FieldValueForbidden", field, format!("Forbidden: {detail}"));
    }

    /// A value that is none of the supported ones; both as Go shows them.
    pub(super) fn unsupported(&mut self, field: &str, value: &str, supported: &str) {
        let message = format!("Unsupported value: {value}: supported values: {supported}");
        self.push("FieldValueNotSupported", field, message);
    }

    /// Whether enough is known to be wrong: each unprintable letter of a fieldManager shows all of it, and there may be thousands.
    // DIFFERENCE(apiserver): that one tells of all faults, however many; here enough is enough, as in an event.
    fn is_enough(&self) -> bool {
        self.0.iter().map(|cause| cause.message.len()).sum::<usize>() >= validate::FAULT_BYTES_MAX
    }

    /// The 422 of these options, if there is a fault.
    pub(super) fn refuse(self, kind: &str) -> Result<(), Status> {
        let told: Vec<String> = self.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let text = match told.as_slice() {
            [] => return Ok(()),
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {text}");
        Err(Status::new(422, "Invalid", message).with_details(StatusDetails {
            group: "meta.k8s.io".to_owned(),
            kind: kind.to_owned(),
            causes: self.0,
            ..StatusDetails::default()
        }))
    }
}

/// The decoded parameters; where one is given twice the first counts.
struct Parameters<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Parameters<'q> {
    fn of(query: Option<&'q str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect())
    }

    fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    fn text(&self, name: &str) -> &str {
        self.first(name).unwrap_or_default()
    }

    /// COMPAT(apiserver): anything but `false` and `0` is true, also nothing at all after the name.
    fn truth(&self, name: &str) -> Option<bool> {
        self.first(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn integer(&self, name: &str) -> Result<i64, Status> {
        match self.text(name) {
            "" => Ok(0),
            text => text.parse().map_err(|error: std::num::ParseIntError| {
                let fault = match error.kind() {
                    std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                Status::bad_request(format!("strconv.ParseInt: parsing {}: {fault}", go::quote(text)))
            }),
        }
    }
}

/// Whether the query of a LIST asks for a watch.
pub(super) fn asks_for_watch(query: Option<&str>) -> bool {
    Parameters::of(query).truth("watch").unwrap_or(false)
}

/// How long the request may take, in Go's words.
pub(super) fn timeout(query: &str) -> Option<String> {
    Parameters::of(Some(query)).first("timeout").filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Options of a write; `kind` is their own kind, `CreateOptions` for example.
pub(super) fn of_write(kind: &str, query: Option<&str>) -> Result<Options, Status> {
    check_write(kind, &Parameters::of(query), Faults::default())
}

/// Options of a patch that is no apply.
pub(super) fn of_patch(query: Option<&str>) -> Result<Options, Status> {
    let parameters = Parameters::of(query);
    let mut faults = Faults::default();
    if parameters.first("force").is_some() {
        faults.forbidden("force", "may not be specified for non-apply patch");
    }
    check_write("PatchOptions", &parameters, faults)
}

/// Options of an apply, and whether it takes fields of other managers.
pub(super) fn of_apply(query: Option<&str>) -> Result<(Options, bool), Status> {
    let parameters = Parameters::of(query);
    let mut faults = Faults::default();
    if parameters.text("fieldManager").is_empty() {
        faults.push("FieldValueRequired", "fieldManager", "Required value: is required for apply patch".to_owned());
    }
    let options = check_write("PatchOptions", &parameters, faults)?;
    Ok((options, parameters.truth("force").unwrap_or(false)))
}

fn check_write(kind: &str, parameters: &Parameters<'_>, mut faults: Faults) -> Result<Options, Status> {
    check_field_manager(parameters.text("fieldManager"), &mut faults);
    let dry_run: Vec<&str> =
        parameters.0.iter().filter(|(name, _)| name == "dryRun").map(|(_, value)| value.as_ref()).collect();
    check_dry_run(&dry_run, &mut faults);
    let validation = match parameters.text("fieldValidation") {
        "" | "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        "Strict" => FieldValidation::Strict,
        other => {
            faults.unsupported("fieldValidation", &go::quote(other), r#""", "Ignore", "Strict", "Warn""#);
            FieldValidation::Warn
        }
    };
    faults.refuse(kind)?;
    Ok(Options { validation, dry_run: !dry_run.is_empty() })
}

/// `dryRun`: nothing or `All`, however often.
pub(super) fn check_dry_run(values: &[&str], faults: &mut Faults) {
    if values.iter().any(|value| *value != "All") {
        let shown: Vec<String> = values.iter().map(|value| go::quote(value)).collect();
        faults.unsupported("dryRun", &format!("[{}]", shown.join(",")), r#""All""#);
    }
}

fn check_field_manager(manager: &str, faults: &mut Faults) {
    if manager.len() > FIELD_MANAGER_MAX {
        let message = format!("Too long: may not be more than {FIELD_MANAGER_MAX} bytes");
        faults.push("FieldValueTooLong", "fieldManager", message);
    }
    for (position, letter) in manager.char_indices().filter(|(_, letter)| !go::is_print(*letter)) {
        if faults.is_enough() {
            break;
        }
        let detail = format!("invalid character U+{:04X} (at position {position})", u32::from(letter));
        faults.invalid("fieldManager", manager, &detail);
    }
}

/// Options of a list or of a deletecollection.
pub(super) fn of_list(group: ApiGroup, query: Option<&str>) -> Result<ListOptions, Status> {
    let parameters = Parameters::of(query);
    // COMPAT(apiserver): a negative limit is none.
    let limit = usize::try_from(parameters.integer("limit")?).unwrap_or(0);
    let (rule, version) = (parameters.text("resourceVersionMatch"), parameters.text("resourceVersion"));
    let continue_token = parameters.text("continue").to_owned();
    let label_selector = LabelSelector::parse(parameters.text("labelSelector"))?;
    check_list(&parameters)?;
    let field_selector = FieldSelector::parse(parameters.text("fieldSelector"), group)?;
    if !continue_token.is_empty() && !matches!(version, "" | "0") {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    let version = match (resource_version(version)?, rule) {
        (0, _) => Version::Newest,
        (version, "Exact") => Version::Exact(version),
        (version, NOT_OLDER_THAN) => Version::NotOlderThan(version),
        (version, _) => Version::AtLeast(version),
    };
    Ok(ListOptions { limit, continue_token, field_selector, label_selector, version })
}

/// `ValidateListOptions`.
fn check_list(parameters: &Parameters<'_>) -> Result<(), Status> {
    const RULE: &str = "resourceVersionMatch";
    let (rule, version) = (parameters.text(RULE), parameters.text("resourceVersion"));
    let mut faults = Faults::default();
    if !rule.is_empty() {
        if version.is_empty() {
            faults.forbidden(RULE, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !parameters.text("continue").is_empty() {
            faults.forbidden(RULE, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(rule, "Exact" | NOT_OLDER_THAN) {
            faults.unsupported(RULE, &go::quote(rule), r#""Exact", "NotOlderThan", """#);
        }
        if rule == "Exact" && version == "0" {
            faults.forbidden(RULE, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if parameters.first("sendInitialEvents").is_some() {
        faults.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    faults.refuse("ListOptions")
}

/// Options of a watch.
pub(super) fn of_watch(group: ApiGroup, query: Option<&str>) -> Result<WatchOptions, Status> {
    let parameters = Parameters::of(query);
    // COMPAT(apiserver): a limit means nothing to a watch, and has to be a number all the same.
    parameters.integer("limit")?;
    let timeout_seconds = u64::try_from(parameters.integer("timeoutSeconds")?).unwrap_or(0);
    let label_selector = LabelSelector::parse(parameters.text("labelSelector"))?;
    check_watch(&parameters)?;
    Ok(WatchOptions {
        field_selector: FieldSelector::parse(parameters.text("fieldSelector"), group)?,
        label_selector,
        resource_version: resource_version(parameters.text("resourceVersion"))?,
        send_initial_events: parameters.truth("sendInitialEvents"),
        bookmarks: parameters.truth("allowWatchBookmarks").unwrap_or(false),
        timeout_seconds,
    })
}

/// `validateWatchOptions`.
fn check_watch(parameters: &Parameters<'_>) -> Result<(), Status> {
    const RULE: &str = "resourceVersionMatch";
    let (rule, sends) = (parameters.text(RULE), parameters.first("sendInitialEvents").is_some());
    let mut faults = Faults::default();
    if sends && rule != NOT_OLDER_THAN {
        faults.forbidden(RULE, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if !rule.is_empty() {
        if !sends {
            faults.forbidden(RULE, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if rule != NOT_OLDER_THAN {
            faults.unsupported(RULE, &go::quote(rule), r#""NotOlderThan""#);
        }
        if !parameters.text("continue").is_empty() {
            faults.forbidden(RULE, "resourceVersionMatch is forbidden when continue is provided");
        }
    }
    faults.refuse("ListOptions")
}

/// The version that a GET has to have reached; 0 for any.
pub(super) fn version_of_get(query: Option<&str>) -> Result<u64, Status> {
    resource_version(Parameters::of(query).text("resourceVersion"))
}

fn resource_version(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|error: std::num::ParseIntError| {
        let fault = match error.kind() {
            std::num::IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        let text = go::quote(text);
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: {fault}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_writes_options_is_told() {
        let query = "fieldManager=%07&dryRun=All&dryRun=Some&fieldValidation=Loud";
        let status = of_write("UpdateOptions", Some(query)).unwrap_err();
        assert_eq!(status.code, 422);
        assert_eq!(
            status.message,
            "UpdateOptions.meta.k8s.io \"\" is invalid: [fieldManager: Invalid value: \"\\a\": invalid character U+0007 (at \
             position 0), dryRun: Unsupported value: [\"All\",\"Some\"]: supported values: \"All\", fieldValidation: \
             Unsupported value: \"Loud\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"]"
        );
        let long = format!("fieldManager={}", "m".repeat(129));
        let status = of_write("CreateOptions", Some(&long)).unwrap_err();
        assert!(status.message.ends_with("fieldManager: Too long: may not be more than 128 bytes"), "{status:?}");
        let options = of_write("CreateOptions", Some("dryRun=All&fieldValidation=Strict&fieldManager=a")).unwrap();
        assert_eq!(options, Options { validation: FieldValidation::Strict, dry_run: true });
    }

    #[test]
    fn enough_faults_of_a_manager_are_told_and_no_more() {
        // Each shows twice the letters' number of bytes, and some 60 more.
        for (letters, told) in [(100, 100), (4_000, 131)] {
            let query = format!("fieldManager={}&dryRun=Some", "%07".repeat(letters));
            let status = of_write("CreateOptions", Some(&query)).unwrap_err();
            let (length, causes) = (status.message.len(), status.details.unwrap().causes);
            assert!(length < 2 << 20, "{length}");
            let each = causes.iter().filter(|cause| cause.reason == "FieldValueInvalid").count();
            assert_eq!(each, told, "{letters}");
            assert_eq!(causes[0].reason == "FieldValueTooLong", letters > FIELD_MANAGER_MAX);
            assert_eq!(causes.last().unwrap().field, "dryRun", "what comes after is told all the same");
        }
    }

    #[test]
    fn an_apply_needs_a_manager_and_tells_every_fault() {
        let status = of_apply(Some("force=true&dryRun=Some")).unwrap_err();
        assert_eq!(
            status.message,
            "PatchOptions.meta.k8s.io \"\" is invalid: [fieldManager: Required value: is required for apply patch, dryRun: \
             Unsupported value: [\"Some\"]: supported values: \"All\"]"
        );
        let forces = |query: &str| of_apply(Some(query)).map(|(_, force)| force);
        assert_eq!(forces("fieldManager=m"), Ok(false));
        assert_eq!(forces("fieldManager=m&force=False"), Ok(false));
        assert_eq!(forces("fieldManager=m&force="), Ok(true), "also nothing at all after the name");
    }

    #[test]
    fn lists_and_watches_differ_in_what_they_forbid() {
        let refused = |query: &str| {
            let list = of_list(ApiGroup::Core, Some(query)).err().map(|status| status.code);
            (list, of_watch(ApiGroup::Core, Some(query)).err().map(|status| status.code))
        };
        assert_eq!(refused("limit=-1&timeoutSeconds=-1"), (None, None));
        assert_eq!(refused("limit=99999999999999999999"), (Some(400), Some(400)));
        assert_eq!(refused("resourceVersion=7&resourceVersionMatch=NotOlderThan"), (None, Some(422)));
        assert_eq!(refused("resourceVersion=0&resourceVersionMatch=Exact"), (Some(422), Some(422)));
        assert_eq!(refused("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), (Some(422), None));
        assert_eq!(refused("continue=x&resourceVersion=5"), (Some(400), None));
        let version = |rule: &str| {
            let query = format!("limit=2&resourceVersion=7{rule}");
            of_list(ApiGroup::Core, Some(&query)).map(|options| options.version)
        };
        assert_eq!(version(""), Ok(Version::AtLeast(7)));
        assert_eq!(version("&resourceVersionMatch=NotOlderThan"), Ok(Version::NotOlderThan(7)));
        assert_eq!(version("&resourceVersionMatch=Exact"), Ok(Version::Exact(7)));
        assert_eq!(refused("labelSelector=%3D%3D"), (Some(400), Some(400)));
        assert!(asks_for_watch(Some("watch")) && asks_for_watch(Some("watch=yes")));
        assert!(!asks_for_watch(Some("watch=False")) && !asks_for_watch(None));
    }
}
