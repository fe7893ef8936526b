//! `observe`: compares client-go's correlator and a configuration on the events that a cluster stores. Writes nothing
//! there.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt as _};
use prometheus::Registry;

use super::replay::{How, Progress, compare_and_try, read, reading};
use super::report::{Compared, finish, length, plural};
use super::{Error, end, printable, runtime};
use crate::app;
use crate::cli::Observe;
use crate::clock::Clock;
use crate::event::{ApiGroup, Event, Time, json};
use crate::replay::{Comparison, Recording, Seen, Until};
use crate::upstream::apiserver::{self, News};
use crate::upstream::{self, Apiserver};

/// Time between two updates of the progress line.
const TICK: Duration = Duration::from_millis(500);

/// Interval in which `--audit` looks for a new file of the log.
const LOOK: Duration = Duration::from_secs(1);

/// LIMIT: files of a log that is rotated, which are kept open to be read at the end; later ones are left out.
const FILES: usize = 100;

/// Runs `observe`.
///
/// # Errors
/// When the configuration is wrong or the cluster cannot be read.
pub fn observe(observe: &Observe) -> Result<(), Error> {
    let mut compared = compare_and_try(observe.report.config.as_deref())?;
    // Is kept to the end, because it also ends the program at a second Ctrl-C.
    let runtime = runtime()?;
    if let Some(audit) = &observe.audit {
        let mut log = AuditLog::open(audit)?;
        announce(observe);
        runtime.block_on(log.follow_until(end(observe.time)));
        log.read(observe, &mut compared)?;
        compared.until = compared.comparison.run_on(Until::Settled);
        return finish(&compared, &observe.report);
    }
    runtime.block_on(watch(observe, &mut compared))?;
    compared.until = compared.comparison.run_on(Until::Settled);
    compared.notes.push(
        "Observed after the clients' own limits: events that client-go did not write are missing. An audit log at level \
         Request has each request; replay reads it."
            .to_owned(),
    );
    finish(&compared, &observe.report)
}

/// An audit log from now on. It is read once, at the end, because its requests carry their times.
struct AuditLog<'p> {
    path: &'p Path,
    /// Bytes of the first file that were there before.
    begin: u64,
    /// The files that have had the path, the oldest first. The API server renames a full one and begins another.
    // LIMIT: `FILES`.
    files: Vec<File>,
}

impl<'p> AuditLog<'p> {
    fn open(path: &'p Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|error| Error::Input(format!("{}: {error}", path.display())))?;
        let begin = file.metadata().map_err(|source| reading(&path.display().to_string(), source))?.len();
        Ok(Self { path, begin, files: vec![file] })
    }

    async fn follow_until(&mut self, end: impl Future<Output = ()>) {
        let (mut end, mut ticks) = (pin!(end), tokio::time::interval(LOOK));
        loop {
            tokio::select! {
                () = &mut end => break,
                _ = ticks.tick() => self.look(),
            }
        }
        self.look();
    }

    /// Opens the file that the path names now, if it is another one.
    fn look(&mut self) {
        let of = |file: &File| file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        // For a moment there may be no file.
        let Ok(file) = File::open(self.path) else { return };
        if self.files.len() < FILES && self.files.last().is_some_and(|newest| of(newest) != of(&file)) {
            self.files.push(file);
        }
    }

    /// Reports the requests that were appended.
    fn read(mut self, observe: &Observe, compared: &mut Compared) -> Result<(), Error> {
        let name = self.path.display().to_string();
        let io = |source| reading(&name, source);
        if let Some(first) = self.files.first_mut() {
            // A file that is shorter than before was copied and cut off.
            let begin = if first.metadata().map_err(io)?.len() < self.begin { 0 } else { self.begin };
            first.seek(SeekFrom::Start(begin)).map_err(io)?;
        }
        if self.files.len() == FILES {
            let note = format!("{name} was rotated too often: only its first {FILES} files are counted.");
            compared.notes.push(note);
        }
        let empty: Box<dyn Read> = Box::new(std::io::empty());
        let all = self.files.into_iter().fold(empty, |all, file| Box::new(all.chain(file)));
        // The last line may be incomplete.
        let how = How { is_sorted: false, skip_bad: true, namespace: observe.namespace.as_deref() };
        let recording = Recording::new(all).map_err(io)?;
        read(compared, recording, &name, &how, Progress::new(observe.report.quiet)).map(drop)
    }
}

fn announce(observe: &Observe) {
    if !observe.report.quiet {
        drop(writeln!(std::io::stderr(), "observing events; nothing is written to the cluster"));
    }
}

/// The file of `--save`: JSON lines for `replay`.
struct Save(Option<GzEncoder<File>>);

