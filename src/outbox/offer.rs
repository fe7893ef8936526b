//! The outbox's interface to the correlators: offers of decided records, and records that a correlator must forget.

use smol_str::SmolStr;

use super::Outbox;
use super::budget::{Budget, BudgetId};
use super::groups::Reach;
use super::record::{Kind, Phase, Record};
use super::upstream_state::{Mark, StoredState, UpstreamState};
use crate::clock::{Mono, Now};
use crate::correlator::{Fold, Key, Known, Messages, Rate, RecordId};
use crate::event::Event;
use crate::ledger::{Occurrences, Why, WrittenAs};

/// A record that a correlator decided on, offered for writing.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The record.
    pub record: RecordId,
    /// Its source.
    pub source: Key,
    /// The correlator's key of the record.
    pub key: Key,
    /// Number of occurrences that the event adds.
    pub occurrences: u32,
    /// How the record shows them.
    pub fold: Fold,
    /// The correlator's knowledge of the record, used if the record is not in the outbox.
    pub known: Known,
    /// Rate of the budget that pays for the write when it has a token; `None` if the correlator has paid, or the write is
    /// free.
    pub rate: Option<Rate>,
    /// The spam key, which with the source selects the budget.
    pub budget: Key,
    /// Rate of its group's budget, if it has one.
    pub group: Option<Rate>,
    /// The part of a message in which its occurrences are equal.
    pub messages: Messages,
}

/// A record that its correlator must forget: the next occurrence begins a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct Forgotten {
    /// Its source.
    pub source: Key,
    /// The correlator's key of the record.
    pub key: Key,
    /// The record.
    pub record: RecordId,
    /// The record that its occurrences were folded into.
    pub into: RecordId,
    /// The kind of that record.
    pub kind: Kind,
    /// The name of that record, if another shard has it.
    pub name: SmolStr,
    /// Its occurrences with these.
    pub reach: Reach,
    /// The desired state of the forgotten record.
    pub event: Box<Event>,
    /// The number of occurrences of the forgotten record.
    pub number: u64,
}

impl Offer {
    /// Returns the rate of its group's budget; `None` if its write is free, or paid by its correlator.
    fn group_rate(&self) -> Option<Rate> {
        self.group.filter(|_| self.rate.is_some())
    }
}

impl Outbox {
    /// Takes a record's newer state. Returns the wait reason of its write, and whether delivery must be woken. A record
    /// that is queued already waits for its turn without a wakeup.
    pub fn offer(&mut self, offer: Offer, event: Event, now: Now) -> (Why, bool) {
        let (mut wakes_delivery, is_paid) = (true, offer.rate.is_none());
        let id = offer.record;
        let shown = match offer.fold {
            Fold::Created => WrittenAs::Created,
            Fold::Counted => WrittenAs::Counted,
            Fold::Combined => WrittenAs::Combined,
        };
        let occurrences = Occurrences::of(shown, u64::from(offer.occurrences));
        if let Some(mut record) = self.records.get_mut(&id) {
            let mut is_recharged = false;
            if let Some(rate) = offer.rate
                && (record.budget == BudgetId::prepaid(offer.source)
                    || self.budgets.peek(&record.budget.0).is_some_and(|budget| budget.fills_otherwise(rate)))
            {
                is_recharged = true;
                let is_prepaid = record.budget == BudgetId::prepaid(offer.source);
                let own = BudgetId::of_spam_key(offer.source, offer.budget);
                let budget = if is_prepaid { own } else { record.budget };
                self.charge(id, budget, rate, now);
                // The record is still here: a paid record does not fold.
                let Some(same) = self.records.get_mut(&id) else { return (Why::Budget, true) };
                record = same;
            }
            if record.changes_group(offer.group_rate()) {
                is_recharged = true;
                self.regroup(id, offer.group_rate(), now);
                // The record is still here, as above.
                let Some(same) = self.records.get_mut(&id) else { return (Why::Group, true) };
                record = same;
            }
            record.messages = offer.messages;
            record.absorb(event, &mut self.usage, self.settings.max_bytes.get());
            wakes_delivery = is_recharged || matches!(record.phase, Phase::Settled) || is_paid;
            let waits = match record.phase {
                Phase::Settled => None,
                Phase::Queued(_) | Phase::Staged(_) if wakes_delivery => None,
                _ => Some(record.why(&self.budgets)),
            };
            if waits.is_some() {
                record.gain(occurrences, now.mono, now.mono);
                record.paid |= is_paid;
            }
            self.note(id);
            if let Some(why) = waits {
                return (why, is_recharged);
            }
            if is_paid {
                // After a reload from `defer` to `drop`, its correlator pays for a record that waited for a token.
                self.change_in_queue(id, now, |record| record.paid = true);
            }
        } else {
            self.insert(offer, event, now.mono);
            self.note(id);
        }
        self.owe(id, occurrences, now.mono, now);
        (self.why(id), wakes_delivery)
    }

