//! Finds and pauses the record that a client's name leads to, before the upstream is asked to change it.

use super::{Ingest, QUIET, ack, aliases};
use crate::event::{ApiGroup, Event};
use crate::outbox::Line;
use crate::shard::{Lookup, PausedRecord};
use crate::status::Status;

impl Ingest {
    /// Pauses the record of a client's name, so that no write of it is sent, and waits for one in flight. Finds the
    /// record by the alias of the name, otherwise, or if the alias's record is gone, by the upstream's event.
    ///
    /// # Errors
    /// 409 if another record has its name upstream, so that it is about to get another name. The upstream's answer if
    /// that cannot be read.
    pub(super) async fn pause(
        &self,
        group: ApiGroup,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PausedRecord>, Status> {
        let posted = self.0.aliases.get(namespace, name);
        let of_alias = |by| posted.as_ref().and_then(|posted| self.0.shards.pause(posted, name, by));
        let paused = match of_alias(Lookup::Alias) {
            Some(paused) => Some(paused),
            None => match self.pause_stored(namespace, name).await {
                Err(status) if status.code == 404 => of_alias(Lookup::Unstored),
                paused => paused.or_else(none_if_missing)?,
            },
        };
        let Some(mut paused) = paused else { return Ok(None) };
        paused.quiet(QUIET).await;
        if self.has_its_name(namespace, &mut paused).await? {
            return Ok(Some(paused));
        }
        if !paused.is_stored() || paused.is_unsettled() {
            return Err(Status::conflict(group.name(), name, "the event is not stored yet; please try again"));
        }
        // It was deleted upstream and owes nothing, so it is not created again. The client's name may be another
        // event's.
        let mut other = self.pause_stored(namespace, name).await.or_else(none_if_missing)?;
        if let Some(other) = &mut other {
            other.quiet(QUIET).await;
        }
        Ok(other)
    }

    /// Pauses the record of a client's name after a DELETE that another one has carried out, if the event is gone: the
    /// DELETE may have been a dry run. Finds it by the alias of the name only.
    pub(super) async fn pause_deleted(&self, group: ApiGroup, namespace: &str, name: &str) -> Option<PausedRecord> {
        let posted = self.0.aliases.get(namespace, name)?;
        match self.0.upstream.get(namespace, name).await {
            Err(status) if status.code == 404 => {
                let mut paused = self.pause(group, namespace, name).await.ok().flatten();
                paused.iter_mut().for_each(|paused| paused.pause_others(&posted));
                paused
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether no other writer has an event under the record's name. One may have, if the record is not created yet or
    /// was deleted upstream. Notes the count that the upstream has.
    pub(super) async fn has_its_name(&self, namespace: &str, paused: &mut PausedRecord) -> Result<bool, Status> {
        match self.0.upstream.get(namespace, &paused.name()).await {
            Ok(stored) => Ok(paused.sees(&stored) || paused.is_found_by_name()),
            Err(status) => none_if_missing(status).map(|_: Option<Event>| true),
        }
    }

    /// Pauses the record that the upstream stores under a name, if it is known here: its content identifies it.
    pub(super) async fn pause_stored(&self, namespace: &str, name: &str) -> Result<Option<PausedRecord>, Status> {
        let stored = self.0.upstream.get(namespace, name).await?;
        Ok(self.0.shards.pause(&stored, name, Lookup::Name))
    }

    /// Handles a change of a client's event `name` without an answer. If the upstream shows the total that the change has
    /// stated, it was carried out, and record and alias continue from there: the total includes occurrences that wait.
    pub(super) async fn doubt(
        &self,
        paused: PausedRecord,
        (namespace, name): (&str, &str),
        stated: Option<i64>,
        status: &Status,
    ) {
        // With `Retry-After`, the client is to send it again.
        let is_final = status.details.as_ref().is_none_or(|details| details.retry_after_seconds == 0);
        let Some(stated) = stated.filter(|_| is_final && is_in_doubt(status)) else { return };
        let Ok(found) = self.0.upstream.get(namespace, &paused.name()).await else { return };
        if [aliases::total(&found), aliases::line(&found)].contains(&stated) {
            self.0.aliases.relabel(namespace, name, &found, paused.stated(&found, Line::Stated));
            paused.follow(&found, Line::Stated);
            ack::followed(self).await;
        }
    }
}

/// Whether the upstream may have carried out a change despite this answer.
pub(super) const fn is_in_doubt(status: &Status) -> bool {
    status.code == 408 || status.code >= 500
}

/// Returns `None` if there is no event, or if eventweir may not read it.
fn none_if_missing<T>(status: Status) -> Result<Option<T>, Status> {
    if matches!(status.code, 403 | 404) { Ok(None) } else { Err(status) }
}
