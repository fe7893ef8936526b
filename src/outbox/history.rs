//! What the upstream tells unasked: somebody else has changed, deleted or created a record. Our own writes come back this way
//! too, and are told apart by their version.

use super::Outbox;
use super::claim::tally;
use super::record::Phase;
use crate::clock::Now;
use crate::correlator::{RecordId, is_newer, lacking};
use crate::event::Event;

/// What became of news about a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing of the record is here: its correlator alone knows it.
    Absent,
    /// A request is on its way or about to be looked for, and tells more; or this is no news.
    Ignored,
    /// The record goes on from what the upstream holds; its count has moved by this much.
    Moved(i32),
}

impl Outbox {
    /// How many occurrences `event`, read from the upstream, tells of.
    #[must_use]
    pub fn counted(&self, event: &Event) -> i32 {
        self.settings.group.count(event)
    }

    /// The upstream holds `event` under the record's name.
    pub fn learn(&mut self, id: RecordId, event: &Event) -> Learned {
        self.note(id);
        let stored = self.counted(event);
        let Some(record) = self.records.get_mut(&id) else { return Learned::Absent };
        let asks = matches!(record.phase, Phase::InFlight(_)) || record.look_first || record.ambiguous;
        if asks || !record.stored || !is_newer(&event.metadata.resource_version, &record.base.version) {
            return Learned::Ignored;
        }
        // A record of an earlier process is counted under that one's name, whose last write may still come.
        let annotation = record.writer.as_ref().or(self.annotation.as_ref());
        let own = annotation.map_or(0, |annotation| tally(event, annotation));
        if own > record.base.tally {
            return Learned::Ignored;
        }
        let waiting = i32::try_from(record.pending.total()).unwrap_or(i32::MAX);
        let count = stored.saturating_add(waiting).saturating_add(lacking(own, record.base.tally));
        let moved = count.saturating_sub(record.event.count);
        record.event.count = count;
        record.event.first_timestamp = event.first_timestamp;
        record.base.follow(event, annotation);
        Learned::Moved(moved)
    }

    /// The upstream, at `version`, no longer holds the record: its next write creates it, with its running count. It may have been
    /// created again since, as an answer has told.
    pub fn learn_gone(&mut self, id: RecordId, version: &str, now: Now) -> Learned {
        let Some(record) = self.records.get(&id) else { return Learned::Absent };
        let known = record.base.version.as_str();
        let is_news = version == known || is_newer(version, known);
        if is_news && !matches!(record.phase, Phase::InFlight(_)) && !record.ambiguous {
            self.note(id);
            self.change_in_queue(id, now, |record| {
                record.stored = false;
                record.look_first = false;
                record.base.gone();
            });
        }
        Learned::Ignored
    }
}