    /// Whether the next write of a record is due before the record leaves the outbox. Delivery knows that time only,
    /// and a record stays for longer after a doubtful create.
    pub fn is_due_early(&self, id: RecordId) -> bool {
        self.records.get(&id).is_some_and(|record| record.next_write < record.goes_at())
    }

    fn insert(&mut self, offer: Offer, event: Event, now: Mono) {
        let budget_id = match offer.rate {
            None => BudgetId::prepaid(offer.source),
            Some(_) => BudgetId::of_spam_key(offer.source, offer.budget),
        };
        let budget = self.budget(budget_id, || Budget::new(offer.source, offer.rate));
        if let Some(rate) = offer.rate {
            budget.set_rate(rate, now);
        }
        budget.members += 1;
        let Known { stored, count, tag } = offer.known;
        let version = if offer.known.stored { event.metadata.resource_version.clone() } else { SmolStr::default() };
        let kind = if offer.fold == Fold::Combined { Kind::Combined } else { Kind::Plain };
        let mut record = Record::new(offer.source, budget_id, kind, event, now);
        (record.key, record.messages) = (offer.key, offer.messages);
        record.tag = self.own_tag(offer.record);
        record.total = tag;
        record.paid = offer.rate.is_none();
        record.group = offer.group_rate().map(|rate| self.groups.of(&record.event, rate));
        if stored {
            record.upstream =
                UpstreamState::Stored(StoredState { version, count: count.into(), tag, ..StoredState::default() });
        }
        // A record that was deleted is created again with its running count, and never folds.
        record.sent = Mark { count: count.into(), tag };
        self.put(offer.record, record);
        self.trim_budgets(now);
    }

    /// Changes the budget of a record after a reload: from prepaid to its own if `drop` became `defer`, to that of
    /// another spam key, or to a new rate.
    pub(super) fn charge(&mut self, id: RecordId, to: BudgetId, rate: Rate, now: Now) {
        let Some(record) = self.records.get(&id) else { return };
        let (before, source) = (record.budget, record.source);
        let is_staged = matches!(record.phase, Phase::Staged(_));
        if before != to {
            self.budget(to, || Budget::new(source, Some(rate))).members += 1;
            if let Some(record) = self.records.get_mut(&id).filter(|_| is_staged) {
                // It is in the queue of its group.
                record.budget = to;
            } else {
                self.change_in_queue(id, now, |record| record.budget = to);
            }
            if let Some(budget) = self.budgets.peek_mut(&before.0) {
                budget.members -= 1;
            }
            self.drop_if_idle(before, now.mono);
        }
        if let Some(budget) = self.budgets.peek_mut(&to.0) {
            budget.set_rate(rate, now.mono);
        }
        self.refile(to, now.mono);
    }

    /// Changes members of a record that determine its place in a queue: removes it from the queue, changes it and
    /// queues it again.
    pub(super) fn change_in_queue(&mut self, id: RecordId, now: Now, change: impl FnOnce(&mut Record)) {
        let record = self.records.get(&id);
        let queued = record.is_some_and(|record| matches!(record.phase, Phase::Queued(_) | Phase::Staged(_)));
        self.unqueue(id);
        if let Some(record) = self.records.get_mut(&id) {
            change(record);
        }
        if queued {
            self.enqueue(id, now);
        }
    }

