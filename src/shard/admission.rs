//! Admission of occurrences that their clients are about to write to the upstream themselves. A client may create the
//! record if it could be written at once. eventweir counts and writes everything else, and the client is refused.

use std::time::Duration;

use super::prepared::Prepared;
use super::{Accepted, Full, Outcome, Shard, Shards};
use crate::clock::Now;
use crate::correlator::Policy;
use crate::event::Event;

/// The writer of an occurrence's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The client, as the first write of the record.
    Client,
    /// eventweir.
    Us,
}

/// Why an occurrence could not be checked, so that its client has to write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unable {
    /// The outbox has no room for a new record; the ledger counts the occurrences as rejected.
    Full,
    /// The shard was busy for too long; the ledger counts nothing.
    Late,
}

impl Shard {
    /// Accepts occurrences of an event. Lets the client write the event if it begins a record `as_it_is`.
    fn admit(
        &mut self,
        prepared: &Prepared<'_>,
        event: Event,
        occurrences: u32,
        as_it_is: bool,
        now: Now,
    ) -> Result<(Accepted, Writer), Full> {
        let name = event.metadata.name.clone();
        let accepted = self.accept_prepared(prepared, event, occurrences, now)?;
        let is_its_own = as_it_is
            && accepted.outcome == Outcome::Created
            && self.outbox.view(accepted.record).is_some_and(|seen| seen.event.metadata.name == name);
        let writer = if is_its_own && self.outbox.carry(accepted.record, now) { Writer::Client } else { Writer::Us };
        // Its group may have folded it.
        self.forget_folded(now);
        Ok((accepted, writer))
    }
}

impl Shards {
    /// Accepts occurrences of an event that its client is about to write. The client may write it if the event begins a
    /// record, stands for these occurrences `as_it_is`, and has its tokens.
    ///
    /// # Errors
    /// When nothing could be counted within `limit`.
    pub fn admit(
        &self,
        policy: &Policy,
        event: Event,
        occurrences: u32,
        as_it_is: bool,
        limit: Duration,
        caller: &str,
    ) -> Result<(Accepted, Writer), Unable> {
        let prepared = Prepared::new(self.0.secret, &event, policy, caller);
        let shard = &self.0.shards[self.shard_for(&event, prepared.source)];
        let shard = shard.try_lock_for(limit).ok_or(Unable::Late)?;
        self.0.mirror.show(&event, occurrences);
        let admit = |shard: &mut Shard, now| shard.admit(&prepared, event, occurrences, as_it_is, now);
        self.change(shard, admit).map_err(|_full| Unable::Full)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Messages, Naming, Rate, Settings};
    use crate::event::{EventSeries, ObjectMeta};
    use crate::outbox::{Answer, Applied, Fault, Request, Retry, UpstreamGroup};
    use crate::shard;