impl Save {
    fn create(path: Option<&Path>) -> Result<Self, Error> {
        let create = |path| File::create(path).map(|file| GzEncoder::new(file, Compression::default()));
        path.map(create).transpose().map(Self).map_err(saving)
    }

    /// Writes one event that stands for this many occurrences at one time.
    fn write(&mut self, event: &Event, occurrences: u32, at: i64) -> Result<(), Error> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        let time = Some(Time(at.div_euclid(1_000_000_000)));
        let count = i32::try_from(occurrences).unwrap_or(i32::MAX);
        let event = Event { count, first_timestamp: time, last_timestamp: time, series: None, ..event.clone() };
        let mut line = Vec::new();
        json::write_json(ApiGroup::Core, &event, &mut line);
        line.push(b'\n');
        file.write_all(&line).map_err(saving)
    }

    fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), |file| file.finish().map(drop).map_err(saving))
    }
}

fn saving(source: std::io::Error) -> Error {
    Error::Io { what: "writing the file of --save".to_owned(), source }
}

async fn watch(observe: &Observe, compared: &mut Compared) -> Result<(), Error> {
    let clock = Clock::system();
    let settings = apiserver::Settings {
        kubeconfig: observe.kubeconfig.clone(),
        context: observe.context.clone(),
        ..apiserver::Settings::default()
    };
    let metrics = upstream::Metrics::new(&Registry::new());
    let apiserver = Apiserver::connect(&settings, clock.clone(), metrics).await.map_err(app::Error::from)?;
    let mut save = Save::create(observe.save.as_deref())?;
    let news = apiserver.history(observe.namespace.as_deref(), std::sync::Arc::new(|| ()));
    follow(news, end(observe.time), observe, &clock, &mut compared.comparison, &mut save).await?;
    save.finish()
}

