//! What the documents promise across crashes, restarts and other writers: the occurrences that the upstream shows, and
//! how far each client has counted.

use std::collections::{BTreeMap, BTreeSet};

use eventweir::event::Event;

use super::model::{KINDS, KindId, Line, Style, kind_of, line, shown};
use super::process::Writes;

/// A client's event as the client knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub(super) kind: KindId,
    pub(super) total: i32,
    has_series: bool,
}

/// The occurrences of one kind of event.
#[derive(Debug, Default, Clone)]
struct Tally {
    /// Occurrences that were accepted and neither deleted nor lost.
    own: i64,
    /// Occurrences that other writers have added.
    others: i64,
    /// Each accepted total: `own` afterwards, the client's name, and its total.
    log: Vec<(i64, String, i32)>,
    /// Another writer has deleted the record of this name. The occurrences of `others` that it showed are shown again
    /// by the next write, unless another event has taken the name.
    ghost: Option<(String, i64)>,
    /// Another writer has deleted the record, which showed this, and nothing waits.
    gone: Option<i64>,
    /// Whether the watch has said so.
    is_known_gone: bool,
    /// Whether another writer has changed the record's count since the watch was read.
    is_unread: bool,
    /// Whether this process has counted on the record.
    is_counted_here: bool,
    /// Whether this process has restored the record from its spool.
    is_restored: bool,
    /// What deleted records showed in addition to what is expected. A process may create one of them again with its
    /// count.
    remembered: Vec<i64>,
    /// Whether the process does not know the record any more, after a DELETE without an answer.
    is_unknown: bool,
    /// Whether an occurrence has begun another record since then, which may not be stored yet.
    is_divided: bool,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Account {
    kinds: [Tally; KINDS.len()],
    clients: BTreeMap<String, Client>,
    /// The replica that each client uses.
    homes: BTreeMap<String, usize>,
    /// Names that a replica knows, with the client's state at its last request to it.
    aliases: BTreeMap<(String, usize), Client>,
    /// Lines about which nothing is promised once the alias is lost.
    unsure: BTreeSet<(String, Line)>,
    /// Lines that were ever used.
    used: BTreeSet<(String, Line)>,
}

impl Account {
    /// Returns the occurrences that the upstream shows of a kind when nothing waits.
    pub(super) fn live(&self, kind: KindId) -> i64 {
        self.kinds[kind].own + self.kinds[kind].others
    }

    /// Returns the client's event if its process knows it.
    pub(super) fn known(&self, name: &str) -> Option<Client> {
        let known = self.known_at(name, self.home(name))?;
        // It may have counted on at another replica.
        let client = self.clients.get(name).filter(|client| line(client.kind) == line(known.kind));
        Some(Client { total: client.map_or(known.total, |client| client.total), ..known })
    }

    /// Returns the client's event as a replica knows it.
    pub(super) fn known_at(&self, name: &str, replica: usize) -> Option<Client> {
        self.aliases.get(&(name.to_owned(), replica)).copied()
    }

    /// Returns the replica that a client uses.
    pub(super) fn home(&self, name: &str) -> usize {
        self.homes.get(name).copied().unwrap_or(0)
    }

    /// The client of a name uses a replica from now on.
    pub(super) fn move_to(&mut self, name: &str, replica: usize) {
        self.homes.insert(name.to_owned(), replica);
    }

    /// Whether nothing is promised about a line of this name.
    pub(super) fn is_unsure(&self, name: &str) -> bool {
        self.unsure.iter().any(|(unsure, _)| unsure == name)
    }

    fn tell(&mut self, name: &str, client: Client) {
        self.aliases.insert((name.to_owned(), self.home(name)), client);
        self.clients.insert(name.to_owned(), client);
    }

    /// Whether another writer has deleted the record of a kind.
    pub(super) fn is_gone(&self, kind: KindId) -> bool {
        self.kinds[kind].gone.is_some()
    }

    /// Whether the process may not know the count of a kind's record.
    pub(super) fn is_unread(&self, kind: KindId) -> bool {
        self.kinds[kind].is_unread
    }

