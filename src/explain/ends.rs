//! Ends of records: they are lost, or the upstream has them no longer.

use std::collections::HashSet;

use super::{Fact, FactRef, LostFolds, Store, StormStates};
use crate::correlator::{Key, RecordId};

impl Store {
    /// Notes that the upstream no longer holds a record; the next occurrence begins another one.
    pub fn ended(&mut self, object: Key, record: RecordId) -> Option<FactRef> {
        self.end_run(record);
        let history = self.objects.peek_mut(&object)?;
        let kept = history.tracked_mut(record)?;
        kept.has_ended = true;
        let fact = kept.fact;
        let Fact { hash, group, .. } = history.facts[fact];
        Some(FactRef { object, fact, hash, group })
    }

    /// Notes that the upstream no longer has a settled record; its next write creates it again.
    pub fn gone(&mut self, object: Key, record: RecordId) {
        if let Some(kept) = self.objects.peek_mut(&object).and_then(|history| history.tracked_mut(record)) {
            kept.is_gone = true;
        }
    }

    /// Notes as [`gone`](Self::gone) does, for records of any objects.
    pub fn all_gone(&mut self, records: &HashSet<RecordId>) {
        let kept = self.objects.iter_mut().flat_map(|(_, history)| &mut history.records);
        kept.filter(|kept| records.contains(&kept.record)).for_each(|kept| kept.is_gone = true);
    }

    /// Notes lost occurrences of a digest. They may be of several objects; its writes are noted at this one.
    pub fn lose_folded(&mut self, object: Key, lost: LostFolds) {
        let LostFolds { into, number, settled, why } = lost;
        let Some(history) = self.objects.peek_mut(&object).filter(|history| history.tracked(into).is_some()) else {
            return;
        };
        if history.lose_folded(into, settled, why) < number {
            self.lose_at_all(|fact| (fact.into == Some(into)).then_some((settled, why)));
        }
        self.count(object);
    }

    /// Notes what storm records have lost.
    pub fn lose_storms(&mut self, lost: &StormStates) {
        self.lose_at_all(|fact| lost.get(&fact.into?).and_then(|state| Some((state.settled, state.lost?))));
    }

    /// Notes a loss at all facts for which `of` returns what their record has shown, and why it has lost the rest.
    fn lose_at_all(&mut self, of: impl Fn(&Fact) -> Option<(u64, &'static str)>) {
        for (_, history) in self.objects.iter_mut() {
            let lost = history.facts.iter_mut().filter_map(|fact| {
                let (settled, why) = of(fact)?;
                Some(fact.lose_folded(settled, why))
            });
            if lost.sum::<u64>() > 0 {
                let bytes = history.bytes();
                self.bytes.replace(history.counted, bytes);
                history.counted = bytes;
            }
        }
    }
}