    fn event(count: i32) -> Event {
        let mut event = Event { count, reason: "BackOff".into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.metadata.name = "a".into();
        event.metadata.resource_version = "5".into();
        event
    }

    fn shard(writer: &str) -> Shard {
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        shard.identify(writer);
        shard.keep_journal();
        shard
    }

    fn admit(shard: &mut Shard, now: Now) -> Writer {
        let (policy, mut event) = (Policy::default(), event(1));
        event.metadata.resource_version = "".into();
        let prepared = Prepared::new(shard.secret, &event, &policy, "");
        shard.admit(&prepared, event.clone(), 1, true, now).unwrap().1
    }

    /// Drives a shard until nothing is owed, over an upstream that holds `held`, and returns the stored count.
    fn settled(shard: &mut Shard, mut held: Option<Event>) -> i32 {
        for second in 10..200 {
            let now = Now::at(second * 1_000_000_000);
            let changes = shard.take_changes();
            shard.changes_kept(&changes.held, now);
            while let Some(write) = shard.next_write(now) {
                let answer = match (write.request, &mut held) {
                    (Request::Create { .. }, Some(_)) => Answer::Exists,
                    (Request::Create { event, .. }, None) => {
                        held = Some((*event).clone());
                        Answer::Stored(event)
                    }
                    (Request::Patch { patch, claim, .. }, Some(held)) => {
                        let claim = claim.unwrap();
                        held.count = patch.count;
                        let annotations = &mut held.metadata.rare.get_or_insert_default().annotations;
                        annotations.insert(claim.tag.clone(), claim.value.clone());
                        Answer::Stored(Box::new(held.clone()))
                    }
                    (Request::Read { .. }, Some(held)) => Answer::Stored(Box::new(held.clone())),
                    _ => Answer::Missing,
                };
                shard.settle(write.record, answer, now);
                assert!(shard.balance().is_exact());
            }
        }
        assert!(!shard.owes());
        held.unwrap().count
    }

    #[test]
    fn what_a_client_was_allowed_before_a_crash_counts_once() {
        for (repeats, arrives) in [(0, true), (0, false), (2, true), (2, false)] {
            let now = Now::at(1_000_000_000);
            let mut earlier = shard("me");
            assert_eq!(admit(&mut earlier, now), Writer::Client);
            for _ in 0..repeats {
                assert_eq!(admit(&mut earlier, now), Writer::Us);
            }
            let (_, entry) = earlier.take_changes().records.pop().unwrap();
            let held = arrives.then(|| event(1));
            // Another record has shown the second later process that tags are kept.
            let mut proven = shard("later");
            let other = Event { reason: "Other".into(), ..event(1) };
            proven.accept(other, 1, now, &Policy::default()).unwrap();
            proven.write_all(now);
            for (mut shard, others) in [(earlier, 0), (shard("later"), 0), (proven, 1)] {
                if !shard.owes() {
                    shard.restore((*entry.clone().unwrap()).clone(), now, &Policy::default());
                }
                assert_eq!(settled(&mut shard, held.clone()), 1 + repeats, "{arrives}");
                assert_eq!(shard.balance().ledger.total_written(), u64::try_from(1 + repeats).unwrap() + others);
            }
        }
    }

    /// Fault: an occurrence vanished. Until an answer has shown a tag, a count that our patch could have written passes
    /// for ours, even if it is that of the client's own series.
    #[test]
    fn a_series_of_a_client_is_not_taken_for_a_patch_of_an_earlier_process() {
        let now = Now::at(1_000_000_000);
        let mut earlier = shard("me");
        assert_eq!(admit(&mut earlier, now), Writer::Client);
        earlier.apply_watch(&event(1), now, &Policy::default());
        assert_eq!(admit(&mut earlier, now), Writer::Us);
        let (_, entry) = earlier.take_changes().records.pop().unwrap();
        let mut later = shard("later");
        later.restore(*entry.unwrap(), now, &Policy::default());
        let series = Some(EventSeries { count: 2, last_observed_time: None });
        let mut held = Event { series, ..event(1) };
        held.metadata.resource_version = "6".into();
        assert_eq!(settled(&mut later, Some(held)), 3);
        assert_eq!(later.balance().ledger.total_written(), 1);
    }

    /// Fault: a repeat with another number in its message, or with another action, made the client's own create another
    /// event.
    #[test]
    fn a_repeat_before_the_upstream_shows_the_create_keeps_the_content_that_identifies_it() {
        let (mut shard, now) = (shard("me"), Now::at(1_000_000_000));
        let policy = Policy::from(Settings { messages: Messages::Normalized, ..Settings::default() });
        for (message, expected) in [("took 1 s", Writer::Client), ("took 22 s", Writer::Us)] {
            let mut event = Event { message: message.into(), action: message.into(), ..event(1) };
            event.metadata.resource_version = "".into();
            let prepared = Prepared::new(shard.secret, &event, &policy, "");
            assert_eq!(shard.admit(&prepared, event.clone(), 1, true, now).unwrap().1, expected);
        }
        let created = Event { message: "took 1 s".into(), action: "took 1 s".into(), ..event(1) };
        assert_eq!(settled(&mut shard, Some(created)), 2);
    }

    /// Fault: with plain writes, the same made our own create another event after its answer was lost.
    #[test]
    fn a_repeat_while_a_plain_create_is_in_doubt_keeps_the_content_that_identifies_it() {
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        let policy = Policy::from(Settings { messages: Messages::Normalized, ..Settings::default() });
        let [now, later] = [1, 10].map(|second| Now::at(second * 1_000_000_000));
        let message = |message: &str| Event { message: message.into(), action: message.into(), ..event(1) };
        shard.accept(message("took 1 s"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        let Request::Create { event: created, .. } = write.request else { panic!("it is new") };
        let retry = Retry::new(Fault::Timeout, Applied::Perhaps);
        shard.accept(message("took 22 s"), 1, now, &policy).unwrap();
        shard.settle(write.record, Answer::Retry(retry), now);
        shard.accept(message("took 333 s"), 1, now, &policy).unwrap();
        for answer in [Answer::Exists, Answer::Stored(created)] {
            assert!(shard.next_write(later).is_some());
            shard.settle(write.record, answer, later);
        }
        let next = shard.next_write(Now::at(20_000_000_000)).unwrap();
        assert!(
            matches!(&next.request, Request::Patch { name, patch, .. } if name == "a" && patch.count == 3),
            "{next:?}"
        );
    }

    /// Returns the request after a create, which the upstream has answered as `applied`, or that the name is taken. It
    /// holds the event with another number in its message, of another writer or without our tag.
    fn request_after_another_number(messages: Messages, applied: Option<Applied>) -> Request {
        let policy = Policy::from(Settings { messages, naming: Naming::Deterministic, ..Settings::default() });
        let (mut shard, [now, later]) = (shard("me"), [1, 10].map(|second| Now::at(second * 1_000_000_000)));
        let message = |message: &str| Event { message: message.into(), ..event(1) };
        shard.accept(message("took 1 s"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        let Request::Create { event: mut held, .. } = write.request else { panic!("it is new") };
        held.metadata.rare = None;
        if let Some(applied) = applied {
            let retry = Retry::new(Fault::Timeout, applied);
            shard.settle(write.record, Answer::Retry(retry), now);
            shard.accept(message("took 22 s"), 1, now, &policy).unwrap();
            assert!(matches!(shard.next_write(later).unwrap().request, Request::Create { .. }));
        } else {
            held.message = "took 22 s".into();
        }
        shard.settle(write.record, Answer::Exists, later);
        assert!(matches!(shard.next_write(later).unwrap().request, Request::Read { .. }));
        shard.settle(write.record, Answer::Stored(held), later);
        let held = shard.take_changes().held;
        shard.changes_kept(&held, later);
        shard.next_write(Now::at(20_000_000_000)).unwrap().request
    }

    /// Faults: two replicas had two records of one event. With a webhook that removes tags, an occurrence was shown
    /// twice if it was repeated while its create was in doubt.
    #[test]
    fn a_record_with_another_number_in_its_message_is_continued_if_messages_are_normalized() {
        for applied in [None, Some(Applied::Perhaps)] {
            let next = request_after_another_number(Messages::Normalized, applied);
            assert!(matches!(&next, Request::Patch { patch, .. } if patch.count == 2), "{next:?}");
        }
        let next = request_after_another_number(Messages::Exact, None);
        assert!(matches!(&next, Request::Create { event, .. } if event.count == 1), "{next:?}");
    }

    /// Fault: with `upstream.group: events`, the client's own create was taken for another event.
    #[test]
    fn an_old_style_event_that_its_client_has_created_is_continued_in_the_other_group() {
        for shows in [true, false] {
            let (mut settings, now) = (shard::Settings::default(), Now::at(1_000_000_000));
            settings.outbox.group = UpstreamGroup::Events;
            let mut shard = Shard::new(KeySecret(1, 2), settings, 1);
            shard.identify("me");
            // A name that only core/v1 accepts.
            let mut mine = event(1);
            (mine.metadata.name, mine.metadata.resource_version) = ("Web_0".into(), "".into());
            mine.source.component = "kubelet".into();
            let (policy, held) = (Policy::default(), mine.clone());
            let prepared = Prepared::new(shard.secret, &mine, &policy, "");
            let (_, writer) = shard.admit(&prepared, mine.clone(), 1, true, now).unwrap();
            assert_eq!(writer, Writer::Client);
            if shows {
                shard.apply_watch(&held, now, &policy);
                assert_eq!(shard.balance().total_waiting(), 0);
                continue;
            }
            let write = shard.next_write(Now::at(3_000_000_000)).unwrap();
            let Request::Read { name, .. } = write.request else { panic!("{write:?}") };
            assert_eq!(name, "Web_0");
            shard.settle(write.record, Answer::Stored(Box::new(held)), now);
            assert_eq!((shard.balance().total_waiting(), shard.owes()), (0, false));
        }
    }

    /// Fault: an earlier process's own patch was taken for another writer's, and its occurrences were written again.
    #[test]
    fn what_an_earlier_process_has_written_since_counts_once() {
        for is_shown in [false, true] {
            let now = Now::at(1_000_000_000);
            let mut earlier = shard("me");
            for writer in [Writer::Client, Writer::Us, Writer::Us] {
                assert_eq!(admit(&mut earlier, now), writer);
            }
            let (_, entry) = earlier.take_changes().records.pop().unwrap();
            let entry = *entry.unwrap();
            let mut held = event(3);
            held.metadata.rare.get_or_insert_default().annotations.insert(entry.tag.as_str().into(), "3@1".into());
            let mut later = shard("later");
            later.restore(entry, now, &Policy::default());
            if is_shown {
                later.apply_watch(&held, now, &Policy::default());
            }
            assert_eq!(settled(&mut later, Some(held)), 3, "{is_shown}");
            assert_eq!(later.balance().ledger.total_written(), 3);
        }
    }

    #[test]
    fn what_the_upstream_shows_by_itself_needs_no_request() {
        let (mut shard, now) = (shard("me"), Now::at(1_000_000_000));
        assert_eq!(admit(&mut shard, now), Writer::Client);
        assert_eq!(shard.next_write(now), None);
        shard.apply_watch(&event(1), now, &Policy::default());
        assert_eq!((shard.balance().ledger.total_written(), shard.balance().total_waiting()), (1, 0));
        assert_eq!(admit(&mut shard, now), Writer::Us);
        let write = shard.next_write(Now::at(5_000_000_000)).unwrap();
        let Request::Patch { patch, claim, .. } = write.request else { panic!("{write:?}") };
        assert_eq!((patch.count, claim.unwrap().resource_version.as_str()), (2, "5"));
    }

    /// Fault: the repeats waited for delivery's next turn, up to five seconds.
    #[test]
    fn delivery_is_woken_when_the_upstream_shows_what_a_client_was_allowed() {
        let (policy, clock) = (Policy::default(), Clock::manual(1_700_000_000_000_000_000));
        let shards = Shards::of(1, policy.clone(), clock);
        shards.identify("me");
        let new = Event { metadata: ObjectMeta { resource_version: "".into(), ..event(1).metadata }, ..event(1) };
        for writer in [Writer::Client, Writer::Us] {
            assert_eq!(shards.admit(&policy, new.clone(), 1, true, Duration::MAX, "").unwrap().1, writer);
        }
        while shards.woken().now_or_never().is_some() {}
        shards.apply_watch(&event(1));
        assert!(shards.woken().now_or_never().is_some());
        shards.apply_watch(&event(1));
        assert!(shards.woken().now_or_never().is_none(), "it brings nothing new");
    }

    /// Fault: an occurrence that folded when its client asked was counted on twice.
    #[test]
    fn what_folds_into_a_storm_when_its_client_asks_is_forgotten() {
        let policy = Policy::from(Settings { group: Some(Rate { qps: 0.0, burst: 1 }), ..Settings::default() });
        let (mut shard, now) = (shard("me"), Now::at(1_000_000_000));
        let numbered = |number: usize| {
            let mut event = event(1);
            event.metadata.name = format!("n{number}").into();
            event.involved_object.name = event.metadata.name.clone();
            event
        };
        for number in 0..1002 {
            let event = numbered(number);
            let prepared = Prepared::new(shard.secret, &event, &policy, "");
            shard.admit(&prepared, event.clone(), 1, true, now).unwrap();
        }
        let known = (0..1002).filter(|number| shard.find(&numbered(*number), now, &policy).is_some());
        // The first is its client's, and the storm record is known by no key.
        assert_eq!(known.count(), shard.sizes().records - 1);
    }

    #[test]
    fn a_client_takes_no_token_that_its_budget_or_group_has_given_away() {
        let object = Settings { burst_size: 1, qps: 0.0, ..Settings::default() };
        let group = Settings { group: Some(Rate { qps: 0.0, burst: 1 }), ..Settings::default() };
        for (base, is_sent) in [(object, false), (group, true)] {
            let policy = Policy::from(base);
            let (mut shard, now, mine) = (shard("me"), Now::at(1_000_000_000), event(1));
            shard.accept(Event { message: "other".into(), ..event(1) }, 1, now, &policy).unwrap();
            if is_sent {
                assert!(shard.next_write(now).is_some());
            }
            let prepared = Prepared::new(shard.secret, &mine, &policy, "");
            let (_, writer) = shard.admit(&prepared, mine.clone(), 1, true, now).unwrap();
            assert_eq!(writer, Writer::Us, "{is_sent}");
            assert_eq!(shard.balance().total_waiting(), 2);
        }
    }
}
