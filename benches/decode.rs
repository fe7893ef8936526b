//! Time to decode an event's body, and to write the answer and a patch. For comparison, `serde_json` does a part of the
//! work. It decodes into a borrowed struct (without owned strings, strict faults, and checks of kind and version), and
//! into a tree.
#![expect(clippy::unwrap_used, reason = "a benchmark: criterion's macros, and valid input")]

use std::borrow::Cow;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use eventweir::correlator::Patch;
use eventweir::event::ApiGroup;
use eventweir::event::json::{self, FieldValidation};
use eventweir::upstream::patch_document;
use serde::Deserialize;

/// A kubelet's event as client-go sends it: 780 bytes.
const BODY: &str = include_str!("event.json");

/// The fields of nearly every event, borrowed from the body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only read by the decoder under test")]
struct Borrowed<'a> {
    kind: &'a str,
    api_version: &'a str,
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    involved_object: Reference<'a>,
    reason: &'a str,
    #[serde(borrow)]
    message: Cow<'a, str>,
    #[serde(borrow)]
    source: Source<'a>,
    first_timestamp: &'a str,
    last_timestamp: &'a str,
    count: i32,
    #[serde(rename = "type")]
    event_type: &'a str,
    event_time: Option<&'a str>,
    reporting_component: &'a str,
    reporting_instance: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only read by the decoder under test")]
struct Meta<'a> {
    name: &'a str,
    namespace: &'a str,
    creation_timestamp: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only read by the decoder under test")]
struct Reference<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    api_version: &'a str,
    resource_version: &'a str,
    field_path: &'a str,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only read by the decoder under test")]
struct Source<'a> {
    component: &'a str,
    host: &'a str,
}

fn decode(c: &mut Criterion) {
    let body = BODY.trim_end().as_bytes();
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Bytes(body.len() as u64));
    for (name, validation) in [("event", FieldValidation::Ignore), ("event, strict", FieldValidation::Strict)] {
        group.bench_function(name, |b| b.iter(|| json::decode(ApiGroup::Core, black_box(body), validation).unwrap()));
    }
    group.bench_function("serde_json borrowed", |b| {
        b.iter(|| serde_json::from_slice::<Borrowed<'_>>(black_box(body)).unwrap());
    });
    group.bench_function("serde_json value", |b| {
        b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(body)).unwrap());
    });
    group.finish();
}

fn write(c: &mut Criterion) {
    let event = json::decode_event(ApiGroup::Core, BODY.as_bytes()).unwrap();
    let value: serde_json::Value = serde_json::from_str(BODY).unwrap();
    let mut group = c.benchmark_group("write");
    let mut out = Vec::with_capacity(2048);
    group.bench_function("event", |b| {
        b.iter(|| {
            out.clear();
            json::write_json(ApiGroup::Core, black_box(&event), &mut out);
            out.len()
        });
    });
    group.bench_function("serde_json value", |b| {
        b.iter(|| {
            out.clear();
            serde_json::to_writer(&mut out, black_box(&value)).unwrap();
            out.len()
        });
    });
    let patch = Patch::of(&event);
    group.bench_function("client-go patch", |b| b.iter(|| patch_document(black_box(&patch), None, ApiGroup::Core)));
    group.finish();
}

criterion_group!(benches, decode, write);
criterion_main!(benches);