/// Reports the events that are stored after the first complete list, until `end`.
async fn follow(
    news: impl Stream<Item = News>,
    end: impl Future<Output = ()>,
    observe: &Observe,
    clock: &Clock,
    comparison: &mut Comparison,
    save: &mut Save,
) -> Result<(), Error> {
    announce(observe);
    let progress = Progress::new(observe.report.quiet);
    let mut seen = Seen::default();
    let (mut is_listed, mut fault) = (false, None);
    let (mut news, mut end, mut ticks) = (pin!(news), pin!(end), tokio::time::interval(TICK));
    loop {
        let news = tokio::select! {
            () = &mut end => break,
            _ = ticks.tick() => {
                let time = length(clock.now().mono.0 / 1_000_000_000);
                progress.show(&format!("  observing, {time}   {}", plural(comparison.sent(), "event")));
                continue;
            }
            news = news.next() => news,
        };
        match news {
            None => break,
            Some(News::Begins) => {}
            Some(News::Complete) => (is_listed, fault) = (true, None),
            Some(News::Listed(event) | News::Stored(event)) => {
                let occurrences = seen.change(&event);
                // Events of the first list happened before.
                if is_listed && occurrences > 0 {
                    let now = clock.now().wall;
                    save.write(&event, occurrences, now)?;
                    comparison.report(*event, occurrences, Some(now));
                }
            }
            Some(News::Gone(event)) => seen.forget(&event),
            Some(News::Trouble { is_forbidden: true, .. }) => {
                let what = observe.namespace.as_ref().map_or_else(
                    || "all namespaces: grant get, list and watch on events, or name one with -n".to_owned(),
                    |name| format!("namespace {name}: grant get, list and watch on events there"),
                );
                return Err(Error::Observe(what));
            }
            Some(News::Trouble { error, is_expired, .. }) => {
                if !is_expired && fault.as_ref() != Some(&error) {
                    progress.end();
                    let error = printable(&error);
                    drop(writeln!(std::io::stderr(), "the events cannot be read now, trying again: {error}"));
                }
                fault = Some(error);
            }
        }
    }
    progress.end();
    if is_listed {
        return Ok(());
    }
    let fault = fault.unwrap_or_else(|| "its API server did not list them in this time".to_owned());
    Err(Error::Observe(format!("the cluster: {fault}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::replay::compare;
    use super::*;
    use crate::cli::{Cli, Command};

    fn stored(name: &str, count: i32) -> Box<Event> {
        let mut event = Event { count, reason: "BackOff".into(), event_type: "Normal".into(), ..Event::default() };
        event.metadata.name = name.into();
        event.metadata.namespace = "default".into();
        event.involved_object.name = name.into();
        event.involved_object.kind = "Pod".into();
        event.involved_object.namespace = "default".into();
        Box::new(event)
    }

    async fn observed(news: Vec<News>) -> (Result<(), Error>, u64) {
        let cli = Cli::try_parse_from(["eventweir", "observe", "-n", "shop", "-q"]).unwrap();
        let Command::Observe(observe) = cli.command else { unreachable!() };
        let mut compared = compare(None, None).unwrap();
        let news = futures_util::stream::iter(news);
        let clock = Clock::manual(1_772_352_000_000_000_000);
        let end = std::future::pending();
        let result = follow(news, end, &observe, &clock, &mut compared.comparison, &mut Save(None)).await;
        assert!(compared.comparison.balances());
        (result, compared.comparison.sent())
    }

    #[tokio::test]
    async fn a_record_brings_as_many_occurrences_as_its_count_grows() {
        let trouble = |is_forbidden| News::Trouble { error: "no".to_owned(), is_forbidden, is_expired: false };
        let news = vec![
            News::Begins,
            News::Listed(stored("old", 5)),
            News::Complete,
            News::Stored(stored("old", 7)),
            News::Stored(stored("new", 1)),
            News::Gone(stored("new", 1)),
            News::Stored(stored("new", 1)),
            News::Begins,
            News::Listed(stored("old", 7)),
            News::Complete,
        ];
        let (result, sent) = observed(news).await;
        assert_eq!((result.is_ok(), sent), (true, 4));
        let (result, _) = observed(vec![trouble(true)]).await;
        assert!(result.unwrap_err().to_string().contains("namespace shop"));
        assert!(observed(vec![News::Begins, trouble(false)]).await.0.is_err());
        // Fault: an API server without an answer had no events.
        assert!(observed(vec![News::Begins]).await.0.is_err());
    }

    #[test]
    fn only_appended_requests_of_an_audit_log_count() {
        let entry = |namespace: &str, name: &str| {
            format!(
                r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"create","stageTimestamp":"2026-03-01T08:00:00.500000Z","objectRef":{{"resource":"events","namespace":"{namespace}","name":"{name}","apiVersion":"v1"}},"responseStatus":{{"code":201}},"requestObject":{{"metadata":{{"name":"{name}","namespace":"{namespace}"}},"involvedObject":{{"kind":"Pod","name":"web-0","namespace":"{namespace}"}},"reason":"R","type":"Normal"}}}}"#
            ) + "\n"
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let before = entry("shop", "a");
        let log = [&*before, &entry("shop", "b"), &entry("bank", "c"), &entry("shop", "d"), r#"{"kind":"Ev"#].concat();
        std::fs::write(file.path(), log).unwrap();
        let read = |flags: &[&str], log: AuditLog<'_>| {
            let cli = Cli::try_parse_from(["eventweir", "observe", "-q"].iter().chain(flags)).unwrap();
            let Command::Observe(observe) = cli.command else { unreachable!() };
            let mut compared = compare(None, None).unwrap();
            log.read(&observe, &mut compared).unwrap();
            assert_eq!(compared.bad, 1, "the line that is being written");
            compared.comparison.sent()
        };
        let count = |flags: &[&str], begin: usize| {
            read(flags, AuditLog { begin: begin as u64, ..AuditLog::open(file.path()).unwrap() })
        };
        assert_eq!(count(&[], before.len()), 3);
        assert_eq!(count(&["-n", "shop"], before.len()), 2);
        assert_eq!(count(&[], 1 << 20), 4, "a log that was copied and cut off");
        // Faults: after a rotation, the rest of the old file was left out; and the beginning of a new one that was longer.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, &before).unwrap();
        let mut log = AuditLog::open(&path).unwrap();
        for number in 0..2 {
            let mut file = File::options().append(true).open(&path).unwrap();
            file.write_all(entry("shop", &format!("b{number}")).as_bytes()).unwrap();
            std::fs::rename(&path, folder.path().join(format!("audit-{number}.log"))).unwrap();
            log.look();
            std::fs::write(&path, [entry("shop", "c"), entry("shop", "d")].concat()).unwrap();
            log.look();
        }
        std::fs::write(&path, entry("shop", "e") + "{").unwrap();
        log.look();
        assert_eq!(read(&[], log), 5);
    }

    #[test]
    fn saved_events_replay_as_observed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut save = Save::create(Some(file.path())).unwrap();
        let at = 1_772_352_000_000_000_000;
        save.write(&stored("old", 7), 2, at).unwrap();
        save.write(&stored("new", 1), 1, at).unwrap();
        save.finish().unwrap();
        let recording = Recording::new(File::open(file.path()).unwrap()).unwrap();
        let read: Vec<_> = recording.map(|report| report.unwrap().unwrap()).collect();
        let brief: Vec<_> = read.iter().map(|r| (r.event.metadata.name.as_str(), r.occurrences, r.at)).collect();
        assert_eq!(brief, [("old", 2, Some(at)), ("new", 1, Some(at))]);
    }
}
