//! PATCH of a real apiserver: a client's own patch, passed through as it came.

use http::HeaderMap;
use http::header::WARNING;

use super::{Apiserver, BODY_BYTES_MAX, request};
use crate::event::json;
use crate::event::patching::Patched;
use crate::status::Status;
use crate::upstream::answer::status_of;
use crate::upstream::{ClientPatch, PatchOptions, Verb};

/// LIMIT: warnings of one answer that are passed on, as many as its decoder tells of; the rest is left out.
const WARNINGS_MAX: usize = 100;

impl Apiserver {
    /// Applies a client's own patch to one event, in the API group that it came by.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &PatchOptions,
    ) -> Result<Patched, Status> {
        let decode = |body: &[u8]| json::decode_event(options.writer.group, body);
        let request = request::patch(namespace, name, patch, options);
        let (head, event) =
            self.exchange_whole(Verb::Patch, request, BODY_BYTES_MAX, decode).await.map_err(status_of)?;
        Ok(Patched { event, warnings: warnings(&head.headers) })
    }
}

/// The texts of the warnings: what stands in quotes after code and agent.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter().take(WARNINGS_MAX).filter_map(|value| value.to_str().ok());
    values.filter_map(warning).collect()
}

fn warning(value: &str) -> Option<String> {
    let (_, quoted) = value.split_once('"')?;
    let mut letters = quoted.chars();
    let mut text = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::event::ApiGroup;
    use crate::event::json::FieldValidation;
    use crate::event::patching::PatchType;
    use crate::upstream::apiserver::Settings;
    use crate::upstream::{Metrics, Writer};

    #[tokio::test]
    async fn a_patch_is_passed_through_as_it_came_and_its_warnings_come_back() {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
            let (parts, body) = request.into_parts();
            assert_eq!(
                format!("{} {}", parts.method, parts.uri),
                "PATCH /apis/events.k8s.io/v1/namespaces/shop/events/a%20b?fieldManager=k%2F1&fieldValidation=Strict&dryRun=All"
            );
            assert_eq!(parts.headers["content-type"], "application/json-patch+json");
            assert_eq!(body.collect_bytes().await.unwrap(), " []\n");
            let response = Response::builder().header("Warning", r#"299 - "unknown field \"f\\\"""#);
            let body = r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"a b"},"note":"n"}"#;
            Ok::<_, std::io::Error>(response.header("Warning", "nonsense").body(body.to_owned()).unwrap())
        });
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let apiserver = Apiserver::behind(service, &Settings::default(), Clock::simulated(0), metrics);
        let patch = ClientPatch { patch_type: PatchType::Json, body: " []\n".into() };
        let validation = FieldValidation::Strict;
        let writer = Writer { manager: "k/1".into(), group: ApiGroup::Events };
        let options = PatchOptions { writer, dry_run: true, validation };
        let patched = apiserver.patch("shop", "a b", &patch, &options).await.unwrap();
        assert_eq!((patched.event.message.as_str(), patched.warnings), ("n", vec![r#"unknown field "f\""#.to_owned()]));
    }
}
