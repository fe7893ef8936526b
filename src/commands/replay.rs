//! `replay`: a file of events through one configuration, or two side by side.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{Error, print, table};
use crate::cli::{Output, Replay};
use crate::config::{self, Config, Overrides};
use crate::correlator::{CountOverflow, KeyEncoding, Policy, Settings, Suppression};
use crate::event::{Event, core_v1};
use crate::outbox;
use crate::replay::{Fate, Line, Simulation};
use crate::shard;

/// Lines between two words about progress.
const PROGRESS: u64 = 50_000;
/// LIMIT: bytes of a line; an event has no more than a request's body.
const LINE_BYTES: u64 = 3 << 20;

/// One configuration at work.
struct Column {
    name: String,
    simulation: Simulation,
}

/// `replay FILE`
///
/// # Errors
/// When a configuration is wrong, or the file cannot be read or holds something that is no event.
pub fn replay(replay: &Replay) -> Result<(), Error> {
    let mut columns = vec![column(replay.config.as_deref())?];
    if replay.client_go {
        columns.push(client_go());
    } else if let Some(against) = &replay.against {
        columns.push(column(Some(against))?);
    }
    read(&replay.file, &mut columns)?;
    print(&match replay.output {
        Output::Text => text(&columns),
        Output::Json => json_document(&columns),
    })
}

fn column(path: Option<&Path>) -> Result<Column, Error> {
    let config = config::load(path, &Overrides::default())?;
    let name = path.map_or_else(|| "defaults".to_owned(), |path| path.display().to_string());
    let Config { policy, shard, upstream, .. } = config;
    Ok(Column { name, simulation: Simulation::new(policy, shard, upstream.store) })
}

/// client-go's own correlator: nothing deferred, nothing coalesced.
fn client_go() -> Column {
    let (policy, shard) = client_go_settings();
    let store = crate::upstream::store::Settings::default();
    Column { name: "client-go".to_owned(), simulation: Simulation::new(policy, shard, store) }
}

/// What makes a proxy do as client-go does.
pub(super) fn client_go_settings() -> (Policy, shard::Settings) {
    let settings = Settings {
        suppression: Suppression::Drop,
        key_encoding: KeyEncoding::Concatenated,
        count_overflow: CountOverflow::Wrap,
        ..Settings::default()
    };
    let outbox = outbox::Settings { coalesce_interval: Duration::ZERO, ..outbox::Settings::default() };
    (Policy { base: settings.into(), rules: Vec::new() }, shard::Settings { outbox, ..shard::Settings::default() })
}

fn read(path: &Path, columns: &mut [Column]) -> Result<(), Error> {
    let io = |source| Error::Io { what: format!("reading {}", path.display()), source };
    let input: Box<dyn Read> =
        if path.as_os_str() == "-" { Box::new(std::io::stdin()) } else { Box::new(File::open(path).map_err(io)?) };
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let length = input.by_ref().take(LINE_BYTES + 1).read_until(b'\n', &mut line).map_err(io)?;
        if length == 0 {
            break;
        }
        number += 1;
        let wrong = |message: String| Error::Events { file: path.display().to_string(), line: number, message };
        if line.len() as u64 > LINE_BYTES {
            return Err(wrong(format!("longer than {LINE_BYTES} bytes")));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let event = core_v1::from_json(&line).map_err(|error| wrong(error.status.message))?;
        report(columns, event);
        if number.is_multiple_of(PROGRESS) {
            progress(number);
        }
    }
    if number >= PROGRESS {
        progress(number);
    }
    Ok(())
}

fn report(columns: &mut [Column], event: Event) {
    if let Some((last, others)) = columns.split_last_mut() {
        for column in others {
            // Each configuration has its own copy to fold.
            column.simulation.report(event.clone());
        }
        last.simulation.report(event);
    }
}

/// A word about progress, to a person who waits.
fn progress(lines: u64) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        drop(writeln!(stderr, "{lines} events read"));
    }
}

fn cells(fate: &Fate) -> [u64; 6] {
    [fate.written, fate.folded, fate.waiting, fate.lost, fate.deferred, fate.writes]
}

const HEADINGS: [&str; 6] = ["written", "folded", "waiting", "lost", "deferred", "writes"];

fn text(columns: &[Column]) -> String {
    let fates: Vec<_> = columns.iter().map(|column| column.simulation.fates()).collect();
    let lines: BTreeSet<&Line> = fates.iter().flat_map(|fates| fates.keys()).collect();
    let mut headings = vec!["namespace", "object", "reason", "sent"];
    for _ in columns {
        headings.extend(HEADINGS);
    }
    let mut rows = Vec::new();
    let mut totals = vec![Fate::default(); columns.len()];
    for line in lines {
        let of_line: Vec<Fate> = fates.iter().map(|fates| fates.get(line).copied().unwrap_or_default()).collect();
        let sent = of_line.iter().map(|fate| fate.sent).max().unwrap_or_default();
        let mut row =
            vec![line.namespace.to_string(), line.object.to_string(), line.reason.to_string(), sent.to_string()];
        for (fate, total) in of_line.iter().zip(&mut totals) {
            row.extend(cells(fate).map(|number| number.to_string()));
            *total = total.plus(*fate);
        }
        rows.push(row);
    }
    let sent = totals.iter().map(|fate| fate.sent).max().unwrap_or_default();
    let mut row = vec!["all".to_owned(), String::new(), String::new(), sent.to_string()];
    row.extend(totals.iter().flat_map(cells).map(|number| number.to_string()));
    rows.push(row);
    let mut text = String::new();
    for (index, column) in columns.iter().enumerate() {
        text.push_str(&format!(
            "configuration {}: {} (columns {} to {})\n",
            index + 1,
            column.name,
            5 + index * 6,
            10 + index * 6
        ));
    }
    text.push_str(
        "written: shown in a record of its own object and reason; folded: shown in a digest; deferred: had to wait\n\n",
    );
    text.push_str(&table::render(&headings, 3, &rows));
    let late = out_of_order(columns);
    if late > 0 {
        text.push_str(&format!(
            "\n{late} of {sent} events are older than one before them, and were taken as happening with that one: sort the file by time\n"
        ));
    }
    text
}

/// Every column has seen the same events.
fn out_of_order(columns: &[Column]) -> u64 {
    columns.first().map_or(0, |column| column.simulation.out_of_order())
}

fn json_document(columns: &[Column]) -> String {
    let configurations: Vec<_> = columns
        .iter()
        .map(|column| {
            let fates = column.simulation.fates();
            let lines: Vec<_> = fates.iter().map(|(line, fate)| line_json(line, fate)).collect();
            json!({ "configuration": column.name, "lines": lines })
        })
        .collect();
    let mut document = json!({ "configurations": configurations, "outOfOrder": out_of_order(columns) }).to_string();
    document.push('\n');
    document
}

fn line_json(line: &Line, fate: &Fate) -> serde_json::Value {
    json!({
        "namespace": line.namespace.as_str(),
        "object": line.object.as_str(),
        "reason": line.reason.as_str(),
        "sent": fate.sent,
        "written": fate.written,
        "folded": fate.folded,
        "waiting": fate.waiting,
        "lost": fate.lost,
        "deferred": fate.deferred,
        "writes": fate.writes,
    })
}