    /// Returns how far a client has counted, as the lines on the records say.
    fn counted(&self, name: &str, of: Line) -> i32 {
        let kinds = (0..KINDS.len()).filter(|kind| line(*kind) == of);
        let entries = kinds.flat_map(|kind| &self.kinds[kind].log).filter(|(_, client, _)| client == name);
        entries.map(|(_, _, total)| *total).max().unwrap_or(0)
    }

    /// Returns the total of a POST with `more` occurrences. It is 1 where nothing is promised about larger ones.
    pub(super) fn total(&self, name: &str, kind: KindId, more: i32, writes: Writes) -> i32 {
        let of = (name.to_owned(), line(kind));
        let client = self.clients.get(name).filter(|client| line(client.kind) == of.1);
        if more == 0 {
            return 1;
        }
        if let Some(known) = self.known(name).filter(|known| line(known.kind) == of.1) {
            return known.total + more;
        }
        let is_sure = !self.unsure.contains(&of) && (writes == Writes::Exact || !self.used.contains(&of));
        match (is_sure, self.counted(name, of.1)) {
            (true, 0) if !self.used.contains(&of) => 1 + more,
            (true, counted @ (0 | 2..)) => client.map_or(counted.max(1), |client| client.total.max(counted)) + more,
            _ => 1,
        }
    }

    /// Notes a POST.
    pub(super) fn post(&mut self, name: &str, kind: KindId, total: i32) {
        let has_series = KINDS[kind].style == Style::New && total > 1;
        let known = self.known(name).filter(|known| line(known.kind) == line(kind));
        let brought = match known {
            Some(known) if known.has_series && total <= known.total => return,
            _ if total == 1 => 1,
            Some(known) => total - known.total,
            None => total - self.counted(name, line(kind)),
        };
        let brought = if has_series { brought.max(0) } else { brought.max(1) };
        self.tell(name, Client { kind, total, has_series });
        self.happen(name, kind, brought, total);
    }

    /// Notes an event of a batch, whose names are not remembered. A known name has this total then.
    pub(super) fn post_in_batch(&mut self, name: &str, kind: KindId, total: i32) {
        if total > 1 && self.known(name).is_some_and(|known| line(known.kind) == line(kind)) {
            return self.post(name, kind, total);
        }
        let counted = if total == 1 { 0 } else { self.counted(name, line(kind)) };
        self.happen(name, kind, (total - counted).max(1), total);
    }

    /// Notes a PATCH of a known name.
    pub(super) fn patch(&mut self, name: &str, kind: KindId, total: i32) {
        let grown = total - self.known(name).unwrap().total;
        let has_series = KINDS[kind].style == Style::New;
        self.tell(name, Client { kind, total, has_series });
        self.happen(name, kind, grown.max(0), total);
    }

    fn happen(&mut self, name: &str, kind: KindId, brought: i32, total: i32) {
        if brought == 0 {
            return;
        }
        let of = (name.to_owned(), line(kind));
        if total < self.counted(name, of.1) {
            // The client, or another one with its name, has begun again.
            self.unsure.insert(of.clone());
        }
        self.used.insert(of);
        let tally = &mut self.kinds[kind];
        if let Some(gone) = tally.gone.take() {
            let is_certain = tally.is_counted_here || !tally.is_known_gone;
            tally.others = if is_certain { gone } else { 0 };
            if tally.is_restored && !is_certain {
                tally.remembered.push(gone);
            }
            tally.is_known_gone = false;
        }
        tally.is_divided |= std::mem::take(&mut tally.is_unknown);
        tally.own += i64::from(brought);
        tally.is_counted_here = true;
        tally.log.push((tally.own, name.to_owned(), total));
    }

    /// The last accepted total was written by its client, so that it shows before the occurrences that waited while the
    /// upstream showed `shown`.
    pub(super) fn overtake(&mut self, kind: KindId, shown: i64, brought: i64) {
        let Tally { log, others, .. } = &mut self.kinds[kind];
        let written = shown - *others;
        if brought > 0
            && let Some((_, name, total)) = log.pop()
        {
            log.iter_mut().filter(|(own, ..)| *own > written).for_each(|(own, ..)| *own += brought);
            log.push((written + brought, name, total));
        }
    }

    /// Notes a DELETE that has deleted the records of these kinds.
    pub(super) fn delete(&mut self, kinds: &[KindId]) {
        for kind in kinds {
            self.forget_lines(*kind);
            let remembered = std::mem::take(&mut self.kinds[*kind].remembered);
            self.kinds[*kind] = Tally { remembered, ..Tally::default() };
        }
    }

