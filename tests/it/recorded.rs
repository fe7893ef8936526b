//! Replays the recorded requests of client-go's two recorders over HTTP (`tests/vectors/record_sink` and
//! `tests/vectors/events_v1`).
//!
//! Every `sink` line is a request: a create is a POST, a patch a PATCH in the API group of the file's header. The
//! answers differ from those of the recorded server, so the replay does what the client would do with eventweir's
//! answers:
//! - a line whose recorded reply is `request_construction` was never sent, and is skipped;
//! - a create under a known name is skipped: it repeats one that failed there and succeeded here, or follows a patch
//!   that was answered 404 there and 200 here;
//! - a patch is repeated as recorded, even if the client would not repeat it: a repeat must count nothing.
//!
//! The lines determine the expected result. A create counts as many occurrences as its total, and a patch as many as
//! the growth of its name's line since the previous request: `count`, or `series.count`, or 1 without either. The
//! ledger must have written their sum, and the store must show it. If the recorded server loses its state, a second
//! replay starts a new program without aliases: patches are answered 404, and the client's recorded creates with the
//! running count follow.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eventweir::event::{Time, conversion};
use serde_json::Value;

use super::support::app::{Program, start};
use super::support::events::START;

/// Events do not expire, so that all counts can be added up at the end.
const CONFIG: &str = "upstream: {embedded: {ttl: 0s}}\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// One program for the whole replay.
    Kept,
    /// A new program wherever the recorded server lost its state.
    Lost,
}

/// A program, and the counts that the client has sent so far.
struct Replay {
    program: Program,
    api: String,
    told: BTreeMap<String, i64>,
    occurrences: u64,
    missing: usize,
}

impl Replay {
    async fn new(api: &str, elapsed: Duration) -> Self {
        let program = start(CONFIG).await;
        program.clock.advance(elapsed);
        Self { program, api: api.to_owned(), told: BTreeMap::new(), occurrences: 0, missing: 0 }
    }

    fn path(&self, namespace: &str) -> String {
        match self.api.as_str() {
            "v1" => format!("/api/v1/namespaces/{namespace}/events"),
            group => format!("/apis/{group}/namespaces/{namespace}/events"),
        }
    }

    /// Sends a request of the client, and checks that the answer lets the client continue.
    async fn send(&mut self, line: &Value) {
        if line["reply"]["kind"] == "request_construction" {
            return;
        }
        let client = &mut self.program.client().await;
        if line["verb"] == "create" {
            let event = &line["event"];
            let name = event["metadata"]["name"].as_str().unwrap();
            if self.told.contains_key(name) {
                return;
            }
            let path = self.path(event["metadata"]["namespace"].as_str().unwrap());
            let headers = [("Content-Type", "application/json")];
            let reply = client.send("POST", &path, &headers, event.to_string().as_bytes()).await;
            assert_eq!(reply.status, 201, "{line}: {}", reply.text());
            let line = line_of(event).unwrap_or(1);
            self.told.insert(name.to_owned(), line);
            self.occurrences += u64::try_from(line).unwrap();
            return;
        }
        let name = line["name"].as_str().unwrap();
        let path = format!("{}/{name}", self.path(line["namespace"].as_str().unwrap()));
        let headers = [("Content-Type", "application/strategic-merge-patch+json")];
        // A patch that was not computed has an empty body.
        let body = if line["patch"].is_null() { String::new() } else { line["patch"].to_string() };
        let reply = client.send("PATCH", &path, &headers, body.as_bytes()).await;
        let Some(told) = self.told.get_mut(name) else {
            assert_eq!(reply.status, 404, "{line}: {}", reply.text());
            self.missing += 1;
            return;
        };
        assert_eq!(reply.status, 200, "{line}: {}", reply.text());
        let grown = (line_of(&line["patch"]).unwrap_or(*told) - *told).max(0);
        self.occurrences += u64::try_from(grown).unwrap();
        *told += grown;
    }

    /// Checks that the ledger balances, and that the store shows all counts.
    async fn finish(self, file: &Path) -> usize {
        self.program.settle().await;
        let stored = self.program.stored().await;
        let shown: i64 = stored.iter().map(|event| i64::from(conversion::occurrences(event))).sum();
        assert_eq!(shown, i64::try_from(self.occurrences).unwrap(), "{}", file.display());
        let balance = self.program.stop().await;
        assert_eq!(balance.ledger.total_written(), self.occurrences, "{}", file.display());
        assert_eq!((balance.ledger.total_lost(), balance.ledger.total_rejected()), (0, 0), "{}", file.display());
        self.missing
    }
}

/// Returns the total that a create or patch states.
fn line_of(body: &Value) -> Option<i64> {
    body["series"]["count"].as_i64().or_else(|| body["count"].as_i64())
}

/// Returns the time since the start of the clock, in whole milliseconds like the lines.
fn elapsed(at: &str) -> Duration {
    let (seconds, millis) = at.trim_end_matches('Z').split_once('.').unwrap_or((at.trim_end_matches('Z'), ""));
    let seconds = Time::parse(&format!("{seconds}Z")).unwrap().0 - START / 1_000_000_000;
    let millis = format!("{millis:0<3}").parse().unwrap();
    Duration::from_secs(u64::try_from(seconds).unwrap()) + Duration::from_millis(millis)
}

/// Replays one file; returns the number of patches that were answered 404.
async fn play(file: &Path, memory: Memory) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().unwrap();
    let api = header["api"].as_str().unwrap();
    let mut now = elapsed(header["start"].as_str().unwrap());
    let mut replay = Replay::new(api, now).await;
    let mut missing = 0;
    for line in lines {
        let at = match line["at"].as_str() {
            Some(at) => elapsed(at),
            None => now + Duration::from_millis(line["sincePreviousMs"][1].as_u64().unwrap()),
        };
        replay.program.clock.advance(at.saturating_sub(now));
        now = now.max(at);
        match line["op"].as_str().unwrap() {
            "sink" => replay.send(&line).await,
            "server_forgets" if memory == Memory::Lost => {
                missing += replay.finish(file).await;
                replay = Replay::new(api, now).await;
            }
            // Lines other than requests need no replay: their effects are in the requests.
            "event" | "server_forgets" | "end" => {}
            other => unreachable!("no such line: {other}"),
        }
    }
    missing + replay.finish(file).await
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

async fn play_all(folder: &str, number: usize) {
    let files = files(folder);
    assert_eq!(files.len(), number);
    let mut missing = 0;
    for file in &files {
        for memory in [Memory::Kept, Memory::Lost] {
            missing += play(file, memory).await;
        }
    }
    assert!(missing > 0, "no patch met a program that does not know its name");
}

#[tokio::test]
async fn occurrences_of_the_core_v1_recorder_are_counted_once() {
    play_all("record_sink", 10).await;
}

#[tokio::test]
async fn occurrences_of_the_events_v1_recorder_are_counted_once() {
    play_all("events_v1", 11).await;
}
