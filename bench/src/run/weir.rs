//! A running eventweir, and its ledger.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure};
use serde_json::Value;

use super::child::{Child, Stream, get};
use crate::load::Outcome;

/// An outbox with room for all records that the upstream has not stored yet.
pub(super) const ROOM: &str = "outbox: {maxRecords: 10000000, maxBytes: 16Gi, sourcePercent: 100}\n";

/// `eventweir serve`.
#[derive(Debug)]
pub(super) struct Weir {
    pub(super) child: Child,
    pub(super) listen: SocketAddr,
    admin: SocketAddr,
}

/// The values of a scrape, keyed by name and labels as exposed.
#[derive(Debug)]
pub(super) struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// Returns one value; 0 if there is none.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns the sum over all labels.
    pub(super) fn sum(&self, name: &str) -> f64 {
        let of_it = |key: &str| key == name || key.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
        self.0.iter().filter(|(key, _)| of_it(key)).map(|(_, value)| value).sum()
    }

    /// Counts the writes sent upstream, with any answer.
    pub(super) fn attempts(&self) -> f64 {
        let name = "eventweir_upstream_requests_total{";
        let writes =
            |key: &str| key.starts_with(name) && (key.contains("verb=\"create\"") || key.contains("verb=\"patch\""));
        self.0.iter().filter(|(key, _)| writes(key)).map(|(_, value)| value).sum()
    }

    /// Counts the writes that the upstream stored.
    pub(super) fn writes(&self) -> f64 {
        let verbs = ["create", "patch"]
            .map(|verb| format!("eventweir_upstream_requests_total{{answer=\"stored\",verb=\"{verb}\"}}"));
        verbs.iter().map(|name| self.value(name)).sum()
    }
}

impl Weir {
    /// Starts eventweir with this configuration, on free ports.
    ///
    /// # Errors
    /// When it does not listen.
    pub(super) fn start(
        binary: &Path,
        folder: &Path,
        kubeconfig: &Path,
        config: &str,
        cores: &[usize],
    ) -> anyhow::Result<Self> {
        let path = folder.join("eventweir.yaml");
        // Without a drain at the end: the ledger is checked before it.
        let ends = "listen: 127.0.0.1:0\nadminListen: 127.0.0.1:0\nshutdown: {drainTimeout: 0s}\n";
        std::fs::write(&path, format!("{ends}{config}"))?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--config").arg(&path).args(["--log-format", "json", "--upstream", "apiserver"]);
        command.arg("--kubeconfig").arg(kubeconfig);
        let (child, (listen, admin)) = Child::start(&mut command, cores, Stream::Err, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let address = |key: &str| line.get(key)?.as_str()?.parse().ok();
            (line.get("message")?.as_str()? == "listening").then(|| Some((address("listen")?, address("admin")?)))?
        })?;
        Ok(Self { child, listen, admin })
    }

    /// Reads the tap until the process ends.
    ///
    /// # Errors
    /// When eventweir cannot be reached.
    pub(super) fn read_tap(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(self.listen)?;
        stream.write_all(b"GET /eventweir/v1/tap HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        // The head of the answer arrives before any event is sent.
        let mut buffer = vec![0; 1 << 16];
        ensure!(stream.read(&mut buffer)? > 0, "the tap was closed");
        std::thread::spawn(move || while stream.read(&mut buffer).is_ok_and(|read| read > 0) {});
        Ok(())
    }

    pub(super) fn scrape(&self) -> anyhow::Result<Samples> {
        let text = get(self.admin, "/metrics")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.filter_map(|line| line.rsplit_once(' '));
        Ok(Samples(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()))
    }

    /// Checks that the ledger counts all sent events once, and that none is lost.
    ///
    /// # Errors
    /// When the ledger differs.
    pub(super) fn check(&self, outcomes: &[&Outcome]) -> anyhow::Result<Samples> {
        let samples = self.scrape()?;
        let sent: u64 = outcomes.iter().map(|outcome| outcome.sent).sum();
        let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
        let part = |name: &str| samples.sum(&format!("eventweir_ledger_{name}"));
        let [received, rejected, written] = ["received_total", "rejected_total", "written_total"].map(part);
        let [waiting, lost] = ["waiting", "lost_total"].map(part);
        let account = format!(
            "sent {sent}, not answered with success {failed}; received {received} = rejected {rejected} + written {written} + waiting {waiting} + lost {lost}"
        );
        ensure!(received == sent as f64, "not all sent events were received: {account}");
        ensure!(received == rejected + written + waiting + lost, "the ledger does not balance: {account}");
        ensure!(rejected == failed as f64 && lost == 0.0, "occurrences were refused or lost: {account}");
        if failed > 0 {
            bail!("refused: {account}");
        }
        Ok(samples)
    }
}
