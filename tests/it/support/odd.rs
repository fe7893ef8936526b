//! A fake API server with an admission webhook, which changes or refuses what is written.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::sync::Arc;

use eventweir::event::json;
use eventweir::event::{ApiGroup, Event};
use eventweir::status::Status;
use eventweir::upstream::{Apiserver, Metrics, Upstream, apiserver};
use http::{Method, Request, Response};
use kube::client::Body;
use prometheus::Registry;

use super::fake::FakeApiserver;

/// Changes an event that is created or patched, or refuses it.
pub(crate) type Webhook = Arc<dyn Fn(&Method, &mut Event) -> Result<(), Status> + Send + Sync>;

/// Returns the API server of `fake` with this webhook as upstream.
pub(crate) fn behind(fake: &FakeApiserver, webhook: Webhook) -> Upstream {
    let (fake, clock) = (fake.clone(), fake.clock());
    let service = tower::service_fn(move |request| answer(fake.clone(), Arc::clone(&webhook), request));
    let metrics = Metrics::new(&Registry::new());
    Upstream::Apiserver(Apiserver::behind(service, &apiserver::Settings::default(), clock, metrics))
}

async fn answer(fake: FakeApiserver, webhook: Webhook, request: Request<Body>) -> io::Result<Response<String>> {
    let (parts, body) = request.into_parts();
    let method = parts.method.clone();
    let mut body = body.collect_bytes().await.unwrap();
    let stored = || {
        let name = parts.uri.path().rsplit('/').next().unwrap();
        fake.all().into_iter().find(|event| event.metadata.name == name)
    };
    let verdict = match method {
        Method::POST => {
            let mut event = json::decode_event(ApiGroup::Core, &body).unwrap();
            let verdict = webhook(&method, &mut event);
            body = encoded(&event).into();
            verdict
        }
        Method::PATCH => stored().map_or(Ok(()), |mut event| webhook(&method, &mut event)),
        _ => Ok(()),
    };
    if let Err(status) = verdict {
        let response = Response::builder().status(status.code);
        return Ok(response.body(String::from_utf8(status.to_json()).unwrap()).unwrap());
    }
    let mut answer = fake.clone().handle(Request::from_parts(parts.clone(), body.to_vec().into())).await?;
    // Also if the answer gets lost.
    if let Some(event) = stored().filter(|_| method == Method::PATCH) {
        fake.change(&event, |event| webhook(&method, event).unwrap());
        if answer.status().is_success() {
            *answer.body_mut() = String::from_utf8(encoded(&stored().unwrap())).unwrap();
        }
    }
    Ok(answer)
}

fn encoded(event: &Event) -> Vec<u8> {
    let mut body = Vec::new();
    json::write_json(ApiGroup::Core, event, &mut body);
    body
}
