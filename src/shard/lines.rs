//! Client lines: how far clients have counted under their names, here, in an earlier process, or in another replica.

use std::num::NonZeroUsize;

use smol_str::SmolStr;

use super::{Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Candidate, Decision, Key, Naming, Policy, Settings};
use crate::event::{Event, ObjectMeta};
use crate::outbox::{self, ClientLine, line_checksum};

/// LIMIT: lines of one shard, of some 100 bytes each. The least recently used line is evicted, and its client's
/// next total counts in full.
const LINES_MAX: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// How far a client has counted under one name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    /// By its line, or by its requests to this process.
    stated: i32,
    /// Whether more than was known was read after the client's last request to this process. Then another process has a
    /// larger total than the alias here.
    is_news: bool,
    /// By the count of an object without its line. A writer that ignores lines may have added to that count.
    implied: i32,
    /// When its event was deleted. Other records may still have the line from before, which says nothing of the
    /// client's next event.
    deleted: i32,
}

impl Total {
    /// Returns the largest total that is known, unless none is.
    fn known(self) -> Option<i32> {
        Some(self.stated.max(self.implied)).filter(|total| *total > 0)
    }
}

impl Shard {
    /// Returns how far the client of `event` has counted under `name`, according to its line. Without a line, returns
    /// the count of the record of that exact name, with its waiting occurrences. Returns 0 without either.
    pub fn counted_under(&mut self, event: &Event, name: &str, now: Now, policy: &Policy) -> i64 {
        let (source, checksum) = (self.secret.source(event), line_checksum(event));
        let read = self.lines.get(&self.secret.line(source, &event.metadata.namespace, name, checksum));
        let read = read.and_then(|total| total.known());
        let Some(correlator) = self.sources.peek(&source) else { return read.unwrap_or(0).into() };
        let (mut line, mut count) = (read, None);
        for Candidate { observation, .. } in correlator.candidates(event, now, policy.select(event)) {
            line = line.max(self.outbox.line(observation.record, name, checksum));
            let seen = self.outbox.view(observation.record);
            let known = seen.map_or(&observation.name, |seen| &seen.event.metadata.name);
            if known == name {
                count = count.or(Some(observation.count));
            }
        }
        line.or(count).unwrap_or(0).into()
    }

    /// Returns how far the client of `event` has counted under the event's name, by the line of another process. `None`
    /// if the client's last request to this process is newer. Older totals do not count: the client may have begun
    /// again under its name.
    pub fn line_of(&mut self, event: &Event) -> Option<i32> {
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        let source = self.secret.source(event);
        let total = self.lines.get(&self.secret.line(source, namespace, name, line_checksum(event)))?;
        // Without lines, no request of the client would end the news.
        (total.is_news && self.outbox.writes_lines()).then_some(total.stated)
    }

    /// Sets the line of a client back to the total of `event`, because its later total was refused in the answer.
    pub fn take_back_line(&mut self, event: &Event, total: i32, now: Now, policy: &Policy) {
        let line = ClientLine { total, ..ClientLine::of(event) };
        let source = self.secret.source(event);
        let key = self.secret.line(source, &event.metadata.namespace, &line.name, line.checksum);
        if total > 0 {
            // Without it, another client that joins the record would leave the record's whole count to this one.
            self.change(key, |known| (known.stated, known.is_news) = (total, false));
        } else {
            self.lines.pop(&key);
        }
        let Some(correlator) = self.sources.peek(&source) else { return };
        for Candidate { observation, .. } in correlator.candidates(event, now, policy.select(event)) {
            self.outbox.take_back_line(observation.record, &line);
        }
    }

    /// Notes how far the client of an accepted occurrence has counted. If it is the first to join a record under
    /// another client's name, the record's earlier count belongs to the client of that name.
    pub(super) fn note_line(
        &mut self,
        decision: &Decision,
        source: Key,
        namespace: &str,
        line: ClientLine,
        settings: &Settings,
    ) {
        let checksum = line.checksum;
        self.tell_line(source, namespace, &line);
        let Some((namespace, name)) = self.outbox.put_line(decision.record, line) else { return };
        let known = self.lines.peek(&self.secret.line(source, &namespace, &name, checksum));
        let total = match (known, settings.naming) {
            (Some(Total { stated: total @ 1.., .. }), _) => *total,
            // The name is not a client's, unless it is from before a reload.
            (_, Naming::Deterministic) => return,
            (known, Naming::Client) => known.and_then(|total| total.known()).unwrap_or(decision.known.count),
        };
        self.outbox.put_line(decision.record, ClientLine { name, checksum, total });
    }

