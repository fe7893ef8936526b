//! Repair instead of loss: a record that the upstream refuses as invalid or too large is mended where the refusal names what
//! we know how to mend, and written again. Each thing is mended once, for it is right afterwards; a refusal that names nothing
//! more to mend is final.

use super::record::Sent;
use super::{Outbox, Refusal, RefusalReason, Settlement};
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::ApiGroup;
use crate::event::repair::{self, Objection};

impl Outbox {
    /// Mends what the upstream has refused. `None` where nothing of it can be.
    pub(super) fn mend(&mut self, id: RecordId, sent: Sent, refusal: &Refusal, now: Now) -> Option<Settlement> {
        let record = self.records.get_mut(&id).filter(|_| self.settings.repair)?;
        // Without a tally nobody can tell a mended record from the one that an earlier try may have stored.
        let is_clear = !record.ambiguous || self.annotation.is_some();
        if !is_clear {
            return None;
        }
        let causes = refusal.status.details.iter().flat_map(|details| &details.causes);
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
        let objection = match refusal.reason {
            RefusalReason::Invalid => Objection::Fields(&fields),
            RefusalReason::TooLarge => Objection::TooLarge,
            RefusalReason::Forbidden | RefusalReason::NamespaceGone | RefusalReason::Exists | RefusalReason::Other => {
                return None;
            }
        };
        let name = record.event.metadata.name.clone();
        let repairs = match (record.stored, sent.group) {
            (false, _) => repair::refused(&mut record.event, &objection, now.wall),
            // A patch has nothing else that could be wrong, and at events.k8s.io not even that.
            (true, ApiGroup::Core) => repair::refused_message(&mut record.event, &objection).into_iter().collect(),
            (true, ApiGroup::Events) => Vec::new(),
        };
        if repairs.is_empty() {
            return None;
        }
        record.repaired.extend(&repairs);
        record.look_first = false;
        record.ambiguous = false;
        let size = record.event.approximate_size();
        self.bytes.replace(record.size, size);
        record.size = size;
        let is_renamed = record.event.metadata.name != name;
        self.try_again(id, sent, now);
        if is_renamed {
            self.hold_until_kept(id);
        }
        Some(Settlement { repairs, ..Settlement::default() })
    }
}
