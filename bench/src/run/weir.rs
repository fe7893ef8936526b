//! A running eventweir, and its account.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::child::{Child, Says, get};
use crate::load::Outcome;

/// An outbox that has room for whatever is sent faster than the upstream takes it.
pub(super) const ROOM: &str = "outbox: {maxRecords: 10000000, maxBytes: 16Gi, sourcePercent: 100}\n";

/// `eventweir serve`.
#[derive(Debug)]
pub(super) struct Weir {
    pub(super) child: Child,
    pub(super) listen: SocketAddr,
    admin: SocketAddr,
    config: PathBuf,
}

/// The values of a scrape, by name and labels as they are written.
#[derive(Debug)]
pub(super) struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// One value; 0 where there is none.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The sum over all labels.
    pub(super) fn sum(&self, name: &str) -> f64 {
        let of_it = |key: &str| key == name || key.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
        self.0.iter().filter(|(key, _)| of_it(key)).map(|(_, value)| value).sum()
    }

    /// How many writes went upstream, whatever was answered.
    pub(super) fn attempts(&self) -> f64 {
        let name = "eventweir_upstream_requests_total{";
        let writes =
            |key: &str| key.starts_with(name) && (key.contains("verb=\"create\"") || key.contains("verb=\"patch\""));
        self.0.iter().filter(|(key, _)| writes(key)).map(|(_, value)| value).sum()
    }

    /// How many writes the upstream took.
    pub(super) fn writes(&self) -> f64 {
        let verbs = ["create", "patch"]
            .map(|verb| format!("eventweir_upstream_requests_total{{answer=\"stored\",verb=\"{verb}\"}}"));
        verbs.iter().map(|name| self.value(name)).sum()
    }
}

impl Weir {
    /// Starts it with this configuration, on free ports.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) fn start(
        binary: &Path,
        folder: &Path,
        kubeconfig: &Path,
        config: &str,
        cores: &[usize],
        workers: Option<usize>,
    ) -> anyhow::Result<Self> {
        let path = folder.join("eventweir.yaml");
        std::fs::write(&path, yaml(config))?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&path).args(["--log-format", "json", "--upstream", "apiserver"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        if let Some(workers) = workers {
            command.env("TOKIO_WORKER_THREADS", workers.to_string());
        }
        let (child, (listen, admin)) = Child::start(&mut command, cores, Says::Err, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let address = |key: &str| line.get(key)?.as_str()?.parse().ok();
            (line.get("message")?.as_str()? == "listening").then(|| Some((address("listen")?, address("admin")?)))?
        })?;
        Ok(Self { child, listen, admin, config: path })
    }

    /// Replaces the configuration's live part.
    ///
    /// # Errors
    /// When it is refused.
    pub(super) fn reload(&self, config: &str) -> anyhow::Result<()> {
        let hash = || -> anyhow::Result<String> {
            let text = get(self.admin, "/metrics")?;
            let line = text.lines().find(|line| line.starts_with("eventweir_config_info{"));
            Ok(line.context("the configuration's hash")?.to_owned())
        };
        let before = hash()?;
        std::fs::write(&self.config, yaml(config))?;
        self.child.signal(Signal::HUP)?;
        let begin = std::time::Instant::now();
        while hash()? == before {
            ensure!(begin.elapsed().as_secs() < 10, "the configuration was not taken over");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(())
    }

    pub(super) fn scrape(&self) -> anyhow::Result<Samples> {
        let text = get(self.admin, "/metrics")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.rsplit_once(' '));
        Ok(Samples(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()))
    }

    /// Whether everything that was sent is in the account, once, and nothing of it is lost.
    ///
    /// # Errors
    /// Says what is missing.
    pub(super) fn check(&self, outcomes: &[&Outcome]) -> anyhow::Result<Samples> {
        let samples = self.scrape()?;
        let sent: u64 = outcomes.iter().map(|outcome| outcome.sent).sum();
        let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
        let part = |name: &str| samples.sum(&format!("eventweir_ledger_{name}"));
        let [received, rejected, written] = ["received_total", "rejected_total", "written_total"].map(part);
        let [waiting, lost] = ["waiting", "lost_total"].map(part);
        let account = format!(
            "sent {sent}, not answered as wished {failed}; received {received} = rejected {rejected} + written {written} + waiting {waiting} + lost {lost}"
        );
        ensure!(received == sent as f64, "not everything that was sent was received: {account}");
        ensure!(received == rejected + written + waiting + lost, "the account does not balance: {account}");
        ensure!(rejected == failed as f64 && lost == 0.0, "occurrences were refused or lost: {account}");
        if failed > 0 {
            bail!("refused: {account}");
        }
        Ok(samples)
    }
}

/// What every measurement has: free ports, and an end without a drain, because the account has been checked before.
fn yaml(config: &str) -> String {
    format!("listen: 127.0.0.1:0\nadminListen: 127.0.0.1:0\nshutdown: {{drainTimeout: 0s}}\n{config}")
}
