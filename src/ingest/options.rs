//! Options in a query, validated as by the apiserver: `CreateOptions`, `UpdateOptions`, `PatchOptions` and
//! `ListOptions` of `meta.k8s.io`. Mirrors `k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go` and
//! `…/internalversion/validation/validation.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;
use std::str::FromStr;

use crate::event::ApiGroup;
use crate::event::json::{self, FieldValidation};
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{FieldSelector, LabelSelector, ListOptions, Version, WatchOptions};

/// LIMIT: bytes of a fieldManager (`FieldManagerMaxLength`); a longer one is refused.
pub(super) const FIELD_MANAGER_MAX: usize = 128;
/// LIMIT: reported faults of a fieldManager's letters; further ones are left out.
const FAULTS_MAX: usize = 1000;
const VERSION: &str = "resourceVersion";
/// Parameter that qualifies the version.
const RULE: &str = "resourceVersionMatch";
/// The only rule of a watch.
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// Options of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
}

/// Faults of options, reported together.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<StatusCause>);

impl Faults {
    fn push(&mut self, reason: &str, field: &str, message: impl Into<String>) {
        self.0.push(StatusCause { reason: reason.to_owned(), message: message.into(), field: field.to_owned() });
    }

    /// Adds a value that is not allowed together with others.
    pub(super) fn invalid(&mut self, field: &str, message: &str) {
        self.push("FieldValueInvalid", field, message);
    }

    fn forbidden(&mut self, field: &str, message: &str) {
        self.push("FieldValueForbidden", field, message);
    }

    /// Adds a value that is not one of those allowed.
    pub(super) fn unsupported(&mut self, field: &str, value: &str, allowed: &[&str]) {
        let message = format!("{value:?} is not allowed; allowed is {}", allowed.join(", "));
        self.push("FieldValueNotSupported", field, message);
    }

    /// Returns a 422 with all faults, if there are any.
    pub(super) fn refuse(self, kind: &str) -> Result<(), Status> {
        if self.0.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = self.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let message = format!("invalid {kind}: {}", texts.join("; "));
        Err(Status::new(422, "Invalid", message).with_details(StatusDetails {
            group: "meta.k8s.io".to_owned(),
            kind: kind.to_owned(),
            causes: self.0,
            ..StatusDetails::default()
        }))
    }
}

/// Decoded parameters; the first of duplicates counts.
pub(super) struct Parameters<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Parameters<'q> {
    pub(super) fn of(query: Option<&'q str>) -> Self {
        Self(pairs(query).collect())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    fn text(&self, name: &str) -> &str {
        self.first(name).unwrap_or_default()
    }

    /// Parses a boolean. COMPAT(apiserver): anything but `false` and `0` is true, an empty value too.
    pub(super) fn truth(&self, name: &str) -> Option<bool> {
        self.first(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// Parses a whole number; `None` if it is missing. COMPAT(apiserver): an empty value is no number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        self.first(name).map(|text| whole(name, text)).transpose()
    }

    /// Parses the version; 0 if it is missing or empty.
    fn version(&self) -> Result<u64, Status> {
        match self.text(VERSION) {
            "" => Ok(0),
            // Go reads no sign here.
            signed if signed.starts_with('+') => Err(not_whole(VERSION, signed)),
            text => whole(VERSION, text),
        }
    }
}

/// Decodes the parameters of a query. COMPAT(apiserver): Go ignores a parameter with a `;` or a broken escape.
pub(super) fn pairs(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let is_hex = |hex: &[u8]| hex.iter().all(u8::is_ascii_hexdigit);
    let is_escape = move |rest: &str| rest.as_bytes().get(..2).is_some_and(is_hex);
    let is_readable = move |pair: &&str| !pair.contains(';') && pair.split('%').skip(1).all(is_escape);
    let pairs = query.unwrap_or_default().split('&').filter(is_readable);
    pairs.flat_map(|pair| form_urlencoded::parse(pair.as_bytes()))
}

pub(super) fn first<'q>(query: Option<&'q str>, name: &str) -> Option<Cow<'q, str>> {
    pairs(query).find(|(key, _)| key == name).map(|(_, value)| value)
}