    /// Adds occurrences, waiting since `since`, that no request carries yet, and lets the record wait if it was
    /// settled.
    pub(super) fn owe(&mut self, id: RecordId, occurrences: Occurrences, since: Mono, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.gain(occurrences, since, now.mono);
        match record.phase {
            Phase::Settled if record.next_write <= now.mono || self.draining => self.enqueue(id, now),
            Phase::Settled => {
                record.phase = Phase::Cooling;
                self.set_record_timer(id);
            }
            Phase::Cooling | Phase::Queued(_) | Phase::Staged(_) | Phase::InFlight(_) | Phase::Backoff(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Offer;
    use crate::clock::Now;
    use crate::correlator::{Fold, Key, KeySecret, Known, Messages, Policy, Rate, RecordId, Settings, Suppression};
    use crate::event::{ApiGroup, Event, EventSeries, MicroTime, ObjectReference, RareMeta, Time};
    use crate::outbox::Request;
    use crate::shard::{self, Outcome, Shard};

    impl Offer {
        /// Returns the offer of a new record of this number, of which nothing is known.
        pub(in crate::outbox) fn of(number: u64, rate: Option<Rate>) -> Self {
            Self {
                record: RecordId(number),
                source: Key(1),
                key: Key(number.into()),
                occurrences: 1,
                fold: Fold::Created,
                known: Known::default(),
                rate,
                budget: Key(2),
                group: None,
                messages: Messages::Exact,
            }
        }
    }

    /// Less than the coalescing interval, so that the record never leaves the outbox.
    const STEP: i64 = 500_000_000;

    fn policy(suppression: Suppression, qps: f32) -> Policy {
        Policy::from(Settings { suppression, burst_size: 2, qps, ..Settings::default() })
    }

    /// Reports the same event in each step. Returns the steps in which it was written.
    fn written(shard: &mut Shard, steps: std::ops::Range<i64>, policy: &Policy) -> Vec<i64> {
        let mut written = Vec::new();
        for step in steps {
            let now = Now::at(step * STEP);
            let event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            shard.accept(event, 1, now, policy).unwrap();
            written.extend(shard.write_all(now).iter().map(|_| step));
        }
        written
    }

    /// Fault: its writes stayed free while it was repeated.
    #[test]
    fn a_record_pays_from_its_budget_after_a_reload_from_drop_to_defer() {
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        written(&mut shard, 1..4, &policy(Suppression::Drop, 0.0));
        let after = written(&mut shard, 4..400, &policy(Suppression::Defer, 0.02));
        // The burst, and one token per hundred steps.
        assert_eq!(after.len(), 2 + 3, "{after:?}");
        // And back.
        let after = written(&mut shard, 400..410, &policy(Suppression::Drop, 2.0));
        assert!(after.len() >= 4, "{after:?}");
    }

    /// Fault: its budget kept waiting for the token of the old rate, or for none.
    #[test]
    fn a_reloaded_rate_applies_to_what_waits_already() {
        for before in [0.0, 0.001] {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            assert_eq!(written(&mut shard, 1..10, &policy(Suppression::Defer, before)).len(), 2);
            let after = written(&mut shard, 10..20, &policy(Suppression::Defer, 1.0));
            assert!(after.len() >= 4, "{after:?}");
        }
    }

    /// Fault: a record kept the group budget, or had none, for as long as it was repeated.
    #[test]
    fn a_reloaded_group_budget_applies_to_what_is_repeated() {
        let policy = |suppression, group| {
            Policy::from(Settings { suppression, burst_size: 1000, qps: 100.0, group, ..Settings::default() })
        };
        let low = Some(Rate { qps: 0.02, burst: 2 });
        for before in [policy(Suppression::Defer, None), policy(Suppression::Drop, low)] {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            assert!(written(&mut shard, 1..41, &before).len() >= 19);
            // The burst, and one token per hundred steps.
            let after = written(&mut shard, 41..441, &policy(Suppression::Defer, low));
            assert!((5..=6).contains(&after.len()), "{after:?}");
            // And back, while it waits for the next token.
            assert!(written(&mut shard, 441..481, &before).len() >= 19);
        }
    }

    /// Ways in which a repeat may differ from what was counted before it.
    const CHANGES: [fn(&mut Event); 12] = [
        |event| event.type_meta = Some(ApiGroup::Core),
        |event| event.metadata.uid = "u".into(),
        |event| event.metadata.creation_timestamp = Some(Time(5)),
        |event| event.metadata.rare.get_or_insert_default().labels = [("a".into(), "b".into())].into(),
        |event| event.involved_object.resource_version = "7".into(),
        |event| event.last_timestamp = Some(Time(9)),
        |event| event.series = Some(EventSeries { count: 3, last_observed_time: Some(MicroTime(4)) }),
        |event| event.action = "Pull".into(),
        |event| event.reporting_controller = "kubelet".into(),
        |event| event.reporting_instance = "node-1".into(),
        |event| event.related = Some(Box::new(ObjectReference { name: "x".into(), ..ObjectReference::default() })),
        |event| event.metadata.rare = Some(Box::new(RareMeta { finalizers: vec!["f".into()], ..RareMeta::default() })),
    ];

    #[test]
    fn what_is_counted_has_the_content_of_its_newest_occurrence() {
        for change in CHANGES {
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            let (policy, now) = (Policy::default(), Now::at(1_000_000_000));
            let mut event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            event.metadata.name = "a".into();
            event.source.component = "kubelet".into();
            shard.accept(event.clone(), 1, now, &policy).unwrap();
            change(&mut event);
            assert_eq!(shard.accept(event.clone(), 1, now, &policy).unwrap().outcome, Outcome::Counted);
            let Request::Create { event: written, .. } = shard.next_write(now).unwrap().request else {
                unreachable!("nothing was stored")
            };
            assert_eq!(*written, Event { count: 2, ..event });
        }
    }

    /// Counts events of one group, each with its own message, so that all from the third are combined. Applies `change`
    /// before the sixth. Returns the last create.
    fn written_of_group(first: &Event, change: fn(&mut Event)) -> Event {
        let max_events = const { std::num::NonZeroUsize::new(2).unwrap() };
        let policy = Policy::from(Settings { max_events, ..Settings::default() });
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        let (now, mut outcomes, mut event) = (Now::at(1_000_000_000), Vec::new(), first.clone());
        for number in 0..7 {
            if number == 5 {
                change(&mut event);
            }
            event.message = format!("no room on node {number}").into();
            outcomes.push(shard.accept(event.clone(), 1, now, &policy).unwrap().outcome);
        }
        assert_eq!(*outcomes.last().unwrap(), Outcome::Combined);
        let writes = std::iter::from_fn(|| shard.next_write(now)).filter_map(|write| match write.request {
            Request::Create { event, .. } => Some(*event),
            Request::Patch { .. } | Request::Read { .. } | Request::Delete { .. } => None,
        });
        writes.last().unwrap()
    }

    #[test]
    fn a_combined_event_has_the_content_of_its_newest_occurrence() {
        let mut old_style = Event { count: 1, reason: "Failed".into(), ..Event::default() };
        old_style.metadata.name = "a".into();
        old_style.source.component = "kubelet".into();
        let new_style = Event { event_time: Some(MicroTime(5)), action: "Bind".into(), ..old_style.clone() };
        for first in [old_style, new_style] {
            let written = written_of_group(&first, |event| {
                event.involved_object.field_path = "spec".into();
                event.reporting_controller = "kubelet".into();
                event.reporting_instance = "node-1".into();
            });
            assert_eq!(written.message, "(combined from similar events): no room on node 6");
            assert_eq!(written.event_time.is_some(), first.event_time.is_some());
            assert_eq!(written.involved_object.field_path, "spec");
            assert_eq!((&*written.reporting_controller, &*written.reporting_instance), ("kubelet", "node-1"));
        }
    }
}
