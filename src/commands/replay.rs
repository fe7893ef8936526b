//! `replay`: compares client-go's correlator and one or two configurations on recorded events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};
use std::num::NonZeroUsize;
use std::path::Path;

use super::Error;
use super::report::{Compared, finish, plural, thousands};
use crate::cli::Replay;
use crate::clock::{Clock, Mono};
use crate::config::{self, Config, Files, Overrides};
use crate::event::{Event, MicroTime};
use crate::explain::clean;
use crate::replay::{Bad, Comparison, Format, Recording, Report, Until, client_go};
use crate::upstream;

/// LIMIT: points in time over which the occurrences of one record are spread; one may get several occurrences.
const STEPS: u32 = 10_000;

/// Events between two readings of the clock.
const PROGRESS: u64 = 1024;

/// Runs `replay FILE`.
///
/// # Errors
/// When a configuration is wrong, the input cannot be read or contains a document that is no event, or the ledger does
/// not balance.
pub fn replay(replay: &Replay) -> Result<(), Error> {
    let mut compared = match &replay.against {
        Some(against) => compare(replay.report.config.as_deref(), Some(against))?,
        None => compare_and_try(replay.report.config.as_deref())?,
    };
    let (name, input) = open(&replay.file)?;
    let recording = Recording::new(input).map_err(|source| reading(&name, source))?;
    let is_sorted = replay.sort_by_time || recording.format == Format::Documents;
    let how = How { is_sorted, skip_bad: replay.skip_bad, namespace: None };
    let without = read(&mut compared, recording, &name, &how, Progress::new(replay.report.quiet))?;
    if without > 0 && compared.comparison.sent() == 0 {
        let advice = "record events at audit level Request";
        return Err(Error::Input(format!("{name} has no request bodies of events: {advice}")));
    }
    if let (Until::At(until), Some((_, newest))) = (replay.until, compared.comparison.span)
        && until < newest
    {
        let newest = MicroTime::from_unix_nanos(newest);
        return Err(Error::Input(format!("--until is before the newest event, which is of {newest}")));
    }
    compared.until = compared.comparison.run_on(replay.until);
    finish(&compared, &replay.report)
}

/// How a recording is read.
pub(super) struct How<'h> {
    /// Whether to sort the events by time.
    pub(super) is_sorted: bool,
    /// Whether to skip documents that are no events.
    pub(super) skip_bad: bool,
    /// The only namespace whose events count; `None` for all.
    pub(super) namespace: Option<&'h str>,
}

pub(super) fn reading(name: &str, source: std::io::Error) -> Error {
    Error::Io { what: format!("reading {name}"), source }
}

/// Reports the events of a recording. Returns the number of an audit log's requests without information about their
/// event.
pub(super) fn read(
    compared: &mut Compared,
    mut recording: Recording<'_>,
    name: &str,
    how: &How<'_>,
    mut progress: Progress,
) -> Result<u64, Error> {
    let (mut unsorted, mut untimed) = (Vec::new(), 0);
    while let Some(found) = recording.next() {
        match found.map_err(|source| reading(name, source))? {
            Ok(report) if how.namespace.is_some_and(|only| report.event.metadata.namespace != only) => {}
            Ok(Report { event, at: None, .. }) if how.is_sorted || compared.comparison.span.is_none() => {
                if !how.skip_bad {
                    return Err(Error::Input(without_time(name, &event)));
                }
                compared.bad += 1;
            }
            Ok(report) if how.is_sorted => unsorted.push(Some(Box::new(report))),
            Ok(Report { event, occurrences, at: None, .. }) => {
                untimed += 1;
                compared.comparison.report(event, occurrences, None);
            }
            Ok(Report { event, occurrences, at, .. }) => compared.comparison.report(event, occurrences, at),
            Err(Bad { .. }) if how.skip_bad => compared.bad += 1,
            Err(bad) => {
                return Err(Error::Input(format!("{name} {bad}\n  --skip-bad skips and counts such documents")));
            }
        }
        progress.step(recording.bytes);
    }
    spread(&mut compared.comparison, unsorted);
    progress.end();
    if untimed > 0 {
        let number = plural(untimed, "event");
        compared.notes.push(format!("{number} without a time replayed at the time of the event before."));
    }
    let without = recording.without_body;
    if without > 0 {
        compared.notes.push(format!(
            "{} of the audit log skipped: they have no body, or patch a record that is older than the log.",
            plural(without, "request")
        ));
    }
    Ok(without)
}

fn without_time(name: &str, event: &Event) -> String {
    let object = &event.involved_object;
    let event = clean(&format!("{} of {}/{}", event.reason, object.kind, object.name), 300);
    format!(
        "{name} has an event without a time, and none with one before it: {event}\n  expected lastTimestamp, eventTime, \
         firstTimestamp or metadata.creationTimestamp; --skip-bad skips and counts such events"
    )
}

/// Opens a file, or standard input for `-`, and returns its name.
fn open(path: &Path) -> Result<(String, Box<dyn Read>), Error> {
    if path.as_os_str() == "-" {
        return Ok(("stdin".to_owned(), Box::new(std::io::stdin())));
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| Error::Input(format!("{name}: {error}")))?;
    Ok((name, Box::new(file)))
}