    /// A replica has forgotten all names.
    pub(super) fn forget_all(&mut self, replica: usize) {
        self.aliases.retain(|(_, home), _| *home != replica);
    }

    /// A replica has forgotten a name.
    pub(super) fn forget(&mut self, name: &str, replica: usize) {
        self.aliases.remove(&(name.to_owned(), replica));
        if self.home(name) == replica {
            self.clients.remove(name);
        }
    }

    /// A DELETE of the record of a kind has got no answer.
    pub(super) fn lose_sight(&mut self, kind: KindId) {
        self.kinds[kind].is_unknown = true;
    }

    /// Whether a process may not find the record of a kind under another name than its own.
    pub(super) fn is_unknown(&self, kind: KindId) -> bool {
        self.kinds[kind].is_unknown
    }

    /// Whether the record of a kind shows what this account expects, even while occurrences wait.
    pub(super) fn is_certain(&self, kind: KindId) -> bool {
        let tally = &self.kinds[kind];
        let is_known = !tally.is_unread && !tally.is_unknown && !tally.is_divided;
        is_known && tally.others == 0 && tally.ghost.is_none() && tally.gone.is_none() && tally.remembered.is_empty()
    }

    /// Whether a kind may have another record, which is not stored yet.
    pub(super) fn is_divided(&self, kind: KindId) -> bool {
        self.kinds[kind].is_divided
    }

    /// Another replica may create the deleted record of a kind again, with the count that it showed.
    pub(super) fn remembered_elsewhere(&mut self, kind: KindId, shown: i64) {
        self.kinds[kind].remembered.push(shown);
    }

    /// Whether a replica may still know a deleted record of a kind.
    pub(super) fn is_remembered(&self, kind: KindId) -> bool {
        !self.kinds[kind].remembered.is_empty()
    }

    /// Notes that a client has set the count of the event of its name, while the upstream showed `stored`. A count from
    /// there to what GET has shown leaves the others waiting. The same count says nothing about the client's total.
    pub(super) fn set(&mut self, name: &str, kind: KindId, count: i32, stored: i64) {
        let live = self.live(kind);
        let live = if (stored..=live).contains(&count.into()) { live } else { count.into() };
        self.forget_lines(kind);
        let remembered = std::mem::take(&mut self.kinds[kind].remembered);
        self.kinds[kind] = Tally { own: live, is_counted_here: true, remembered, ..Tally::default() };
        let total = self.known(name).filter(|_| i64::from(count) == stored).map_or(count, |known| known.total);
        self.tell(name, Client { kind, total, has_series: false });
        self.unsure.insert((name.to_owned(), line(kind)));
        self.used.insert((name.to_owned(), line(kind)));
    }

    /// Marks the lines on the record of a kind as lines without a promise.
    pub(super) fn forget_lines(&mut self, kind: KindId) {
        let log = std::mem::take(&mut self.kinds[kind].log);
        self.unsure.extend(log.into_iter().map(|(_, name, _)| (name, line(kind))));
    }

    /// Another writer has added occurrences to the record of this name.
    pub(super) fn edit(&mut self, name: &str, kind: KindId, more: i32) {
        self.kinds[kind].others += i64::from(more);
        self.kinds[kind].is_unread |= more != 0;
        self.unsure.insert((name.to_owned(), line(kind)));
    }

    /// Another writer has deleted the only record of a kind, of this name, while so many occurrences waited.
    pub(super) fn delete_upstream(&mut self, kind: KindId, name: &str, waiting: u64) {
        self.forget_lines(kind);
        let own = i64::try_from(waiting).unwrap();
        let shown = self.live(kind) - own;
        let Tally { is_counted_here, is_restored, remembered, .. } = std::mem::take(&mut self.kinds[kind]);
        let ghost = Some((name.to_owned(), shown));
        // With a write that waits, the record is created again with its whole count; otherwise by the next one.
        let (others, gone) = if waiting > 0 { (shown, None) } else { (0, Some(shown)) };
        self.kinds[kind] =
            Tally { own, others, ghost, gone, is_counted_here, is_restored, remembered, ..Tally::default() };
    }

