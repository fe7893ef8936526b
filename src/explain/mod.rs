//! What became of the occurrences of each object: the recent decisions about them, the records that count them, and how many there
//! were of late. For `explain`, `top` and the page of the admin port.
//!
//! Each shard has one [`Store`] behind its lock, and writes to it where it accepts an occurrence and where the outbox settles an
//! answer. Nothing is formatted there. A run of equal decisions takes one entry.

mod answer;
mod history;
mod marks;
mod recent;
mod sentence;
mod tap;

pub use answer::{Answer, Budget, Decided, Explanation, Known, Object, Part, Query, Record, Stored, clean, stamp};
pub use history::{Decision, Fact, History, Kept, Rates, Verdict};
pub use marks::Marks;
use marks::mark;
pub use recent::{Group, MINUTES, Minutes, Recent, Totals};
pub use tap::{Line, Selector, Tap, source};

use std::num::NonZeroUsize;

use smol_str::SmolStr;

use crate::clock::{Mono, Now};
use crate::correlator::{BuildKeyHasher, Key, KeySecret, LruMap, RecordId};
use crate::event::{Event, cut};
use crate::limits::Share;
use crate::outbox::Kind;

/// LIMIT: groups of like events that are counted, over all shards; further ones are counted together.
const GROUPS: usize = 10_000;

/// Nanoseconds within which an object is not put before the others again that were heard of before it.
const TOUCH: i64 = 1_000_000_000;

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether anything is.
    pub enabled: bool,
    /// LIMIT: bytes of all decisions over all shards; beyond it the object heard of longest ago is forgotten.
    pub max_bytes: NonZeroUsize,
    /// LIMIT: distinct messages of a combined record or digest.
    pub messages: usize,
    /// LIMIT: bytes of an annotation with those messages; 0 writes none.
    pub annotation_bytes: usize,
    /// LIMIT: label sets of the metric of groups; what is beyond is counted together.
    pub series: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: false,
            max_bytes: const { NonZeroUsize::new(16 << 20).unwrap() },
            messages: 10,
            annotation_bytes: 0,
            series: 500,
        }
    }
}

/// What one shard keeps.
#[derive(Debug)]
pub struct Store {
    settings: Settings,
    secret: KeySecret,
    // LIMIT: `max_bytes` over all shards.
    objects: LruMap<History>,
    bytes: Share,
    // LIMIT: `GROUPS` over all shards, and one for the rest.
    groups: Vec<Group>,
    group_count: Share,
    /// Bytes of groups, which are never forgotten.
    // LIMIT: a quarter of `max_bytes` over all shards; further groups are counted with the rest.
    group_bytes: Share,
    /// Where a group stands in `groups`.
    // LIMIT: as many as `groups`.
    places: std::collections::HashMap<Key, usize, BuildKeyHasher>,
    /// Occurrences and writes by the minute.
    flow: [Minutes; 2],
    /// How often each rule was chosen; the first is the number of events that no rule matches.
    // LIMIT: as many as rules, and one.
    rule_hits: Vec<u64>,
    /// Occurrences that were refused and could be read.
    rejected: u64,
    /// When the newest decision was made that was forgotten with its object.
    forgotten_until: Option<i64>,
    /// When the store began.
    began: Option<i64>,
}

/// The place of a fact: its object, and its number there.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    object: Key,
    fact: usize,
    group: usize,
}

/// Facts of which the upstream shows nothing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// How many.
    pub number: u64,
    /// Of the oldest: when it was received first, its namespace, object and reason.
    pub oldest: Option<(i64, SmolStr, String, SmolStr)>,
}

impl Unseen {
    /// Adds those of another store.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.number += other.number;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self
    }
}

