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
pub(crate) const ALWAYS: &[Row] = &[
    (
        "these tests configure no `auth`: whoever reaches it is let in (`tests/it/access.rs` replays them with callers)",
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
        "for the same reason it asks nobody what a caller may do",
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
    ("a request that a page of another origin makes a browser send is refused", &["transport-origin"]),
    ("it serves events only", &["auth-review", "auth-review-no", "auth-token-review", "auth-access-review"]),
    (
        "the embedded store is no etcd: it takes every event that the limit of bodies lets in",
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
        "the embedded store keeps no managedFields: a write that would change nothing else is none",
        &["cross-put-group-on-core"],
    ),
    ("the embedded store lists its newest version only", &["list-rv-exact", "list-rv-limit"]),
    (
        "a watch from a version that the embedded store has not reached is 410: it could be of an earlier start, and wait for ever",
        &["watch-rv-future"],
    ),
    ("a resourceVersion in a create is dropped", &["create-core-meta-rv-preset"]),
    ("the embedded store's namespaces exist or do not, and never end", &["create-core-ns-terminating"]),
    ("/version tells of eventweir", &["discovery-version", "discovery-version-anonymous"]),
    ("the OpenAPI document is a small one, and so its hash another", &["discovery-openapi-v3"]),
    ("discovery is not told in protobuf", &["discovery-protobuf"]),
    (
        "the limits of requests and their 429s are eventweir's own",
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
        "a record has a count where a new-style event has a series, so that the new API group lets less of it be changed",
        &["put-new-same", "patch-old-via-group-series", "patch-json-series"],
    ),
    (
        "a patch of a count or a series tells of occurrences: its answer is the client's own line",
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
