//! The upstream's answer to a watch: any bytes give the same frames however they are split. Only the last may be an
//! error.
#![no_main]

use bytes::Bytes;
use eventweir::clock::Clock;
use eventweir::upstream::apiserver::Settings;
use eventweir::upstream::{Apiserver, Metrics, Step, Upstream, WatchEvent, WatchOptions};
use futures_util::stream;
use http_body_util::StreamBody;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (chunk, body) = input;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let whole = runtime.block_on(frames(body, body.len().max(1)));
    let cut = runtime.block_on(frames(body, usize::from(chunk).max(1)));
    assert_eq!(whole, cut);
    let errors = whole.iter().position(|event| matches!(event, WatchEvent::Error(_)));
    assert!(errors.is_none_or(|at| at + 1 == whole.len()), "a frame follows an error");
});

async fn frames(body: &[u8], chunk: usize) -> Vec<WatchEvent> {
    let chunks: Vec<Bytes> = body.chunks(chunk).map(Bytes::copy_from_slice).collect();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let chunks = chunks.clone().into_iter();
        let frames = chunks.map(|chunk| Ok::<_, std::convert::Infallible>(http_body::Frame::data(chunk)));
        let body = StreamBody::new(stream::iter(frames));
        async { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    });
    let metrics = Metrics::new(&prometheus::Registry::new());
    let apiserver = Apiserver::behind(service, &Settings::default(), Clock::simulated(0), metrics);
    let upstream = Upstream::Apiserver(apiserver);
    let mut watch = upstream.watch(None, WatchOptions::default()).await.expect("the watch is open");
    let mut events = Vec::new();
    while let Some(step) = watch.next().await {
        if let Step::Events(more) = step {
            events.extend(more);
        }
    }
    events
}