fn whole<N: FromStr>(name: &str, text: &str) -> Result<N, Status> {
    text.parse().map_err(|_fault| not_whole(name, text))
}

fn not_whole(name: &str, text: &str) -> Status {
    Status::bad_request(format!("{name}: {text:?} is not a whole number in range"))
}

/// Whether a query sets a parameter to true, as the API server reads it: Python writes `True`.
pub(crate) fn sets(query: Option<&str>, name: &str) -> bool {
    Parameters::of(query).truth(name).unwrap_or(false)
}

/// Whether a path asks for a watch: `/api/v1/watch/…` or `/apis/GROUP/VERSION/watch/…`.
pub(crate) fn is_watch_path(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    let before = match segments.next() {
        Some("api") => 1,
        Some("apis") => 2,
        _ => return false,
    };
    segments.nth(before) == Some("watch")
}

/// Parses the options of a write; `kind` is their kind, such as `CreateOptions`.
pub(super) fn of_write(kind: &str, query: Option<&str>) -> Result<Options, Status> {
    check_write(kind, &Parameters::of(query), Faults::default())
}

/// Parses the options of a patch other than an apply.
pub(super) fn of_patch(query: Option<&str>) -> Result<Options, Status> {
    let parameters = Parameters::of(query);
    let mut faults = Faults::default();
    if parameters.first("force").is_some() {
        faults.forbidden("force", "is allowed for an apply patch only");
    }
    check_write("PatchOptions", &parameters, faults)
}

/// Parses the options of an apply, and whether it forces conflicts with other managers.
pub(super) fn of_apply(query: Option<&str>) -> Result<(Options, bool), Status> {
    let parameters = Parameters::of(query);
    let mut faults = Faults::default();
    if parameters.text("fieldManager").is_empty() {
        faults.push("FieldValueRequired", "fieldManager", "is required for an apply patch");
    }
    let options = check_write("PatchOptions", &parameters, faults)?;
    Ok((options, parameters.truth("force").unwrap_or(false)))
}

fn check_write(kind: &str, parameters: &Parameters<'_>, mut faults: Faults) -> Result<Options, Status> {
    check_field_manager(parameters.text("fieldManager"), &mut faults);
    let dry_run: Vec<&str> = parameters.all("dryRun").collect();
    check_dry_run(&dry_run, &mut faults);
    let validation = match parameters.text("fieldValidation") {
        "" | "Warn" => FieldValidation::Warn,
        "Ignore" => FieldValidation::Ignore,
        "Strict" => FieldValidation::Strict,
        other => {
            faults.unsupported("fieldValidation", other, &["Ignore", "Strict", "Warn"]);
            FieldValidation::Warn
        }
    };
    faults.refuse(kind)?;
    Ok(Options { validation, dry_run: !dry_run.is_empty() })
}

/// Whether a query asks for a dry run, which is no occurrence even if it is refused.
pub(super) fn is_dry_run(query: Option<&str>) -> bool {
    Parameters::of(query).all("dryRun").any(|value| value == "All")
}

/// Checks `dryRun`: only `All`, any number of times.
pub(super) fn check_dry_run(values: &[&str], faults: &mut Faults) {
    if let Some(other) = values.iter().find(|value| **value != "All") {
        faults.unsupported("dryRun", other, &["All"]);
    }
}

fn check_field_manager(manager: &str, faults: &mut Faults) {
    if manager.len() > FIELD_MANAGER_MAX {
        faults.push("FieldValueTooLong", "fieldManager", format!("must have at most {FIELD_MANAGER_MAX} bytes"));
    }
    // DIFFERENCE(apiserver): the apiserver reports all such letters.
    for letter in manager.chars().filter(|letter| !json::is_printable(*letter)).take(FAULTS_MAX) {
        let message = format!("must have printable characters only, found U+{:04X}", u32::from(letter));
        faults.push("FieldValueInvalid", "fieldManager", message);
    }
}

