//! Cost of a request with a cached caller and permission: the guard in front of each handler.
#![expect(clippy::unwrap_used, reason = "a benchmark: criterion's macros, and valid input")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use eventweir::access::{Access, AccessReview, Ask, Attributes, Metrics, Purpose, Review, Settings, TokenReview};
use eventweir::clock::Clock;
use eventweir::correlator::KeySecret;
use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::json;

/// The length of a service account's token.
const TOKEN_BYTES: usize = 1000;

fn access() -> Access {
    let ask: Ask = Arc::new(|review, _| {
        let extra = json!({ "authentication.kubernetes.io/pod-name": ["controller-7d4b9c-x2x9z"],
            "authentication.kubernetes.io/pod-uid": ["00000000-0000-4000-8000-000000000001"] });
        let groups = ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"];
        let user = json!({ "username": "system:serviceaccount:shop:controller", "uid": "u", "groups": groups, "extra": extra });
        let status = match review {
            Review::Token => json!({ "authenticated": true, "user": user }),
            Review::Access => json!({ "allowed": true }),
        };
        Box::pin(std::future::ready(Ok(json!({ "status": status }))))
    });
    let settings = Settings {
        tokens: TokenReview { is_on: true, ..TokenReview::default() },
        reviews: AccessReview { is_on: true, ..AccessReview::default() },
        ..Settings::default()
    };
    let metrics = Metrics::new(&prometheus::Registry::new());
    Access::new(settings, ask, Clock::manual(0), KeySecret(7, 9), metrics)
}

fn cached(criterion: &mut Criterion) {
    let access = access();
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {}", "x".repeat(TOKEN_BYTES)).parse().unwrap());
    let attributes = Attributes::to_create("", "shop");
    // The first of each is asked by a task, and is cached then.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let caller = runtime.block_on(access.identify(None, &headers, Purpose::Report)).unwrap();
    runtime.block_on(access.authorize(&caller, &attributes)).unwrap();
    criterion.bench_function("access/token", |bencher| {
        bencher.iter(|| access.identify(None, black_box(&headers), Purpose::Report).now_or_never().unwrap().unwrap());
    });
    criterion.bench_function("access/permission", |bencher| {
        bencher.iter(|| access.authorize(black_box(&caller), &attributes).now_or_never().unwrap().unwrap());
    });
    criterion.bench_function("access/place", |bencher| {
        bencher.iter(|| access.turn(black_box(&caller)).now_or_never().unwrap().unwrap());
    });
}

criterion_group!(benches, cached);
criterion_main!(benches);
