//! The spool's file against a model, on a disk that stops, tears, fills up and fails; and damaged files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use eventweir::correlator::{Key, KeySecret, RecordId};
use eventweir::outbox::{Changes, Entry, Kind, Occurrences, WrittenAs};
use eventweir::spool::{Directory, Error, Keeper, Opened};
use proptest::prelude::*;

use super::support::disk::Disk;
use super::support::events::plain;

fn entry(record: u64, count: i32) -> Entry {
    let mut event = plain();
    event.metadata.name = record.to_string().into();
    event.message = "m".repeat(usize::try_from(count).unwrap() * 97 % 3_000).into();
    event.count = count;
    Entry {
        source: Key(1),
        key: Key(record.into()),
        budget: Some(Key(2)),
        event,
        kind: Kind::Plain,
        stored: false,
        tag: "tally.eventweir/a.1".into(),
        settled: 0,
        owed: Occurrences::of(WrittenAs::Counted, 1),
        lines: Vec::new(),
        later_lines: Vec::new(),
        later: Occurrences::default(),
        carried: 0,
        may_be_deleted: false,
    }
}

/// Records and their counts; `None` for a record that is no longer pending.
type Owed = BTreeMap<u64, Option<i32>>;

fn changes(owed: &Owed) -> [Changes; 1] {
    let change =
        |(record, count): (&u64, &Option<i32>)| (RecordId(*record), count.map(|count| Box::new(entry(*record, count))));
    [Changes { records: owed.iter().map(change).collect(), held: Vec::new() }]
}

fn found(opened: &Opened) -> BTreeMap<u64, i32> {
    assert!(opened.damaged.is_none() && opened.torn == 0, "{opened:?}");
    let found: BTreeMap<u64, i32> = opened
        .entries
        .iter()
        .map(|found| {
            let record = found.event.metadata.name.parse().unwrap();
            // Every member of an entry is restored; the names of `plain` events differ.
            assert_eq!(*found, Entry { event: found.event.clone(), ..entry(record, found.event.count) });
            (record, found.event.count)
        })
        .collect();
    assert_eq!(found.len(), opened.entries.len());
    found
}

#[derive(Debug, Clone)]
enum Step {
    /// Changes a record.
    Change(u64, Option<i32>),
    Commit,
    /// Fills the disk, or frees room.
    Full(bool),
    /// Fails a change of the disk, and perhaps stops the machine there.
    FailIn(u32),
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..12_u64, proptest::option::weighted(0.7, 1..500_i32)).prop_map(|(record, count)| Step::Change(record, count)),
        4 => Just(Step::Commit),
        1 => any::<bool>().prop_map(Step::Full),
        1 => (0..12_u32).prop_map(Step::FailIn),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

/// A model of the spool's task, with the state that must be found after a crash.
struct Model {
    disk: Disk,
    keeper: Keeper,
    process: u64,
    /// State of the last successful commit.
    kept: BTreeMap<u64, i32>,
    /// States that later failed commits may have written.
    perhaps: Vec<BTreeMap<u64, i32>>,
    owed: Owed,
}

impl Model {
    fn new() -> Self {
        let disk = Disk::default();
        let keeper = Keeper::new(Arc::new(disk.clone()), 0, KeySecret(1, 2));
        let (kept, owed) = (BTreeMap::new(), Owed::new());
        let mut model = Self { disk, keeper, process: 0, kept, perhaps: Vec::new(), owed };
        assert!(found(&model.keeper.open().unwrap()).is_empty());
        model
    }

    fn commit(&mut self) {
        if !self.keeper.is_open() {
            let Ok(opened) = self.keeper.open() else { return };
            assert!(opened.entries.is_empty() && opened.damaged.is_none(), "{opened:?}");
        }
        let mut next = self.kept.clone();
        for (record, count) in &self.owed {
            match count {
                Some(count) => next.insert(*record, *count),
                None => next.remove(record),
            };
        }
        match self.keeper.commit(&changes(&self.owed)) {
            Ok(_) => {
                self.kept = next;
                self.perhaps.clear();
                self.owed.clear();
            }
            Err(error) => {
                assert!(matches!(error, Error::Unavailable(_)), "{error}");
                self.owed.extend(next.iter().map(|(record, count)| (*record, Some(*count))));
                self.perhaps.push(next);
            }
        }
    }

