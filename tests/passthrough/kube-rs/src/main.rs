//! kube-rs as in a pod, behind eventweir in pass-through: its `Recorder`, a watcher and patches. The checks read the
//! results from the apiserver.
//!
//! A line per scenario goes to stdout; the exit code is 0 if all passed.

use std::env;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event as Record, ObjectReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Client, Config, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Time limit of polling.
const DEADLINE: Duration = Duration::from_secs(30);

struct Pod {
    namespace: String,
    client: Client,
    /// A client of the apiserver, without eventweir.
    admin: Client,
}

impl Pod {
    async fn new() -> Outcome<Self> {
        let kubeconfig = Kubeconfig::read_from(env::var("ADMIN")?)?;
        let admin = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let config = Config::incluster()?;
        let namespace = config.default_namespace.clone();
        Ok(Self { namespace, client: Client::try_from(config)?, admin: Client::try_from(admin)? })
    }

    async fn recorder(&self) -> Outcome<String> {
        self.publish(Recorder::new(self.client.clone(), reporter()), "recorded").await
    }

    /// The recipe of docs/clients.md. tests/tidy.rs compares its lines.
    async fn own_endpoint(&self) -> Outcome<String> {
        let (endpoint, reporter) = (env::var("ENDPOINT")?, reporter());
        let mut config = kube::Config::new(endpoint.parse()?);
        config.root_cert_file = Some("/var/run/secrets/eventweir/ca.crt".into());
        config.auth_info.token_file = Some("/var/run/secrets/eventweir/token".into());
        let recorder = Recorder::new(kube::Client::try_from(config)?, reporter);
        self.publish(recorder, "own-endpoint").await
    }

    /// Publishes the same event 30 times. The recorder keeps its own series, and reports it by patches.
    async fn publish(&self, recorder: Recorder, object: &str) -> Outcome<String> {
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(object.to_owned()),
            uid: Some(format!("uid-{object}")),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: "BackOff".to_owned(),
            note: Some("Back-off restarting failed container".to_owned()),
            action: "Restarting".to_owned(),
            secondary: None,
        };
        for _ in 0..30 {
            recorder.publish(&event, &pod).await?;
        }
        let records: Api<Record> = Api::namespaced(self.admin.clone(), &self.namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={object}"));
        let end = Instant::now() + DEADLINE;
        loop {
            let list = records.list(&about).await?;
            let count = |record: &Record| {
                let series = record.series.as_ref().and_then(|series| series.count);
                record.count.max(series).unwrap_or(1)
            };
            let counts: Vec<i32> = list.items.iter().map(count).collect();
            if counts == [30] {
                return Ok("30 occurrences are one record".to_owned());
            }
            if Instant::now() >= end {
                return Err(format!("the counts are {counts:?}, not [30]").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn objects(&self) -> Outcome<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut map = ConfigMap::default();
        map.metadata.name = Some("kube-rs".to_owned());
        maps.create(&PostParams::default(), &map).await?;
        let merge = r#"{"data": {"a": "1"}}"#.parse::<k8s_openapi::serde_json::Value>()?;
        maps.patch("kube-rs", &PatchParams::default(), &Patch::Merge(merge)).await?;
        map.data = Some([("b".to_owned(), "2".to_owned())].into());
        maps.patch("kube-rs", &PatchParams::apply("kube-rs"), &Patch::Apply(&map)).await?;
        let straight: Api<ConfigMap> = Api::namespaced(self.admin.clone(), &self.namespace);
        let data = straight.get("kube-rs").await?.data.unwrap_or_default();
        if data.len() != 2 {
            return Err(format!("the apiserver has {data:?}").into());
        }
        Ok("created, patched and applied".to_owned())
    }

    async fn watcher(&self) -> Outcome<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let straight: Api<ConfigMap> = Api::namespaced(self.admin.clone(), &self.namespace);
        let mut changes = pin!(watcher(maps, watcher::Config::default().fields("metadata.name=watched")));
        let mut seen = Vec::new();
        while let Some(change) = timeout(DEADLINE, changes.try_next()).await?? {
            match change {
                watcher::Event::InitDone => {
                    let mut map = ConfigMap::default();
                    map.metadata.name = Some("watched".to_owned());
                    straight.create(&PostParams::default(), &map).await?;
                }
                watcher::Event::Apply(map) => {
                    seen.push("applied");
                    straight.delete(&map.name_any(), &DeleteParams::default()).await?;
                }
                watcher::Event::Delete(_) => {
                    seen.push("deleted");
                    break;
                }
                _ => {}
            }
        }
        if seen != ["applied", "deleted"] {
            return Err(format!("the watch ended after {seen:?}").into());
        }
        Ok(seen.join(" and "))
    }
}

fn reporter() -> Reporter {
    Reporter { controller: "example.com/kube-rs".to_owned(), instance: Some("kube-rs-0".to_owned()) }
}

fn report(name: &str, outcome: Outcome<String>) -> bool {
    match &outcome {
        Ok(seen) => println!("ok {name}: {seen}"),
        Err(error) => println!("FAILED {name}: {error}"),
    }
    outcome.is_ok()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<ExitCode> {
    let pod = Pod::new().await?;
    let mut passed = report("recorder", pod.recorder().await);
    passed &= report("own-endpoint", pod.own_endpoint().await);
    passed &= report("objects", pod.objects().await);
    passed &= report("watcher", pod.watcher().await);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