/// Parses the options of a list or a deletecollection.
pub(super) fn of_list(group: ApiGroup, query: Option<&str>) -> Result<ListOptions, Status> {
    let parameters = Parameters::of(query);
    // COMPAT(apiserver): a list ignores the timeout, but it must be a number.
    parameters.number("timeoutSeconds")?;
    // COMPAT(apiserver): a negative limit means no limit.
    let limit = parameters.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
    let (rule, version) = (parameters.text(RULE), parameters.text(VERSION));
    let continue_token = parameters.text("continue").to_owned();
    let label_selector = LabelSelector::parse(parameters.text("labelSelector"))?;
    check_list(&parameters)?;
    let field_selector = FieldSelector::parse(parameters.text("fieldSelector"), group)?;
    if !continue_token.is_empty() && !matches!(version, "" | "0") {
        return Err(Status::bad_request("resourceVersion: is not allowed together with continue"));
    }
    let version = match (parameters.version()?, rule) {
        (0, _) => Version::Newest,
        (version, "Exact") => Version::Exact(version),
        (version, NOT_OLDER_THAN) => Version::NotOlderThan(version),
        (version, _) => Version::AtLeast(version),
    };
    Ok(ListOptions { limit, continue_token, field_selector, label_selector, version })
}

/// `ValidateListOptions`.
fn check_list(parameters: &Parameters<'_>) -> Result<(), Status> {
    let (rule, version) = (parameters.text(RULE), parameters.text(VERSION));
    let mut faults = Faults::default();
    if !rule.is_empty() {
        if version.is_empty() {
            faults.forbidden(RULE, "is allowed together with resourceVersion only");
        }
        if !parameters.text("continue").is_empty() {
            faults.forbidden(RULE, "is not allowed together with continue");
        }
        if !matches!(rule, "Exact" | NOT_OLDER_THAN) {
            faults.unsupported(RULE, rule, &["Exact", NOT_OLDER_THAN]);
        }
        if rule == "Exact" && version == "0" {
            faults.forbidden(RULE, "Exact is not allowed for resourceVersion 0");
        }
    }
    if parameters.first("sendInitialEvents").is_some() {
        faults.forbidden("sendInitialEvents", "is allowed for a watch only");
    }
    faults.refuse("ListOptions")
}

/// Parses the options of a watch. COMPAT(apiserver): on the old path, without `watch`, they are those of a list.
pub(super) fn of_watch(group: ApiGroup, query: Option<&str>) -> Result<WatchOptions, Status> {
    let parameters = Parameters::of(query);
    // COMPAT(apiserver): a watch ignores the limit, but it must be a number.
    parameters.number("limit")?;
    let timeout = parameters.number("timeoutSeconds")?;
    let label_selector = LabelSelector::parse(parameters.text("labelSelector"))?;
    let is_stated = parameters.truth("watch").unwrap_or(false);
    let check = if is_stated { check_watch } else { check_list };
    check(&parameters)?;
    Ok(WatchOptions {
        field_selector: FieldSelector::parse(parameters.text("fieldSelector"), group)?,
        label_selector,
        resource_version: parameters.version()?,
        send_initial_events: parameters.truth("sendInitialEvents"),
        bookmarks: is_stated && parameters.truth("allowWatchBookmarks").unwrap_or(false),
        timeout_seconds: timeout.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0),
    })
}