    fn crash(&mut self, seed: u64) {
        self.disk.crash(&mut fastrand::Rng::with_seed(seed));
        self.process += 1;
        self.keeper = Keeper::new(Arc::new(self.disk.clone()), self.process, KeySecret(3, 4));
        let found = found(&self.keeper.open().unwrap());
        let perhaps = std::mem::take(&mut self.perhaps);
        assert!(found == self.kept || perhaps.contains(&found), "{found:?} {:?} {perhaps:?}", self.kept);
        // The next process restores the records, and commits them under its own tag.
        self.owed = found.iter().map(|(record, count)| (*record, Some(*count))).collect();
        self.kept = found;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_committed_outlives_a_crash_and_nothing_else_changes(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in steps.into_iter().chain([Step::Commit, Step::Crash(7)]) {
            match step {
                Step::Change(record, count) => drop(model.owed.insert(record, count)),
                Step::Commit => model.commit(),
                Step::Full(full) => model.disk.set_full(full),
                Step::FailIn(changes) => model.disk.fail_in(changes),
                Step::Crash(seed) => model.crash(seed),
            }
        }
    }
}

/// Writes a spool with these records, committed one after the other, and closes it.
fn spool_of(disk: &Disk, records: std::ops::Range<u64>) {
    let mut keeper = Keeper::new(Arc::new(disk.clone()), 1, KeySecret(1, 2));
    keeper.open().unwrap();
    for record in records {
        keeper.commit(&changes(&Owed::from([(record, Some(40))]))).unwrap();
    }
}

fn reopened(disk: &Disk) -> (Keeper, Opened) {
    let mut keeper = Keeper::new(Arc::new(disk.clone()), 2, KeySecret(3, 4));
    let opened = keeper.open().unwrap();
    (keeper, opened)
}

#[test]
fn the_secret_of_the_keys_survives_the_process() {
    let disk = Disk::default();
    spool_of(&disk, 0..1);
    let (mut keeper, _) = reopened(&disk);
    assert!(matches!(keeper.take_secret(), KeySecret(1, 2)));
}

/// Damages every copy of a record, even in free pages.
fn damage_record(disk: &Disk, record: u64) {
    disk.damage(|file| {
        let name = format!("\"name\":\"{record}\"").into_bytes();
        let places: Vec<usize> =
            file.windows(name.len()).enumerate().filter(|(_, w)| *w == name).map(|(at, _)| at).collect();
        assert!(!places.is_empty());
        for place in places {
            file[place + 8] = b'x';
        }
    });
}

#[test]
fn a_damaged_entry_is_lost_alone_and_reported() {
    let disk = Disk::default();
    spool_of(&disk, 0..20);
    damage_record(&disk, 7);
    let (_, opened) = reopened(&disk);
    assert_eq!((opened.entries.len(), opened.torn), (19, 1));
    assert!(opened.damaged.is_none());
}

/// Faults: it was not counted, or nothing told of it. redb checks all pages after a crash. If only the last commit has
/// the damaged one, redb goes back to the commit before, otherwise the file is damaged as a whole.
#[test]
fn a_damaged_entry_is_reported_also_after_a_crash() {
    for (damaged, found) in
        [(Some(7), (19, 1, true, false)), (Some(19), (19, 0, false, true)), (None, (20, 0, false, false))]
    {
        let disk = crashed(0..20);
        damaged.into_iter().for_each(|record| damage_record(&disk, record));
        let Opened { entries, torn, damaged, is_undone, .. } = reopened(&disk).1;
        assert_eq!((entries.len(), torn, damaged.is_some(), is_undone), found);
    }
}

/// Commits these records, one after the other, and crashes.
fn crashed(records: std::ops::Range<u64>) -> Disk {
    let disk = Disk::default();
    let mut keeper = Keeper::new(Arc::new(disk.clone()), 1, KeySecret(1, 2));
    keeper.open().unwrap();
    for record in records {
        keeper.commit(&changes(&Owed::from([(record, Some(40))]))).unwrap();
    }
    disk.crash(&mut fastrand::Rng::with_seed(1));
    disk
}

#[test]
fn a_truncated_file_is_set_aside_and_its_whole_entries_are_restored() {
    let disk = Disk::default();
    spool_of(&disk, 0..200);
    disk.damage(|file| file.truncate(file.len() / 2));
    let (mut keeper, opened) = reopened(&disk);
    let (damage, name) = opened.damaged.unwrap();
    assert!(!damage.is_empty() && name == "aside");
    assert!(opened.entries.len() > 50, "{}", opened.entries.len());
    // The restored entries are committed in a new file.
    let owed: Owed =
        opened.entries.iter().map(|found| (found.event.metadata.name.parse().unwrap(), Some(40))).collect();
    keeper.commit(&changes(&owed)).unwrap();
    drop(keeper);
    let (_, again) = reopened(&disk);
    assert!(again.damaged.is_none());
    assert_eq!(again.entries.len(), opened.entries.len());
}

/// Fault: they were lost, because nothing read the file that was set aside.
#[test]
fn the_entries_of_a_damaged_file_survive_a_process_that_commits_nothing() {
    let disk = Disk::default();
    spool_of(&disk, 0..200);
    disk.damage(|file| file.truncate(file.len() / 2));
    let (keeper, opened) = reopened(&disk);
    drop(keeper);
    let (mut keeper, again) = reopened(&disk);
    assert!(again.entries.len() > 50 && again.entries.len() == opened.entries.len());
    keeper.commit(&changes(&Owed::from([(1, Some(1))]))).unwrap();
    drop(keeper);
    assert_eq!(found(&reopened(&disk).1), BTreeMap::from([(1, 1)]), "no entry is taken over twice");
}

/// Fault: they were dropped, and not counted.
#[test]
fn the_entries_of_a_damaged_file_are_restored_although_no_new_one_can_be_made() {
    let disk = Disk::default();
    spool_of(&disk, 0..200);
    disk.damage(|file| file.truncate(file.len() / 2));
    disk.set_full(true);
    let (mut keeper, opened) = reopened(&disk);
    assert!(opened.damaged.is_some() && opened.entries.len() > 50 && !keeper.is_open());
    let restored: Owed =
        opened.entries.iter().map(|found| (found.event.metadata.name.parse().unwrap(), Some(40))).collect();
    let error = keeper.commit(&changes(&restored)).unwrap_err().to_string();
    assert!(!error.contains("not open"), "the disk's own error: {error}");
    let _full = keeper.open();
    assert!(!keeper.is_open());
    disk.set_full(false);
    assert!(keeper.open().unwrap().entries.is_empty());
    keeper.commit(&changes(&restored)).unwrap();
    drop(keeper);
    assert_eq!(found(&reopened(&disk).1).len(), opened.entries.len());
}

#[test]
fn the_spool_opens_with_any_file_content() {
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..60 {
        let disk = Disk::default();
        spool_of(&disk, 0..30);
        disk.damage(|file| {
            for _ in 0..rng.usize(1..40) {
                let at = rng.usize(..file.len());
                let end = (at + rng.usize(1..2_000)).min(file.len());
                rng.fill(&mut file[at..end]);
            }
        });
        let (mut keeper, opened) = reopened(&disk);
        assert!(opened.entries.len() <= 30);
        // If damage shows only now, the file is set aside and everything is in a new one.
        let mut tries = 0;
        while keeper.commit(&changes(&Owed::from([(1, Some(1))]))).is_err() {
            keeper.open().unwrap();
            tries += 1;
            assert!(tries < 3);
        }
    }
}

#[test]
fn the_directory_is_created_and_its_file_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("a/b");
    let keeper = |place: &Path| Keeper::new(Arc::new(Directory(place.to_owned())), 1, KeySecret(1, 2));
    let mut first = keeper(&place);
    first.open().unwrap();
    let mode = std::fs::metadata(place.join("spool.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(keeper(&place).open(), Err(Error::Busy)), "one process at a time");
    drop(first);
    // A file of another format.
    std::fs::write(place.join("spool.redb"), "this is no spool").unwrap();
    let mut second = keeper(&place);
    assert!(second.open().unwrap().damaged.unwrap().1.ends_with("spool.redb.damaged"));
    assert_eq!(std::fs::read(place.join("spool.redb.salvage")).unwrap(), b"this is no spool");
    second.commit(&changes(&Owed::new())).unwrap();
    assert_eq!(std::fs::read(place.join("spool.redb.damaged")).unwrap(), b"this is no spool");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(keeper(&file).open(), Err(Error::Unavailable(_))));
}

/// Fault: it was reported and set aside as damaged, where it replaced one that was.
#[test]
fn a_file_whose_creation_failed_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spool.redb");
    let opened = || Keeper::new(Arc::new(Directory(folder.path().to_owned())), 1, KeySecret(1, 2)).open().unwrap();
    assert!(opened().damaged.is_none());
    let mut created = std::fs::read(&file).unwrap();
    // redb writes its magic number last.
    created[..9].fill(0);
    created[4096..].fill(0);
    for failed in [created, vec![0; 1 << 20], Vec::new()] {
        std::fs::write(&file, failed).unwrap();
        let found = opened();
        // Fault: a power failure may leave such a file of one with entries, and nothing told so.
        assert!(found.damaged.is_none() && found.was_empty);
        assert!(!opened().was_empty);
    }
    let mut damaged = vec![0; 1 << 20];
    damaged[1 << 19] = 1;
    std::fs::write(&file, damaged).unwrap();
    assert!(opened().damaged.is_some());
}

