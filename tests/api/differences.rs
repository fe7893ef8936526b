//! Where eventweir's answers differ from the recorded ones, and why. Each row of a deliberate difference has its counterpart
//! in `docs/semantics.md`. A case that stands here and would pass makes the test fail: the tables can only shrink.

/// A reason, and the cases that it holds for.
pub(crate) type Row = (&'static str, &'static [&'static str]);

/// Headers of the recorded server that eventweir does not have.
pub(crate) const ABSENT_HEADERS: [(&str, &str); 3] = [
    ("Audit-Id", "eventweir writes no audit log"),
    ("X-Kubernetes-Pf-Flowschema-Uid", "it has no flow schemas"),
    ("X-Kubernetes-Pf-Prioritylevel-Uid", "it has no priority levels"),
];

/// Differences in every setting.
pub(crate) const ALWAYS: &[Row] = &[];

/// Further differences with `correlation.enabled: true`.
pub(crate) const CORRELATED: &[Row] = &[];