/// Calls `see` for each event of a file in any format, which must have some.
pub(super) fn each(path: &Path, mut see: impl FnMut(Event)) -> Result<(), Error> {
    let (name, input) = open(path)?;
    let mut is_empty = true;
    for found in Recording::new(input).map_err(|source| reading(&name, source))? {
        match found.map_err(|source| reading(&name, source))? {
            Ok(report) => see(report.event),
            Err(bad) => return Err(Error::Input(format!("{name} {bad}"))),
        }
        is_empty = false;
    }
    if is_empty { Err(Error::Input(format!("{name} has no events"))) } else { Ok(()) }
}

/// Compares client-go with one configuration, and tries each rule that may help.
pub(super) fn compare_and_try(config: Option<&Path>) -> Result<Compared, Error> {
    let mut compared = compare(config, None)?;
    let Config { policy, shard, upstream, ingest, .. } = load(config)?;
    compared.comparison.try_rules(&policy, &shard, upstream.store.ttl, ingest.repair.map(NonZeroUsize::get));
    Ok(compared)
}

fn load(config: Option<&Path>) -> Result<Config, Error> {
    let mut config = config::load(config, &Overrides::default(), Files::Foreign)?;
    // Explanations are not used here.
    config.shard.explain.enabled = false;
    Ok(config)
}

/// Compares client-go with one configuration or two.
pub(super) fn compare(config: Option<&Path>, against: Option<&Path>) -> Result<Compared, Error> {
    let mut comparison = Comparison::default();
    let (policy, shard) = client_go();
    comparison.add(policy, shard, upstream::store::Settings::default().ttl, None);
    let (mut names, mut configs) = (vec!["client-go".to_owned()], vec![None]);
    for path in [Some(config), against.map(Some)].into_iter().flatten() {
        let Config { policy, shard, upstream, ingest, .. } = load(path)?;
        comparison.add(policy, shard, upstream.store.ttl, ingest.repair.map(NonZeroUsize::get));
        let stem = path.and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy().into_owned());
        names.push(stem.filter(|_| against.is_some()).unwrap_or_else(|| "eventweir".to_owned()));
        configs.push(path.map(|path| path.display().to_string()));
    }
    Ok(Compared { comparison, names, configs, until: 0, bad: 0, notes: Vec::new() })
}

/// Reports events in order of time, with the occurrences of each spread evenly from its first to its newest.
fn spread(comparison: &mut Comparison, mut reports: Vec<Option<Box<Report>>>) {
    let mut next: BinaryHeap<Reverse<(i64, usize, u32)>> = BinaryHeap::new();
    let begin = |report: &Report| report.from.filter(|_| report.occurrences > 1).or(report.at).unwrap_or_default();
    next.extend(reports.iter().flatten().enumerate().map(|(index, report)| Reverse((begin(report), index, 0))));
    // Frees each event at its last step, because the simulated proxies grow meanwhile.
    while let Some(Reverse((at, index, step))) = next.pop() {
        let Some(report) = reports.get_mut(index).and_then(Option::take) else { continue };
        let steps = report.occurrences.clamp(1, STEPS);
        // The first steps get the remainder.
        let number = (report.occurrences / steps + u32::from(step < report.occurrences % steps)).max(1);
        if step + 1 == steps {
            comparison.report(report.event, number, Some(at));
            continue;
        }
        comparison.report(report.event.clone(), number, Some(at));
        let at = report.from.zip(report.at).map_or(at, |(from, newest)| {
            let whole = (i128::from(newest) - i128::from(from)).max(0);
            let part = whole * i128::from(step + 1) / i128::from((steps - 1).max(1));
            i64::try_from(i128::from(from) + part).unwrap_or(newest)
        });
        next.push(Reverse((at, index, step + 1)));
        reports[index] = Some(report);
    }
}

/// A progress line, if standard error is a terminal.
pub(super) struct Progress {
    clock: Option<Clock>,
    events: u64,
    shown: Option<Mono>,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        let is_shown = !quiet && std::io::stderr().is_terminal();
        Self { clock: is_shown.then(Clock::system), events: 0, shown: None }
    }

    fn step(&mut self, bytes: u64) {
        self.events += 1;
        let Some(clock) = self.clock.as_ref().filter(|_| self.events.is_multiple_of(PROGRESS)) else { return };
        let now = clock.now().mono;
        if self.shown.is_none_or(|shown| now.nanos_since(shown) >= 500_000_000) {
            self.shown = Some(now);
            let rate = u128::from(self.events) * 1_000_000_000 / u128::try_from(now.0.max(1)).unwrap_or(1);
            let (events, rate) = (thousands(self.events), thousands(u64::try_from(rate).unwrap_or(0)));
            self.show(&format!("  {events} events   {rate}/s   {} MB read", bytes >> 20));
        }
    }

    /// Replaces the line.
    pub(super) fn show(&self, line: &str) {
        if self.clock.is_some() {
            drop(write!(std::io::stderr(), "\r{line}\x1b[K"));
        }
    }

    pub(super) fn end(&self) {
        self.show("");
    }
}