/// Fault: the spool still wrote to the removed file, and the answer was `durable`.
#[test]
fn a_file_that_was_removed_or_replaced_is_not_written_any_more() {
    let removed = |place: &Path| std::fs::remove_dir_all(place).unwrap();
    let replaced = |place: &Path| {
        std::fs::copy(place.join("spool.redb"), place.join("copy")).unwrap();
        std::fs::rename(place.join("copy"), place.join("spool.redb")).unwrap();
    };
    for vanish in [&removed as &dyn Fn(&Path), &replaced] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("spool");
        let keeper = |process| Keeper::new(Arc::new(Directory(place.clone())), process, KeySecret(1, 2));
        let mut first = keeper(1);
        first.open().unwrap();
        first.commit(&changes(&Owed::from([(1, Some(1))]))).unwrap();
        vanish(&place);
        let owed = Owed::from([(1, Some(1)), (2, Some(2))]);
        assert!(matches!(first.commit(&changes(&owed)), Err(Error::Unavailable(_))));
        let opened = first.open().unwrap();
        first.commit(&changes(&owed)).unwrap();
        drop(first);
        assert_eq!(found(&keeper(2).open().unwrap()), BTreeMap::from([(1, 1), (2, 2)]));
        // What the failed commit had is committed again. Nothing is restored from a copy.
        assert!(opened.entries.is_empty());
    }
}