    /// Reads the client lines of an upstream object. Records are tracked per source, so all lines of a record are of
    /// clients with the object's own source. Any writer may have set others.
    pub(super) fn read_lines(&mut self, object: &Event) {
        if self.is_deleted(object) {
            return;
        }
        let (source, namespace) = (self.secret.source(object), object.metadata.namespace.as_str());
        if let Some(count) = self.outbox.clients_series(object) {
            let key = self.secret.line(source, namespace, &object.metadata.name, line_checksum(object));
            self.change(key, |total| {
                total.is_news |= count > total.stated;
                total.stated = total.stated.max(count);
            });
        }
        let (mut has_own, is_current) = (false, self.outbox.writes_lines() || ClientLine::are_current(object));
        for line in ClientLine::on(object).filter(|_line| is_current) {
            has_own |= line.name == object.metadata.name;
            self.put_line(source, &object.metadata, &line);
        }
        // Where writes carry lines, the client of the object's name has counted all of it if there is none.
        if !has_own && self.outbox.writes_lines() {
            let line = ClientLine { total: outbox::count(object), ..ClientLine::of(object) };
            if line.total > 1 && ClientLine::is_omitted(object) {
                self.put_line(source, &object.metadata, &line);
            } else if line.total > 1 {
                self.imply_line(source, namespace, &line);
            }
        }
    }

    /// Notes how far the clients of equal upstream events have counted, under the names of these events. The shard
    /// tracks only one of several equal events.
    pub(super) fn note_rival(&mut self, object: &Event, count: i32, now: Now, settings: &Settings) {
        let source = self.secret.source(object);
        let Some(correlator) = self.sources.peek(&source) else { return };
        let keys = self.secret.keys(object, settings);
        let Some(tracked) = correlator.find(object, &keys, now, settings) else { return };
        let (namespace, checksum) = (&object.metadata.namespace, line_checksum(object));
        let own = |name: &SmolStr, total| ClientLine { name: name.clone(), checksum, total };
        for line in [own(&tracked.name, tracked.count), own(&object.metadata.name, count)] {
            let key = self.secret.line(source, namespace, &line.name, checksum);
            if self.lines.peek(&key).and_then(|total| total.known()).is_none() {
                self.imply_line(source, namespace, &line);
            }
        }
    }

    /// Stores the total of a client's request, because the record's key may be evicted before its write has brought the
    /// line back. The first of a series needs no line, unless the name has one.
    fn tell_line(&mut self, source: Key, namespace: &str, line: &ClientLine) {
        let key = self.secret.line(source, namespace, &line.name, line.checksum);
        if line.total > 1 || self.lines.contains(&key) {
            self.change(key, |total| (total.stated, total.is_news) = (total.stated.max(line.total), false));
        }
    }

    /// Notes that a client's event is deleted: its next event under the name counts from 0.
    pub(super) fn end_line(&mut self, key: Key) {
        let known = self.lines.pop(&key).map_or(0, |total| total.deleted.max(total.stated));
        if known > 0 {
            self.change(key, |total| total.deleted = known);
        }
    }

    /// Stores a line that was read on a record. Its total only grows. On a record of another name it may be from before
    /// its client's event was deleted.
    pub(super) fn put_line(&mut self, source: Key, record: &ObjectMeta, line: &ClientLine) {
        let key = self.secret.line(source, &record.namespace, &line.name, line.checksum);
        self.change(key, |total| {
            let deleted = if line.name == record.name { 0 } else { total.deleted };
            if line.total > total.stated.max(deleted) {
                total.stated = line.total;
                // A line may say no more than an object without it did: another client's write has added it.
                total.is_news |= line.total > total.implied;
            }
        });
    }

