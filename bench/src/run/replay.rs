//! Peak memory and speed of `eventweir replay`, with many objects and with many lines.

use std::io::{BufWriter, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::bench::Bench;
use super::limited::peak_mebibytes;
use super::table::{Figures, Target, short, verdict};

/// Number of objects in the storm of kubernetes#141022, with one event each.
const OBJECTS: u64 = 144_712;
/// Limit in MiB per configuration with this number of objects.
const CONFIGURATION: f64 = 200.0;
/// Interval between two reads of the peak.
const LOOK: Duration = Duration::from_millis(5);

/// Events of several objects in rotation, from 5,000 sources.
struct Input {
    events: u64,
    objects: u64,
    seconds: u64,
    /// Whether the events are one List, as `kubectl get events -o json` prints it. Replay holds it in memory.
    is_list: bool,
}

impl Input {
    fn write(&self, to: impl std::io::Write) -> std::io::Result<()> {
        let mut to = BufWriter::new(to);
        if self.is_list {
            writeln!(to, r#"{{"apiVersion":"v1","kind":"List","items":["#)?;
        }
        for number in 0..self.events {
            let (object, at) = (number % self.objects, number * self.seconds / self.events);
            let time = format!("2026-03-01T{:02}:{:02}:{:02}Z", 8 + at / 3600, at / 60 % 60, at % 60);
            let name = format!("checkout-7d9c5b6f4d-{object:08x}");
            let comma = if self.is_list && number + 1 < self.events { "," } else { "" };
            writeln!(
                to,
                r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"{name}.{number:016x}","namespace":"shop"}},"involvedObject":{{"kind":"Pod","namespace":"shop","name":"{name}","uid":"0d2c5f6e-7a8b-4c9d-8e1f-2a3b{object:08x}","apiVersion":"v1","resourceVersion":"48213377","fieldPath":"spec.containers{{checkout}}"}},"reason":"BackOff","message":"Back-off restarting failed container checkout in pod {name}_shop","source":{{"component":"kubelet","host":"node-{:04}.example.internal"}},"firstTimestamp":"{time}","lastTimestamp":"{time}","count":1,"type":"Warning","reportingComponent":"kubelet","reportingInstance":"node-{:04}"}}{comma}"#,
                object % 5000,
                object % 5000,
            )?;
        }
        if self.is_list {
            writeln!(to, "]}}")?;
        }
        to.flush()
    }

    /// Replays the events, and returns the peak memory in MiB.
    fn replay(&self, bench: &Bench<'_>, what: &str, config: &str) -> anyhow::Result<f64> {
        let path = bench.folder.join("replay.yaml");
        std::fs::write(&path, config)?;
        let mut command = Command::new(&bench.options.eventweir);
        command.args(["replay", "-", "--quiet", "--config"]).arg(&path);
        let begin = Instant::now();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let (pid, stdin) = (child.id(), child.stdin.take().context("its input is piped")?);
        let mut peak = 0.0_f64;
        let status = std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.write(stdin));
            let status = loop {
                // An ended process has no peak in /proc, so the last one counts.
                peak = peak_mebibytes(pid).unwrap_or(peak);
                if let Some(status) = child.try_wait()? {
                    break status;
                }
                std::thread::sleep(LOOK);
            };
            writer.join().ok().context("the writer panicked")??;
            anyhow::Ok(status)
        })?;
        ensure!(status.success(), "replay failed with {status}");
        let rate = self.events as f64 / begin.elapsed().as_secs_f64();
        println!("  {what}: at most {} MiB resident, {} events/s", short(peak), short(rate));
        Ok(peak)
    }
}

/// Replays with two configurations each: client-go's and one of eventweir.
pub(super) fn replay(bench: &Bench<'_>) -> anyhow::Result<()> {
    const UNGROUPED: &str = "correlation: {groupBurstSize: 0}\n";
    for (what, config, is_list) in
        [("defaults", "", false), ("no group budgets", UNGROUPED, false), ("defaults, a List", "", true)]
    {
        let storm = Input { events: OBJECTS, objects: OBJECTS, seconds: 300, is_list };
        let each = storm.replay(bench, &format!("{OBJECTS} objects, {what}"), config)? / 2.0;
        let target = Some(Target::AtMost(CONFIGURATION));
        verdict(&format!("MiB per configuration, {what}"), &Figures(vec![each]), target);
    }
    let lines = |events| Input { events, objects: 2000, seconds: 4 * 3600, is_list: false };
    let few = lines(300_000).replay(bench, "300,000 lines", "")?;
    let many = lines(1_000_000).replay(bench, "1,000,000 lines", "")?;
    ensure!(many <= few * 1.1, "memory grows with the lines from {few} to {many} MiB");
    Ok(())
}
