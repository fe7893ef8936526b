//! Clients that wait until their occurrence is settled (`ack: written`). Pure: a ticket is a number, which the
//! settlement that resolves it returns.

use std::collections::HashMap;

use super::request::Refusal;
use super::{Outbox, Settlement};
use crate::correlator::RecordId;
use crate::event::Event;

/// A waiting client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// The answer to a waiting client.
#[derive(Debug, Clone, PartialEq)]
pub enum TicketOutcome {
    /// The upstream holds the record.
    Written(Box<Event>),
    /// The upstream has refused the record finally.
    Refused(Refusal),
}

/// Behaviour if the name of a record is taken and a client waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTaken {
    /// The record is adopted, or gets another name.
    Rename,
    /// The client gets the conflict, as from the API server.
    Refuse,
}

/// Tickets by record.
// LIMIT: one ticket per event of a request that is being answered, which connections and bodies limit. A record without
// waiting clients has no entry.
#[derive(Debug, Default)]
pub(super) struct Tickets(HashMap<RecordId, Waiting, foldhash::fast::FixedState>);

#[derive(Debug, Default)]
struct Waiting {
    /// Tickets of occurrences that no request carries yet.
    pending: Vec<Ticket>,
    /// Tickets of occurrences in flight.
    sent: Vec<Ticket>,
    refuse_taken: bool,
}

impl Tickets {
    /// Marks the pending tickets of a record as in flight.
    pub(super) fn send(&mut self, record: RecordId) {
        if let Some(waiting) = self.0.get_mut(&record) {
            waiting.sent.append(&mut waiting.pending);
        }
    }

    /// Resolves the tickets of a record that were in flight.
    pub(super) fn resolve(&mut self, record: RecordId, fate: impl Fn() -> TicketOutcome, settlement: &mut Settlement) {
        let Some(waiting) = self.0.get_mut(&record) else { return };
        settlement.resolved.extend(waiting.sent.drain(..).map(|ticket| (ticket, fate())));
        if waiting.pending.is_empty() {
            self.0.remove(&record);
        }
    }

    /// Removes and returns the tickets of a removed record.
    pub(super) fn drop_record(&mut self, record: RecordId) -> Vec<Ticket> {
        let waiting = self.0.remove(&record);
        waiting.map(|waiting| waiting.sent.into_iter().chain(waiting.pending).collect()).unwrap_or_default()
    }

    pub(super) fn refuses_taken(&self, record: RecordId) -> bool {
        self.0.get(&record).is_some_and(|waiting| waiting.refuse_taken)
    }
}

impl Outbox {
    /// Registers a ticket for the next write of a record that was just offered.
    pub fn await_write(&mut self, record: RecordId, ticket: Ticket, on_taken: OnTaken) {
        let waiting = self.tickets.0.entry(record).or_default();
        waiting.pending.push(ticket);
        waiting.refuse_taken |= on_taken == OnTaken::Refuse;
    }