/// How a decision came about.
#[derive(Debug, Clone, Copy)]
pub struct Ruling {
    /// The source of the event.
    pub source: Key,
    /// The budget that pays.
    pub budget: Key,
    /// How that fills.
    pub rate: crate::correlator::Rate,
    /// Whether the correlator itself pays (`suppression: drop`), and whether it has.
    pub paid: Option<bool>,
    /// The rule that matches.
    pub rule: Option<usize>,
    /// How many occurrences the record counted before.
    pub before: i32,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(settings: Settings, secret: KeySecret) -> Self {
        Self {
            settings,
            secret,
            objects: LruMap::default(),
            bytes: Share::default(),
            groups: vec![Group::default()],
            group_count: Share::default(),
            group_bytes: Share::default(),
            places: std::collections::HashMap::default(),
            flow: [Minutes::default(); 2],
            rule_hits: Vec::new(),
            rejected: 0,
            forgotten_until: None,
            began: None,
        }
    }

    /// An empty store whose limits are on what both hold.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            bytes: self.bytes.another(),
            group_count: self.group_count.another(),
            group_bytes: self.group_bytes.another(),
            ..Self::new(self.settings, self.secret)
        }
    }

    /// Takes over reloaded settings; hits are counted from zero, because the rules may be others.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.rule_hits.clear();
        if !settings.enabled {
            self.objects.clear();
            self.bytes.set(0);
            self.places.clear();
            self.groups.truncate(1);
            self.group_count.set(0);
            self.group_bytes.set(0);
        }
        self.trim(None);
    }

    /// Whether anything is kept.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.settings.enabled
    }

    /// Whether records are to carry their messages.
    #[must_use]
    pub const fn annotates(&self) -> bool {
        self.settings.enabled && self.settings.annotation_bytes > 0
    }

    /// Occurrences of an event arrive: finds the place of their fact. `None` where nothing is kept.
    pub fn receive(&mut self, marks: Marks, event: &Event, number: u32, now: Now) -> Option<Spot> {
        let spot = self.find(marks, event, number, now)?;
        self.flow[0].add(now.mono, number);
        self.groups[spot.group].receive(now.mono, number);
        Some(spot)
    }

    /// Finds the place of an event's fact, or makes it.
    pub fn spot(&mut self, marks: Marks, event: &Event, now: Now) -> Option<Spot> {
        self.find(marks, event, 0, now)
    }

    fn find(&mut self, marks: Marks, event: &Event, number: u32, now: Now) -> Option<Spot> {
        if !self.settings.enabled {
            return None;
        }
        self.find_known(marks, event, number, now).or_else(|| self.make(marks, event, number, now))
    }

    /// As `find`, where the object was heard of lately and has the fact. Hot: it stays where it is in the order of their use.
    fn find_known(&mut self, marks: Marks, event: &Event, number: u32, now: Now) -> Option<Spot> {
        let history = self.objects.peek_mut(&marks.object)?;
        if now.mono.nanos_since(history.touched) >= TOUCH {
            return None;
        }
        let place = history.find(marks.fact)?;
        let before = history.bytes();
        if history.set_uid(event, marks.uid) {
            self.bytes.replace(before, history.bytes());
        }
        let fact = &mut history.facts[place];
        if number > 0 {
            fact.receive(number, now);
        }
        Some(Spot { object: marks.object, fact: place, group: fact.group })
    }

    fn make(&mut self, marks: Marks, event: &Event, number: u32, now: Now) -> Option<Spot> {
        self.began.get_or_insert(now.wall);
        let object = marks.object;
        if !self.objects.contains(&object) {
            let history = History::new(event);
            self.bytes += history.bytes();
            self.objects.put(object, history);
        }
        let history = self.objects.get_mut(&object)?;
        history.touched = now.mono;
        let known = history.find(marks.fact).map(|place| (place, history.facts[place].group));
        let group = known.map_or_else(|| self.group(event), |(_, group)| group);
        let history = self.objects.peek_mut(&object)?;
        let before = history.bytes();
        history.set_uid(event, marks.uid);
        let place = known.map_or_else(|| history.add_fact(event, marks.fact, group, now), |(place, _)| place);
        if number > 0 {
            history.facts[place].receive(number, now);
        }
        self.bytes.replace(before, history.bytes());
        self.trim(Some(object));
        Some(Spot { object, fact: place, group })
    }

    fn group(&mut self, event: &Event) -> usize {
        let key = self.secret.group(event);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        if self.group_count.all() >= GROUPS {
            return 0;
        }
        let group = Group::of(event);
        let size = group.bytes();
        if self.group_bytes.all() + size > self.settings.max_bytes.get() / 4 {
            return 0;
        }
        self.group_bytes += size;
        self.groups.push(group);
        self.places.insert(key, self.groups.len() - 1);
        self.group_count.set(self.places.len());
        self.groups.len() - 1
    }

    /// Notes how occurrences were decided. Where the decision is not like the one before it, `next_token` is asked.
    #[expect(clippy::too_many_arguments, reason = "what is known of a decision")]
    pub fn decide(
        &mut self,
        spot: Spot,
        (verdict, number): (Verdict, u32),
        ruling: Ruling,
        (record, kind): (RecordId, Kind),
        (message, marks): (&SmolStr, Marks),
        now: Now,
        next_token: impl FnOnce() -> Option<Mono>,
    ) {
        let Some(hits) = self.hits(ruling.rule) else { return };
        *hits += u64::from(number);
        let messages = self.settings.messages;
        let Some(history) = self.objects.peek_mut(&spot.object) else { return };
        let before = history.bytes();
        let fact = &mut history.facts[spot.fact];
        fact.rule = ruling.rule;
        fact.budget = Some((ruling.source, ruling.budget, ruling.rate, ruling.paid.is_some()));
        match verdict {
            Verdict::Dropped => {
                fact.dropped += u64::from(number);
                self.groups[spot.group].totals.dropped += u64::from(number);
            }
            _ => fact.spent += u64::from(ruling.paid == Some(true)),
        }
        let is_begun_again = history.keep((record, kind), spot.fact, (message, marks.message, messages), ruling.before);
        let why = if is_begun_again && verdict != Verdict::Dropped { "evicted" } else { "" };
        history.note(spot.fact, (verdict, why), number, Some(record), (message, marks.message), now, next_token);
        self.bytes.replace(before, history.bytes());
        self.trim(Some(spot.object));
    }

    /// Notes something else about a fact: an answer of the upstream, a refusal, a deletion.
    pub fn remark(
        &mut self,
        spot: Spot,
        remark: (Verdict, &'static str),
        number: u64,
        record: Option<RecordId>,
        text: &str,
        now: Now,
    ) {
        let Some(history) = self.objects.peek_mut(&spot.object) else { return };
        let before = history.bytes();
        let fact = &mut history.facts[spot.fact];
        let totals = &mut self.groups[fact.group].totals;
        match remark.0 {
            Verdict::Rejected if number == 0 => fact.refused_changes += 1,
            Verdict::Rejected => {
                fact.rejected += number;
                totals.rejected += number;
                self.rejected += number;
            }
            Verdict::Lost => {
                fact.lost = (fact.lost.0 + number, remark.1);
                totals.lost += number;
            }
            _ => {}
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let text = (&SmolStr::new(cut(text, 512)), mark(self.secret, text));
        history.note(spot.fact, remark, number, record, text, now, || None);
        self.bytes.replace(before, history.bytes());
        self.trim(Some(spot.object));
    }

    /// The upstream has a record as it was sent, with so many occurrences more.
    pub fn written(
        &mut self,
        spot: Spot,
        (record, kind): (RecordId, Kind),
        (name, sent): (&SmolStr, i64),
        (message, marks): (&SmolStr, Marks),
        number: u64,
        now: Now,
    ) {
        let Some(history) = self.objects.peek_mut(&spot.object) else { return };
        let before = history.bytes();
        if history.kept(record).is_none() {
            // Of an earlier process, or a digest.
            let count = sent.saturating_sub(i64::try_from(number).unwrap_or(i64::MAX));
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            history.keep((record, kind), spot.fact, (message, marks.message, 1), count);
        }
        let grown = history.set_stored(record, name, sent);
        let fact = &mut history.facts[spot.fact];
        // A write shows what was dropped since the one before it, too.
        let shown = if fact.dropped > 0 { grown.max(number) } else { number };
        fact.shown += shown;
        fact.rates.writes.add(now.mono, 1);
        fact.last_shown = Some(now.wall);
        if fact.budget.is_none_or(|(.., is_prepaid)| !is_prepaid) {
            fact.spent += 1;
        }
        let group = &mut self.groups[spot.group];
        group.writes.add(now.mono, 1);
        group.totals.writes += 1;
        group.totals.shown += shown;
        self.flow[1].add(now.mono, 1);
        self.bytes.replace(before, history.bytes());
    }

    /// Occurrences of a fact have folded into a record.
    pub fn fold(
        &mut self,
        spot: Spot,
        (into, kind): (RecordId, Kind),
        name: &SmolStr,
        (message, marks): (&SmolStr, Marks),
        number: u64,
        now: Now,
    ) {
        let messages = self.settings.messages;
        let Some(history) = self.objects.peek_mut(&spot.object) else { return };
        let before = history.bytes();
        let fact = &mut history.facts[spot.fact];
        (fact.folded, fact.into) = (fact.folded + number, Some(into));
        self.groups[fact.group].totals.folded += number;
        history.keep((into, kind), spot.fact, (message, marks.message, messages), 0);
        if !name.is_empty() {
            history.set_stored(into, name, 0);
        }
        self.bytes.replace(before, history.bytes());
        self.remark(spot, (Verdict::Folded, ""), number, Some(into), "", now);
    }

    /// The newest messages of a record, as a JSON list of so many bytes at most, the newest last.
    #[must_use]
    pub fn messages(&self, object: Key, record: RecordId) -> Option<SmolStr> {
        let most = self.settings.annotation_bytes;
        if most == 0 {
            return None;
        }
        let mut left = most.saturating_sub(2);
        let fits = |(_, message): &(u64, SmolStr)| {
            let text = serde_json::to_string(message.as_str()).ok()?;
            left = left.checked_sub(text.len() + 1)?;
            Some(text)
        };
        let kept = self.objects.peek(&object)?.kept(record)?;
        let mut texts: Vec<String> = kept.messages.iter().rev().map_while(fits).collect();
        texts.reverse();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")).into())
    }

    /// The object of a place.
    #[must_use]
    pub const fn object(&self, spot: Spot) -> Key {
        spot.object
    }

    /// The upstream no longer has what a record was; the next occurrence begins another.
    pub fn ended(&mut self, object: Key, record: RecordId) -> Option<Spot> {
        let kept = self.objects.peek_mut(&object)?.kept_mut(record)?;
        kept.has_ended = true;
        let fact = kept.fact;
        Some(Spot { object, fact, group: 0 })
    }

    fn hits(&mut self, rule: Option<usize>) -> Option<&mut u64> {
        let place = rule.map_or(0, |rule| rule + 1);
        if self.rule_hits.len() <= place {
            self.rule_hits.resize(place + 1, 0);
        }
        self.rule_hits.get_mut(place)
    }

    /// Forgets objects heard of longest ago while there is too much; not this one.
    fn trim(&mut self, but: Option<Key>) {
        let limit = self.settings.max_bytes.get().saturating_sub(self.group_bytes.all());
        while self.bytes.is_over(limit) {
            let Some((key, history)) = self.objects.pop_lru() else { return };
            self.bytes -= history.bytes();
            let newest = history.decisions.back().map(|decision| decision.last);
            self.forgotten_until = self.forgotten_until.max(newest);
            if Some(key) == but {
                return;
            }
        }
    }

    /// Forgets objects heard of longest ago where other shards need the room.
    pub fn make_room(&mut self) {
        self.trim(None);
    }

    /// What is known of objects.
    pub fn histories(&self) -> impl Iterator<Item = &History> {
        self.objects.iter().map(|(_, history)| history)
    }

    /// Groups of like events; the first stands for those beyond the limit.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Occurrences and writes by the minute, the newest first.
    #[must_use]
    pub fn flow(&self, now: Mono) -> [[u32; MINUTES]; 2] {
        self.flow.map(|minutes| minutes.list(now))
    }

    /// The facts of the last hour of which the upstream shows nothing, of the namespaces that may be seen: how many, and since when the
    /// oldest waits.
    #[must_use]
    pub fn unseen(&self, is_seen: &dyn Fn(&str) -> bool, now: Mono) -> Unseen {
        let mut unseen = Unseen::default();
        for history in self.histories().filter(|history| is_seen(&history.namespace)) {
            for fact in history.facts.iter().filter(|fact| history.is_unseen(fact, now)) {
                unseen.number += 1;
                if unseen.oldest.as_ref().is_none_or(|(since, ..)| fact.first_received < *since) {
                    let object = format!("{}/{}", history.kind, history.name);
                    unseen.oldest = Some((fact.first_received, history.namespace.clone(), object, fact.reason.clone()));
                }
            }
        }
        unseen
    }

    /// How often each rule was chosen; the first is the number of events that no rule matches.
    #[must_use]
    pub fn rule_hits(&self) -> &[u64] {
        &self.rule_hits
    }

    /// When the store began, and when the newest decision was made that it has forgotten.
    #[must_use]
    pub const fn span(&self) -> (Option<i64>, Option<i64>) {
        (self.began, self.forgotten_until)
    }

    /// Occurrences that were refused and are noted with their object.
    #[must_use]
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Bytes of what is kept.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.own() + self.group_bytes.own()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::Rate;

    const SECRET: KeySecret = KeySecret(1, 2);

    fn event(object: usize, reason: &str, message: &str) -> Event {
        let mut event = Event { reason: reason.into(), message: message.into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.involved_object.name = format!("web-{object}").into();
        event.involved_object.uid = format!("{:036}", object + message.len() % 3).into();
        event
    }

    fn tell(store: &mut Store, event: &Event, record: u64, at: i64) {
        let (marks, now) = (Marks::new(SECRET, event), Now::at(at));
        let spot = store.receive(marks, event, 1, now).unwrap();
        let rate = Rate { qps: 1.0, burst: 1 };
        let ruling = Ruling { source: Key(1), budget: Key(2), rate, paid: None, rule: None, before: 0 };
        let record = (RecordId(record), Kind::Combined);
        store.decide(spot, (Verdict::Combined, 1), ruling, record, (&event.message, marks), now, || None);
    }

    fn store(bytes: usize) -> Store {
        Store::new(
            Settings { enabled: true, max_bytes: NonZeroUsize::new(bytes).unwrap(), ..Settings::default() },
            SECRET,
        )
    }

    #[test]
    fn bytes_stay_within_the_budget_whatever_arrives_and_are_what_is_there() {
        let mut store = store(100_000);
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..20_000 {
            let (reason, message) = (format!("R{}", random.u32(..60)), "m".repeat(random.usize(..3000)));
            tell(&mut store, &event(random.usize(..300), &reason, &message), random.u64(..40), number);
            assert!(store.bytes() <= 100_000 + 120_000, "one object may be as large as it may be");
        }
        let counted: usize = store.histories().map(History::counted).sum();
        assert_eq!(counted + store.group_bytes.own(), store.bytes());
        assert!(store.span().1.is_some());
        store.set_settings(Settings::default());
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn a_run_of_equal_decisions_is_one_entry_and_distinct_messages_are_kept() {
        let mut store = store(100_000);
        for number in 0..30 {
            tell(&mut store, &event(0, "R", &format!("m{}", number / 3)), 7, number);
        }
        let history = store.histories().next().unwrap();
        assert_eq!((history.decisions.len(), history.facts[0].received), (10, 30));
        assert_eq!(history.decisions[0].occurrences, 3);
        let kept: Vec<&str> = history.records[0].messages.iter().map(|(_, message)| message.as_str()).collect();
        assert_eq!(kept, ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"]);
    }

    #[test]
    fn groups_beyond_the_limit_are_counted_together() {
        let mut store = store(1 << 26);
        for number in 0..GROUPS + 5 {
            tell(&mut store, &event(0, &format!("R{number}"), "m"), 7, 1);
        }
        assert_eq!((store.groups().len(), store.groups()[0].totals.received), (GROUPS + 1, 5));
    }
}
