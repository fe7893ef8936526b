//! Records that their clients create themselves: the apiserver asks us first (admission), and what begins a record is allowed.
//!
//! The client's request is then our create of the record, in doubt until the upstream is seen to hold it: by a watch event, or by
//! a read of delivery's. So whatever comes meanwhile coalesces, and what never arrives is written by us. See `stand.rs`.

use std::time::Duration;

use super::record::{Phase, Sent};
use super::stand::{Call, LIMBO, Stand};
use super::{Answer, Outbox, Settlement};
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::Event;

/// How long a watch event is waited for before the upstream is asked.
const FIRST_LOOK: Duration = Duration::from_secs(1);

impl Outbox {
    /// Lets a client create the record that it has just begun, if that could be written now: its tokens are taken. Otherwise the
    /// record waits as any other, and returns `false`.
    pub fn carry(&mut self, id: RecordId, now: Now) -> bool {
        let Some(record) = self.records.get(&id).filter(|record| record.was_never_sent() && !record.is_staged) else {
            return false;
        };
        let (Phase::Queued(order), budget_id) = (&record.phase, record.budget) else { return false };
        let pays = self.budgets.get_mut(&budget_id.0).is_some_and(|budget| budget.pay_for(*order, now.mono));
        if !pays {
            return false;
        }
        self.refile(budget_id, now.mono);
        // The request is the client's.
        if self.pass(id, now).is_none() {
            return false;
        }
        let Some(record) = self.records.get_mut(&id) else { return false };
        if let Phase::InFlight(Sent { occurrences, .. }) = record.phase {
            record.pending.merge(occurrences);
        }
        record.stand = Stand::Carried { until: now.mono.after(LIMBO) };
        record.phase = Phase::Backoff(now.mono.after(FIRST_LOOK));
        self.set_record_timer(id);
        self.note(id);
        true
    }

    /// The upstream holds `event` under the name of a record that its client was allowed to create: as if it had been read.
    /// `None` for any other record.
    pub fn arrive(&mut self, id: RecordId, event: &Event, now: Now) -> Option<Settlement> {
        let record = self.records.get_mut(&id)?;
        if !matches!((&record.stand, &record.phase), (Stand::Carried { .. }, Phase::Backoff(_))) {
            return None;
        }
        let occurrences = record.pending.take_first(record.in_doubt());
        let group = self.settings.group.of(&record.event);
        record.phase = Phase::InFlight(Sent { occurrences, call: Call::Read, group });
        Some(self.settle(id, Answer::Stored(Box::new(event.clone())), now))
    }
}