    /// Adjusts the account to a record that was deleted by another writer, and whose name another event has taken.
    fn settle(&mut self, kind: KindId, shown: i64, stored: &[Event]) {
        let is_taken = |name: &str| stored.iter().any(|event| event.metadata.name == name && kind_of(event) != kind);
        let live = self.live(kind);
        let tally = &mut self.kinds[kind];
        if tally.own > 0 && tally.remembered.contains(&(shown - live)) {
            tally.remembered.clear();
            tally.others = shown - tally.own;
            return;
        }
        if tally.gone.is_some() {
            return;
        }
        if let Some((name, number)) = tally.ghost.take()
            && shown == live - number
            && is_taken(&name)
        {
            tally.others -= number;
        }
    }

    /// Returns the occurrences that the upstream shows of a kind when nothing waits, if it shows `shown`.
    pub(super) fn expected(&self, kind: KindId, shown: i64, stored: &[Event]) -> i64 {
        let mut account = self.clone();
        account.settle(kind, shown, stored);
        account.live(kind)
    }

    /// Compares with what the upstream stores when nothing waits.
    pub(super) fn check(&mut self, stored: &[Event]) {
        let shown = shown(stored);
        for (kind, shown) in shown.into_iter().enumerate() {
            self.settle(kind, shown, stored);
        }
        let live: Vec<i64> = (0..KINDS.len()).map(|kind| self.live(kind)).collect();
        assert_eq!(shown.to_vec(), live, "{:?}", super::names_and_counts(stored));
        self.kinds.iter_mut().for_each(|tally| tally.is_divided = false);
    }

    /// Another writer has created the only record of a kind again with this count, while so many occurrences waited.
    pub(super) fn create_upstream(&mut self, kind: KindId, count: i32, waiting: u64) {
        self.forget_lines(kind);
        let own = i64::try_from(waiting).unwrap();
        // The process may not have read it before another writer deletes it: then it counts on from its own record.
        let unread = self.live(kind) - own - i64::from(count);
        let Tally { is_counted_here, mut remembered, .. } = std::mem::take(&mut self.kinds[kind]);
        remembered.push(unread);
        let others = count.into();
        self.kinds[kind] = Tally { own, others, is_unread: true, is_counted_here, remembered, ..Tally::default() };
    }

    /// The watch has shown which records are gone, and what other writers have changed.
    pub(super) fn watch(&mut self) {
        self.watch_gone();
        // A restored record is read only before its next write.
        self.kinds.iter_mut().for_each(|tally| tally.is_unread &= tally.is_restored);
    }

    /// The watch has shown which records are gone.
    pub(super) fn watch_gone(&mut self) {
        self.kinds.iter_mut().for_each(|tally| tally.is_known_gone = tally.gone.is_some());
    }

    /// The next process has restored a waiting record of a kind.
    pub(super) fn restore(&mut self, kind: KindId) {
        self.kinds[kind].is_restored = true;
    }

    /// A process has ended, and these names are forgotten. `shown` is what the upstream shows of each kind, if
    /// what waited is lost.
    pub(super) fn restart(&mut self, names: &[String], shown: Option<[i64; KINDS.len()]>) {
        self.aliases.retain(|(name, _), _| !names.contains(name));
        for kind in 0..KINDS.len() {
            let tally = &mut self.kinds[kind];
            (tally.gone, tally.is_known_gone) = (None, false);
            tally.is_unread &= shown.is_none();
            (tally.is_counted_here, tally.is_restored) = (false, false);
            let Some(shown) = shown.map(|shown| shown[kind]) else { continue };
            assert!(shown <= tally.own + tally.others, "{kind}: {shown} {tally:?}");
            if shown == 0 {
                self.forget_lines(kind);
                self.kinds[kind] = Tally::default();
                continue;
            }
            tally.own = shown - tally.others;
            tally.log.retain(|(own, ..)| *own <= tally.own);
        }
    }

    /// After a loss by one of two replicas, it is not known whose lines were written.
    pub(super) fn doubt(&mut self, names: &[String]) {
        self.kinds.iter_mut().for_each(|tally| tally.log.clear());
        let of = |name: &String| (0..KINDS.len()).map(|kind| (name.clone(), line(kind))).collect::<Vec<_>>();
        self.unsure.extend(names.iter().flat_map(of));
    }
}