/// `validateWatchOptions`.
fn check_watch(parameters: &Parameters<'_>) -> Result<(), Status> {
    let (rule, sends) = (parameters.text(RULE), parameters.first("sendInitialEvents").is_some());
    let mut faults = Faults::default();
    // COMPAT(apiserver): without a version, a watch gets sendInitialEvents and its rule by default
    // (`SetListOptionsDefaults`).
    let defaults = !sends && rule.is_empty() && matches!(parameters.text(VERSION), "" | "0");
    if defaults && !parameters.text("continue").is_empty() {
        faults.forbidden(RULE, "is not allowed together with continue");
    }
    if sends && rule != NOT_OLDER_THAN {
        faults.forbidden(RULE, "must be NotOlderThan together with sendInitialEvents");
    }
    if !rule.is_empty() {
        if !sends {
            faults.forbidden(RULE, "is allowed for a watch together with sendInitialEvents only");
        }
        if rule != NOT_OLDER_THAN {
            faults.unsupported(RULE, rule, &[NOT_OLDER_THAN]);
        }
        if !parameters.text("continue").is_empty() {
            faults.forbidden(RULE, "is not allowed together with continue");
        }
    }
    faults.refuse("ListOptions")
}

/// Parses the minimum version of a GET; 0 for any.
pub(super) fn version_of_get(query: Option<&str>) -> Result<u64, Status> {
    let parameters = Parameters::of(query);
    if parameters.truth("export") == Some(true) {
        return Err(Status::bad_request("export: is not supported any more"));
    }
    parameters.version()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_write_is_reported() {
        let query = "fieldManager=%07&dryRun=All&dryRun=Some&fieldValidation=Loud";
        let status = of_write("UpdateOptions", Some(query)).unwrap_err();
        assert_eq!(status.code, 422);
        assert_eq!(
            status.message,
            "invalid UpdateOptions: fieldManager: must have printable characters only, found U+0007; dryRun: \"Some\" is not \
             allowed; allowed is All; fieldValidation: \"Loud\" is not allowed; allowed is Ignore, Strict, Warn"
        );
    }

    #[test]
    fn faults_of_a_manager_are_limited() {
        for (letters, texts) in [(100, 100), (4_000, FAULTS_MAX)] {
            let query = format!("fieldManager={}&dryRun=Some", "%07".repeat(letters));
            let causes = of_write("UpdateOptions", Some(&query)).unwrap_err().details.unwrap().causes;
            let each = causes.iter().filter(|cause| cause.reason == "FieldValueInvalid").count();
            assert_eq!(each, texts, "{letters}");
            assert_eq!(causes[0].reason == "FieldValueTooLong", letters > FIELD_MANAGER_MAX);
            assert_eq!(causes.last().unwrap().field, "dryRun", "later faults are reported too");
        }
    }

    #[test]
    fn an_apply_forces_conflicts_unless_the_parameter_is_false() {
        for (query, forces) in [("", false), ("&force=False", false), ("&force=", true)] {
            let given = of_apply(Some(&format!("fieldManager=m{query}"))).map(|(_, force)| force);
            assert_eq!(given, Ok(forces), "{query}");
        }
    }

    /// `tests/api` replays other options.
    #[test]
    fn lists_and_watches_forbid_different_options() {
        let refused = |query: &str| {
            let list = of_list(ApiGroup::Core, Some(query)).err().map(|status| status.code);
            let watch = of_watch(ApiGroup::Core, Some(&format!("{query}&watch=1")));
            (list, watch.err().map(|status| status.code))
        };
        assert_eq!(refused("limit=99999999999999999999"), (Some(400), Some(400)));
        assert_eq!(refused("resourceVersion=&continue="), (None, None));
        assert_eq!(refused("resourceVersion=7&resourceVersionMatch=NotOlderThan"), (None, Some(422)));
        assert_eq!(refused("labelSelector=%3D%3D"), (Some(400), Some(400)));
        assert!(sets(Some("watch"), "watch") && sets(Some("watch=yes"), "watch"));
        assert!(!sets(Some("watch=False"), "watch") && !sets(None, "watch"));
    }
}
