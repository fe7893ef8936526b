//! The cases in which eventweir's answers differ from the recorded ones, with reasons. `docs/semantics.md` has the deliberate
//! differences. A listed case that passes, or differs otherwise, makes the test fail, so that the tables can only shrink.

/// A reason, and the cases that it holds for, each with the beginning of its first difference.
pub(crate) type Row = (&'static str, &'static [(&'static str, &'static str)]);

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
            ("auth-none-create", "step 0: 201 instead of 403"),
            ("auth-none-get", "step 0: 404 instead of 403"),
            ("auth-bad-create", "step 0: 201 instead of 401"),
            ("auth-bad-yaml", "step 0: 200 instead of 401"),
            ("auth-bad-protobuf", "step 0: 200 instead of 401"),
            ("auth-off-none", "step 0: 201 instead of 401"),
            ("auth-scheme-basic", "step 0: 200 instead of 403"),
            ("auth-scheme-empty", "step 0: 200 instead of 403"),
            ("transport-headers-401", "step 0: 404 instead of 401"),
        ],
    ),
    (
        "for the same reason, permissions are not checked",
        &[
            ("auth-nobody-create-group", "step 0: 201 instead of 403"),
            ("auth-nobody-get", "step 1: 200 instead of 403"),
            ("auth-nobody-list", "step 1: 200 instead of 403"),
            ("auth-nobody-watch", "step 1: 200 instead of 403"),
            ("auth-nobody-patch", "step 1: 200 instead of 403"),
            ("auth-nobody-put", "step 1: 200 instead of 403"),
            ("auth-nobody-deletecollection", "step 1: 200 instead of 403"),
            ("auth-nobody-missing", "step 1: 404 instead of 403"),
            ("auth-nobody-malformed", "step 0: 400 instead of 403"),
            ("auth-nobody-unknown-group", "step 0: 404 instead of 403"),
            ("auth-impersonate", "step 0: 201 instead of 403"),
            ("transport-headers-403", "step 0: 404 instead of 403"),
        ],
    ),
    (
        "a browser's request for a page of another origin is refused",
        &[("transport-origin", "step 0: 403 instead of 201")],
    ),
    (
        "it serves events only",
        &[
            ("auth-review", "step 0: 404 instead of 201"),
            ("auth-review-no", "step 0: 404 instead of 201"),
            ("auth-token-review", "step 0: 404 instead of 201"),
            ("auth-access-review", "step 0: 404 instead of 201"),
        ],
    ),
    (
        "the embedded store has no limit of an event's size; the limit of bodies applies",
        &[
            ("create-body-large-over-etcd", "step 0: 201 instead of 500"),
            ("create-body-large-over-etcd-request", "step 0: 201 instead of 500"),
        ],
    ),
    (
        "the embedded store does not do server-side apply (415)",
        &[
            ("auth-writer-apply-create", "step 1: 415 instead of 201"),
            ("patch-apply-create", "step 1: 415 instead of 201"),
            ("patch-apply-yaml", "step 1: 415 instead of 201"),
            ("patch-apply-conflict", "step 1: 415 instead of 409"),
            ("patch-apply-no-type", "step 1: 415 instead of 400"),
            ("patch-apply-unknown", "step 1: 415 instead of 500"),
        ],
    ),
    (
        "the embedded store has no managedFields: a write that changes only them is not a write",
        &[("cross-put-group-on-core", "step 2: metadata: resourceVersion")],
    ),
    (
        "the embedded store lists its newest version only",
        &[("list-rv-exact", "step 5: 410 instead of 200"), ("list-rv-limit", "step 5: metadata: members")],
    ),
    (
        "a watch from a version that the embedded store has not reached is 410: the version may be of an earlier start",
        &[("watch-rv-future", "step 0: one frame too much")],
    ),
    ("a resourceVersion in a create is dropped", &[("create-core-meta-rv-preset", "step 0: 201 instead of 500")]),
    (
        "the embedded store has no terminating namespaces",
        &[("create-core-ns-terminating", "step 0: 405 instead of 200")],
    ),
    (
        "/version describes eventweir",
        &[("discovery-version", "step 0: members"), ("discovery-version-anonymous", "step 0: members")],
    ),
    ("the OpenAPI document is smaller, and its hash differs", &[("discovery-openapi-v3", "step 0: \"")]),
    ("discovery has no protobuf", &[("discovery-protobuf", "step 0: 406 instead of 200")]),
    (
        "limits of requests and their 429s are eventweir's own",
        &[
            ("overload-inflight", "step 0: 201 instead of 429"),
            ("overload-fairness", "step 0: 404 instead of 201"),
            ("overload-event-rate-limit", "step 0: 201 instead of 429"),
            ("overload-event-rate-limit-patch", "step 1: 200 instead of 429"),
        ],
    ),
];

/// Further differences with correlation.
pub(crate) const CORRELATED: &[Row] = &[
    (
        "a create of a name that exists is one more occurrence",
        &[
            ("create-core-twice", "step 1: 201 instead of 409"),
            ("create-group-twice", "step 1: 201 instead of 409"),
            ("protobuf-exists", "step 1: 201 instead of 409"),
            ("transport-headers-409", "step 1: 201 instead of 409"),
        ],
    ),
    (
        "equal events count on one record",
        &[
            ("list-continue-expired", "step 6: metadata: uid"),
            ("table-ages", "step 1: metadata: uid"),
            ("watch-from-old", "step 1: metadata: uid"),
            ("watch-item", "step 1: metadata: uid"),
            ("watch-initial-events-false", "step 1: during: metadata: uid"),
            ("watch-just-compacted", "step 1: metadata: uid"),
            ("watch-kubectl-events", "step 1: during: metadata: uid"),
            ("watch-label", "step 1: during: metadata: uid"),
            ("watch-rv-none-bookmarks", "step 1: during: metadata: uid"),
            ("watch-rv-zero-bookmarks", "step 1: during: metadata: uid"),
            ("watch-table", "step 1: during: metadata: uid"),
            ("watch-too-old", "step 1: metadata: uid"),
        ],
    ),
    (
        "a record has a count in place of a series, so that events.k8s.io/v1 allows fewer changes",
        &[
            ("put-new-same", "step 1: 422 instead of 200"),
            ("patch-old-via-group-series", "step 1: members"),
            ("patch-json-series", "step 1: members"),
        ],
    ),
    (
        "a patch of a count or a series reports occurrences; its answer is the event as its client counts it",
        &[
            ("patch-strategic-noop", "step 1: metadata: members"),
            ("patch-strategic-series", "step 1: members"),
            ("patch-strategic-series-twice", "step 1: members"),
            ("patch-strategic-series-null", "step 1: members"),
            ("patch-strategic-series-delete", "step 1: members"),
            ("patch-strategic-retain-keys", "step 1: members"),
            ("patch-new-series-one", "step 1: 200 instead of 422"),
            ("patch-new-series-no-time", "step 1: 200 instead of 422"),
            ("ttl-noop-does-not-renew", "step 2: metadata: members"),
            ("ttl-patch-after", "step 2: 200 instead of 404"),
            ("watch-noop-patch", "step 1: during: metadata: members"),
        ],
    ),
    ("of such a patch, the last of duplicate members counts", &[("patch-strategic-duplicate", "step 1: warnings []")]),
];