    /// Stores what an object without the line of its own name suggests.
    fn imply_line(&mut self, source: Key, namespace: &str, line: &ClientLine) {
        let key = self.secret.line(source, namespace, &line.name, line.checksum);
        self.change(key, |total| total.implied = total.implied.max(line.total));
    }

    fn change(&mut self, key: Key, change: impl FnOnce(&mut Total)) {
        let mut total = self.lines.peek(&key).copied().unwrap_or_default();
        change(&mut total);
        self.lines.put_within(key, total, LINES_MAX);
    }
}

impl Shards {
    /// Whether writes carry the lines of clients.
    pub fn writes_lines(&self) -> bool {
        self.look(0, |shard| shard.outbox.writes_lines())
    }

    /// As [`Shard::line_of`].
    pub fn line_of(&self, event: &Event) -> Option<i32> {
        self.with(self.shard_of(event), |shard, _| shard.line_of(event))
    }

    /// As [`Shard::take_back_line`].
    pub fn take_back_line(&self, event: &Event, total: i32) {
        let policy = self.policy();
        self.with(self.shard_of(event), |shard, now| shard.take_back_line(event, total, now, &policy));
    }

    /// As [`Shard::counted_under`].
    pub fn counted_under(&self, event: &Event, name: &str) -> i64 {
        let policy = self.policy();
        self.with(self.shard_of(event), |shard, now| shard.counted_under(event, name, now, &policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::KeySecret;
    use crate::outbox::Answer;
    use crate::shard::Settings;

    #[test]
    fn the_line_that_was_read_longest_ago_is_forgotten() {
        let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
        let (event, policy) = (Event::default(), Policy::default());
        let source = shard.secret.source(&event);
        let put = |shard: &mut Shard, number: usize, total| {
            let (name, checksum) = (format!("n{number}").into(), line_checksum(&event));
            shard.put_line(source, &event.metadata, &ClientLine { name, checksum, total });
        };
        for number in 0..=LINES_MAX.get() {
            put(&mut shard, number, 7);
        }
        put(&mut shard, 1, 3);
        let mut counted = |name| shard.counted_under(&event, name, Now::at(0), &policy);
        assert_eq!([counted("n0"), counted("n1"), counted("n2")], [0, 7, 7]);
        let other = Event { reason: "Other".into(), ..event };
        assert_eq!(shard.counted_under(&other, "n1", Now::at(0), &policy), 0);
    }

    /// Fault: any event upstream could state a total of another component's client, whose next totals then counted nothing.
    #[test]
    fn an_object_states_lines_of_its_own_source_only() {
        let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
        shard.identify("me");
        let event = |component: &str, name: &str| {
            let mut event = Event { reason: "BackOff".into(), ..Event::default() };
            event.source.component = component.into();
            event.metadata.name = name.into();
            event
        };
        let victim = event("kubelet", "a");
        let mut counted = |component: &str, total| {
            let mut object = event(component, "b");
            let line = format!("{total} {:08x} a 9", line_checksum(&victim));
            let annotations = &mut object.metadata.rare.get_or_insert_default().annotations;
            annotations.insert("line.eventweir/00".into(), line.into());
            shard.apply_watch(&object, Now::at(0), &Policy::default());
            (shard.counted_under(&victim, "a", Now::at(0), &Policy::default()), shard.line_of(&victim))
        };
        assert_eq!(counted("shop", i32::MAX), (0, None));
        assert_eq!(counted("kubelet", 7), (7, Some(7)));
    }

    /// Fault: the totals of a deleted event's successor did not count as news, if another replica had counted them.
    #[test]
    fn after_a_delete_old_lines_are_those_on_other_records() {
        let event = Event { reason: "BackOff".into(), ..Event::default() };
        let named = |name: &str, line: &str| {
            let mut object = event.clone();
            object.metadata.name = name.into();
            let line = format!("{line} {:08x} a 9", line_checksum(&event)).into();
            object.metadata.rare.get_or_insert_default().annotations.insert("line.eventweir/00".into(), line);
            object
        };
        for (read, known) in [(named("b", "5"), None), (named("b", "6"), Some(6)), (named("a", "4"), Some(4))] {
            let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
            shard.identify("me");
            shard.read_lines(&named("a", "5"));
            let client = named("a", "0");
            assert_eq!(shard.line_of(&client), Some(5));
            let source = shard.secret.source(&client);
            shard.end_line(shard.secret.line(source, "", "a", line_checksum(&client)));
            shard.read_lines(&read);
            assert_eq!(shard.line_of(&client), known);
        }
    }

    /// Fault: what another replica had counted alone, without a line, was no news, and the client's next total here
    /// brought it again.
    #[test]
    fn what_another_replica_has_counted_alone_is_news() {
        for (tags, news) in [(&["50@1"][..], Some(50)), (&["49@1"], None), (&["50@1", "0@1"], None), (&[], None)] {
            let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
            shard.identify("me");
            let (policy, now) = (Policy::default(), Now::at(0));
            let client = |count| Event { count, ..Event::default() };
            shard.accept(client(3), 3, now, &policy).unwrap();
            let mut object = client(50);
            let tags = tags.iter().enumerate().map(|(at, tag)| (format!("tally.eventweir/it.0.{at}"), *tag));
            let annotations = &mut object.metadata.rare.get_or_insert_default().annotations;
            annotations.extend(tags.map(|(name, tag)| (name.into(), tag.into())));
            shard.read_lines(&object);
            assert_eq!(shard.line_of(&client(51)), news);
            shard.accept(client(51), 1, now, &policy).unwrap();
            assert_eq!(shard.line_of(&client(52)), None);
        }
    }

    /// Fault: after a change to `upstream.writes: plain`, the lines of the exact process, which nothing replaces, were
    /// believed for ever.
    #[test]
    fn without_lines_of_its_own_a_process_believes_those_of_the_present_count() {
        for (count, counted) in [(8, 5), (14, 14)] {
            let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
            let (client, policy, now) = (Event { count, ..Event::default() }, Policy::default(), Now::at(0));
            let mut object = client.clone();
            let line = format!("5 {:08x}  8", line_checksum(&client)).into();
            object.metadata.rare.get_or_insert_default().annotations.insert("line.eventweir/00".into(), line);
            shard.apply_watch(&object, now, &policy);
            assert_eq!((shard.counted_under(&client, "", now, &policy), shard.line_of(&client)), (counted, None));
        }
    }

    /// Fault: the client of the older event counted its whole total again.
    #[test]
    fn of_two_equal_events_both_state_the_totals_of_their_clients() {
        let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
        let policy = Policy::default();
        for (name, count) in [("a", 3), ("b", 5)] {
            let mut event = Event { count, ..Event::default() };
            (event.metadata.name, event.metadata.resource_version) = (name.into(), count.to_string().into());
            shard.apply_watch(&event, Now::at(0), &policy);
        }
        let counted = ["a", "b"].map(|name| shard.counted_under(&Event::default(), name, Now::at(0), &policy));
        assert_eq!(counted, [3, 5]);
    }

    /// Fault: after a reload of the naming, a record lost the line of the client that had named it, and its next total
    /// brought less.
    #[test]
    fn another_clients_write_keeps_the_line_of_the_records_name_whatever_the_naming() {
        for naming in [Naming::Client, Naming::Deterministic] {
            let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
            shard.identify("me");
            let policy = |naming| Policy::from(crate::correlator::Settings { naming, ..Default::default() });
            let event = |name: &str, count| {
                let mut event = Event { count, reason: "BackOff".into(), ..Event::default() };
                event.metadata.name = name.into();
                event
            };
            let first = shard.accept(event("a", 2), 2, Now::at(0), &policy(Naming::Client)).unwrap();
            let write = shard.next_write(Now::at(0)).unwrap();
            shard.settle(write.record, Answer::Stored(Box::new(event("a", 2))), Now::at(0));
            let later = Now::at(3_600_000_000_000);
            assert_eq!(shard.next_write(later), None);
            shard.accept(event("b", 1), 1, later, &policy(naming)).unwrap();
            let line = shard.outbox.line(first.record, "a", line_checksum(&event("a", 2)));
            assert_eq!(line, Some(2), "{naming:?}");
        }
    }
}