    /// Removes the ticket of a client that no longer waits. A client stops waiting if its record has folded, because
    /// the digest may be written much later.
    pub fn give_up(&mut self, record: RecordId, ticket: Ticket) {
        let Some(waiting) = self.tickets.0.get_mut(&record) else { return };
        waiting.pending.retain(|waiting| *waiting != ticket);
        waiting.sent.retain(|waiting| *waiting != ticket);
        if waiting.pending.is_empty() && waiting.sent.is_empty() {
            self.tickets.0.remove(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Now;
    use crate::correlator::{Messages, Rate};
    use crate::outbox::{Answer, Applied, Fault, Offer, Request, Retry, Settings};

    #[test]
    fn a_client_that_gives_up_leaves_nothing_behind_even_when_its_record_has_folded() {
        let mut outbox = Outbox::new(Settings { digest_after: 1, ..Settings::default() }, 0);
        for number in 0..2 {
            let offer = Offer::of(number, Some(Rate { qps: 0.0, burst: 0 }));
            outbox.offer(offer, Event::default(), Now::at(0));
            outbox.await_write(RecordId(number), Ticket(number), OnTaken::Rename);
        }
        assert_eq!(outbox.take_forgotten().len(), 2, "both have folded");
        for number in 0..2 {
            outbox.give_up(RecordId(number), Ticket(number));
        }
        assert!(outbox.tickets.0.is_empty());
    }

    /// Fault: clients whose occurrences came after a create that was refused at last were told that they were refused,
    /// although they were written then.
    #[test]
    fn a_refused_create_refuses_only_what_it_has_carried() {
        let mut outbox = Outbox::new(Settings::default(), 0);
        outbox.identify("a");
        let occur = |outbox: &mut Outbox, number| {
            outbox.offer(Offer::of(1, None), Event { count: 1, ..Event::default() }, Now::at(0));
            outbox.await_write(RecordId(1), Ticket(number), OnTaken::Rename);
        };
        let status = Box::new(crate::status::Status::bad_request("no"));
        let refusal = Refusal { reason: crate::ledger::LostReason::Invalid, status };
        let in_doubt = Answer::Retry(Retry::new(Fault::Timeout, Applied::Perhaps));
        occur(&mut outbox, 0);
        for (second, answer) in [(0, in_doubt), (10, Answer::Refused(refusal)), (20, Answer::Missing)] {
            let now = Now::at(second * 1_000_000_000);
            let write = outbox.next_write(now).unwrap();
            assert_eq!(outbox.settle(write.record, answer, now).resolved, []);
        }
        occur(&mut outbox, 1);
        let late = Now::at(200_000_000_000);
        let write = outbox.next_write(late).unwrap();
        assert!(matches!(write.request, Request::Read { .. }));
        let settlement = outbox.settle(write.record, Answer::Missing, late);
        let resolved: Vec<_> = settlement.resolved.iter().map(|(ticket, _)| ticket.0).collect();
        assert_eq!((resolved, settlement.lost.unwrap().1.total()), (vec![0], 1));
        let write = outbox.next_write(Now::at(300_000_000_000)).unwrap();
        assert!(matches!(write.request, Request::Create { .. }));
    }

    /// Fault: a client was told that its occurrence was written, when a write of an earlier process was.
    #[test]
    fn a_write_of_an_earlier_process_answers_no_later_client() {
        let (now, rate) = (Now::at(1), Rate { qps: 0.0, burst: 1 });
        let mut earlier = Outbox::new(Settings::default(), 0);
        earlier.keep_journal();
        earlier.identify("a");
        earlier.offer(Offer::of(1, None), Event { count: 1, ..Event::default() }, now);
        let entry = earlier.take_changes().records.pop().unwrap().1.unwrap();
        let mut outbox = Outbox::new(Settings::default(), 0);
        outbox.keep_journal();
        outbox.identify("b");
        outbox.restore(RecordId(1), *entry, rate, Messages::Exact, now);
        outbox.offer(Offer::of(1, None), Event { count: 2, ..Event::default() }, now);
        outbox.await_write(RecordId(1), Ticket(1), OnTaken::Rename);
        let mut answered = Vec::new();
        for seconds in [0, 2] {
            let now = Now::at(1 + seconds * 1_000_000_000);
            let write = outbox.next_write(now).unwrap();
            let stored = match write.request {
                Request::Create { event, .. } => event,
                Request::Patch { patch, .. } => Box::new(Event { count: patch.count, ..Event::default() }),
                Request::Read { .. } | Request::Delete { .. } => panic!("nothing fails"),
            };
            let count = stored.count;
            let settlement = outbox.settle(write.record, Answer::Stored(stored), now);
            answered.push((count, settlement.resolved.len()));
            let changes = outbox.take_changes();
            outbox.changes_kept(&changes.held, now);
        }
        assert_eq!(answered, [(1, 0), (2, 1)]);
    }
}
