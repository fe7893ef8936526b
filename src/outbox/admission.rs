//! Records that their clients create themselves, because the admission webhook has allowed the CREATE that begins a
//! record.
//!
//! The outbox then treats the client's request as its own create of the record. The create is in doubt until a watch
//! event or a read shows the object. Further occurrences coalesce meanwhile, and eventweir writes a record that is
//! never shown. See `upstream_state.rs`.

use std::time::Duration;

use super::Outbox;
use super::record::{Phase, Sent};
use super::upstream_state::{Call, LIMBO, UpstreamState};
use crate::clock::Now;
use crate::correlator::RecordId;

/// Time to wait for the watch event before the upstream is read.
const FIRST_LOOK: Duration = Duration::from_secs(1);

impl Outbox {
    /// Leaves the create of a new record to its client, and takes the tokens for it. Returns `false` if the record
    /// could not be written now; then it waits as any other.
    pub fn carry(&mut self, id: RecordId, now: Now) -> bool {
        let Some(record) = self.records.get(&id).filter(|record| record.was_never_sent()) else { return false };
        let (Phase::Queued(order), budget_id) = (&record.phase, record.budget) else { return false };
        let name = record.event.metadata.name.clone();
        let pays = self.budgets.get_mut(&budget_id.0).is_some_and(|budget| budget.pay_for(*order, now.mono));
        if !pays {
            return false;
        }
        self.refile(budget_id, now.mono);
        // The request is the client's, under its own name in any API group.
        if self.pass(id, now).is_none() {
            return false;
        }
        let Some(record) = self.records.get_mut(&id) else { return false };
        if let Phase::InFlight(Sent { occurrences, .. }) = record.phase {
            record.pending.merge(occurrences);
        }
        record.event.metadata.name = name;
        record.upstream = UpstreamState::Admitted { until: now.mono.after(LIMBO) };
        record.phase = Phase::Backoff(now.mono.after(FIRST_LOOK));
        self.set_record_timer(id);
        true
    }

    /// Whether the record's client was allowed to create it, and nothing has shown it yet. Then the upstream's event is
    /// the answer to a read that is in flight from now on: [`settle`](Self::settle) applies it.
    pub fn arrive(&mut self, id: RecordId) -> bool {
        let Some(record) = self.records.get_mut(&id) else { return false };
        if !matches!((&record.upstream, &record.phase), (UpstreamState::Admitted { .. }, Phase::Backoff(_))) {
            return false;
        }
        let occurrences = record.take_next();
        let group = self.settings.group.of(&record.event);
        let sent = Sent { occurrences, call: Call::Read, group, before: record.sent, is_overtaken: false };
        record.phase = Phase::InFlight(sent);
        true
    }
}
