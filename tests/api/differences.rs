//! The cases in which eventweir's answers differ from the recorded ones, with reasons. `docs/semantics.md` has the deliberate
//! differences. A listed case that passes makes the test fail, so that the tables can only shrink.

/// A reason, and the cases that it holds for.
pub(crate) type Row = (&'static str, &'static [&'static str]);

/// Headers of the recorded server that eventweir does not have.
pub(crate) const ABSENT_HEADERS: [(&str, &str); 3] = [
    ("Audit-Id", "eventweir writes no audit log"),
    ("X-Kubernetes-Pf-Flowschema-Uid", "it has no flow schemas"),
    ("X-Kubernetes-Pf-Prioritylevel-Uid", "it has no priority levels"),
];

/// Differences in every setting.
pub(crate) const ALWAYS: &[Row] = &[
    (
        "these tests configure no `auth`, so that every client is allowed (`tests/it/access.rs` replays them with `auth`)",
        &[
            "auth-none-create",
            "auth-none-get",
            "auth-bad-create",
            "auth-bad-yaml",
            "auth-bad-protobuf",
            "auth-off-none",
            "auth-scheme-basic",
            "auth-scheme-empty",
            "transport-headers-401",
        ],
    ),
    (
        "for the same reason, permissions are not checked",
        &[
            "auth-nobody-create-group",
            "auth-nobody-get",
            "auth-nobody-list",
            "auth-nobody-watch",
            "auth-nobody-patch",
            "auth-nobody-put",
            "auth-nobody-deletecollection",
            "auth-nobody-missing",
            "auth-nobody-malformed",
            "auth-nobody-unknown-group",
            "auth-impersonate",
            "transport-headers-403",
        ],
    ),
    ("a browser's request for a page of another origin is refused", &["transport-origin"]),
    ("it serves events only", &["auth-review", "auth-review-no", "auth-token-review", "auth-access-review"]),
    (
        "the embedded store has no limit of an event's size; the limit of bodies applies",
        &["create-body-large-over-etcd", "create-body-large-over-etcd-request"],
    ),
    (
        "the embedded store does not do server-side apply (415)",
        &[
            "auth-writer-apply-create",
            "patch-apply-create",
            "patch-apply-yaml",
            "patch-apply-conflict",
            "patch-apply-no-type",
            "patch-apply-unknown",
        ],
    ),
    (
        "the embedded store has no managedFields: a write that changes only them is not a write",
        &["cross-put-group-on-core"],
    ),
    ("the embedded store lists its newest version only", &["list-rv-exact", "list-rv-limit"]),
    (
        "a watch from a version that the embedded store has not reached is 410: the version may be of an earlier start",
        &["watch-rv-future"],
    ),
    ("a resourceVersion in a create is dropped", &["create-core-meta-rv-preset"]),
    ("the embedded store has no terminating namespaces", &["create-core-ns-terminating"]),
    ("/version describes eventweir", &["discovery-version", "discovery-version-anonymous"]),
    ("the OpenAPI document is smaller, and its hash differs", &["discovery-openapi-v3"]),
    ("discovery has no protobuf", &["discovery-protobuf"]),
    (
        "limits of requests and their 429s are eventweir's own",
        &["overload-inflight", "overload-fairness", "overload-event-rate-limit", "overload-event-rate-limit-patch"],
    ),
];

/// Further differences with correlation.
pub(crate) const CORRELATED: &[Row] = &[
    (
        "a create of a name that exists is one more occurrence",
        &["create-core-twice", "create-group-twice", "protobuf-exists", "transport-headers-409"],
    ),
    (
        "equal events count on one record",
        &[
            "list-continue-expired",
            "table-ages",
            "watch-from-old",
            "watch-item",
            "watch-initial-events-false",
            "watch-just-compacted",
            "watch-kubectl-events",
            "watch-label",
            "watch-rv-none-bookmarks",
            "watch-rv-zero-bookmarks",
            "watch-table",
            "watch-too-old",
        ],
    ),
    (
        "a record has a count in place of a series, so that events.k8s.io/v1 allows fewer changes",
        &["put-new-same", "patch-old-via-group-series", "patch-json-series"],
    ),
    (
        "a patch of a count or a series reports occurrences; its answer is the event as its client counts it",
        &[
            "patch-strategic-noop",
            "patch-strategic-series",
            "patch-strategic-series-twice",
            "patch-strategic-series-null",
            "patch-strategic-series-delete",
            "patch-strategic-retain-keys",
            "patch-strategic-duplicate",
            "patch-new-series-one",
            "patch-new-series-no-time",
            "ttl-noop-does-not-renew",
            "ttl-patch-after",
            "watch-noop-patch",
        ],
    ),
];
