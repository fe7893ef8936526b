//! `POST /eventweir/v1/admit`: a validating admission webhook for events, for clients that talk to the apiserver
//! itself.
//!
//! A CREATE that begins a record is allowed if the record could be written now: the client writes it, and the outbox
//! takes that write for its own create (`outbox/admission.rs`). A repeat is counted and refused with `AlreadyExists`,
//! which clients ignore; eventweir patches its record. So an occurrence is written by its client or by eventweir, never
//! by both. If an allowed event never arrives, eventweir writes it. The apiserver allows events without an answer, and
//! eventweir allows events that it cannot count.
//!
//! An UPDATE sets a client's count or series. A refused UPDATE is counted by its growth beyond the client's last state
//! (`aliases`). An UPDATE of a series is allowed if it changes the object by exactly that growth, because
//! `tools/events` retries a refused one. The apiserver asks again if the object has changed meanwhile.

mod review;

use std::num::NonZeroUsize;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use parking_lot::Mutex;

use super::aliases::{Entered, Growth, is_again, is_of_one_line, is_repeated, line, total};
use super::create::strip;
use super::{Ingest, Settings, decode, not_served, respond};
use crate::access::{Caller, Extent};
use crate::clock::Mono;
use crate::correlator::{Key, LruMap, NAME_BYTES_MAX, Pattern};
use crate::event::{ApiGroup, Event, EventSeries, ObjectMeta};
use crate::ledger::RejectReason;
use crate::outbox::{is_set_without_lines, tags};
use crate::shard::{Unable, Writer};
use crate::status::Status;
use review::{Request, Review, answer};

pub(super) const PATH: &str = crate::access::ADMISSION;

/// LIMIT: remembered events with an allowed series; beyond it the least recently used one is evicted, and its next
/// series is allowed at once.
const SERIES_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Message for the refused client and the audit log.
const COUNTED: &str = "the event is counted by eventweir, which writes its record";

/// Settings of admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Timeout of a review; a late event is allowed and not counted. Default 50 ms.
    pub timeout: Duration,
    /// Shortest interval between two allowed updates of one event's series. Default 1 min.
    pub series_interval: Duration,
    /// Callers that need no authorisation; `system:anonymous` is an apiserver without credentials. Default none.
    pub callers: Vec<Pattern>,
    /// Users whose events are allowed and not counted. Default none.
    pub exempt_users: Vec<Pattern>,
}

impl Default for Admission {
    fn default() -> Self {
        let (timeout, series_interval) = (Duration::from_millis(50), Duration::from_secs(60));
        Self { timeout, series_interval, callers: Vec::new(), exempt_users: Vec::new() }
    }
}

#[derive(Debug)]
pub(super) struct Admitting {
    settings: Admission,
    /// The series that was last allowed of each event.
    // LIMIT: `SERIES_MAX`.
    series: Mutex<LruMap<Allowed>>,
}

/// An allowed series, which its client may fail to write.
#[derive(Debug, Clone, Copy)]
struct Allowed {
    at: Mono,
    /// The client's count with it, and before it.
    line: i64,
    before: i64,
}

/// When a request arrived, before its caller was identified and authorised: its client's timeout has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began(pub(super) Mono);

labelled! {
    /// Answer to the apiserver.
    pub(super) enum Answer {
        /// Allowed: the client begins a record.
        Begun = "begun",
        /// Refused: counted here.
        Counted = "counted",
        /// Refused: counted before.
        Repeated = "repeated",
        /// Refused by a limit.
        Limited = "limited",
        /// Allowed: the client's own series.
        Series = "series",
        /// Allowed: not an occurrence.
        Other = "other",
        /// Allowed: a write of eventweir or of an exempt user.
        Exempt = "exempt",
        /// Allowed: the client may not report this source here.
        Unbound = "unbound",
        /// Allowed: a dry run.
        DryRun = "dry_run",
        /// Allowed: a limit of the outbox is reached.
        Full = "full",
        /// Allowed: the timeout has passed.
        Late = "late",
        /// Allowed: the review could not be read.
        Unread = "unread",
    }
}

impl From<Result<Writer, Unable>> for Answer {
    fn from(taken: Result<Writer, Unable>) -> Self {
        match taken {
            Ok(Writer::Client) => Self::Begun,
            Ok(Writer::Us) => Self::Counted,
            Err(Unable::Full) => Self::Full,
            Err(Unable::Late) => Self::Late,
        }
    }
}

impl Ingest {
    /// Enables admission.
    #[must_use]
    pub fn admitting(self, settings: Admission) -> Self {
        self.0.admission.get_or_init(|| Admitting { settings, series: Mutex::default() });
        self
    }
}

impl Admitting {
    /// Whether this caller needs no authorisation.
    pub(super) fn may_call(&self, user: &str) -> bool {
        self.settings.callers.iter().any(|pattern| pattern.matches(user))
    }

    /// Whether a series may be allowed; if so, stores it. The same one is allowed again, because an earlier request may
    /// still be executed.
    fn passes(&self, key: Key, allowed: Allowed) -> bool {
        let mut series = self.series.lock();
        if series.get(&key).is_some_and(|last| last.line != allowed.line && self.is_recent(last, allowed.at)) {
            return false;
        }
        series.put_within(key, allowed, SERIES_MAX);
        true
    }

    /// Whether a series of this event can be allowed only later, because the last one was allowed just before.
    fn is_early(&self, key: Key, now: Mono) -> bool {
        self.series.lock().get(&key).is_some_and(|last| self.is_recent(last, now))
    }

    /// Whether an event's next series comes too soon after this one.
    fn is_recent(&self, last: &Allowed, now: Mono) -> bool {
        now.since(last.at) < self.settings.series_interval
    }

    /// Notes that an event's next series is counted, so that the allowed one does not matter any more.
    fn end_allowed(&self, key: Key) {
        if let Some(allowed) = self.series.lock().get_mut(&key) {
            allowed.line = 0;
        }
    }
}

/// `POST /eventweir/v1/admit`
pub(super) async fn admit(
    State(ingest): State<Ingest>,
    Extension(Began(began)): Extension<Began>,
    caller: Option<Extension<Caller>>,
    uri: Uri,
    body: Body,
) -> Response {
    let Some(admitting) = ingest.0.admission.get() else { return not_served(uri).await };
    let waited = ingest.0.shards.clock().now().mono.since(began);
    let left = admitting.settings.timeout.saturating_sub(waited);
    let limits = Settings { request_timeout: left, ..ingest.0.settings };
    let caller = caller.as_ref().map_or("", |Extension(caller)| &caller.name);
    let read = decode::read(body, &limits, (&ingest.0.bodies, caller)).await;
    // The wait for the caller's bytes belongs to the timeout, but it is not time that the answer takes.
    let arrived = ingest.0.shards.clock().now().mono;
    let body = read.map_err(Status::from);
    let review = body.as_deref().map_err(Clone::clone).and_then(Review::read);
    // If the apiserver has given up meanwhile, because this process was suspended, the request ends here: the event is
    // stored without an answer.
    tokio::task::yield_now().await;
    let (answered, response) = match review {
        Ok(Review { mut request, .. }) => {
            let caller = std::mem::take(&mut request.user_info).into();
            let question = Question { ingest: &ingest, admitting, caller, began };
            let (answered, refusal) = question.judge(&request);
            (answered, answer(&request.uid, refusal.as_ref()))
        }
        // The apiserver allows the event.
        Err(status) => (Answer::Unread, respond::refusal(&status)),
    };
    let took = ingest.0.shards.clock().now().mono.since(arrived);
    ingest.0.metrics.count_admission(answered, took);
    response
}

/// A review in progress.
struct Question<'a> {
    ingest: &'a Ingest,
    admitting: &'a Admitting,
    /// Client of the apiserver.
    caller: Caller,
    began: Mono,
}

impl Question<'_> {
    fn judge(&self, request: &Request<'_>) -> (Answer, Option<Status>) {
        if request.dry_run == Some(true) {
            return (Answer::DryRun, None);
        }
        let is_exempt = |pattern: &Pattern| pattern.matches(&self.caller.name);
        if self.admitting.settings.exempt_users.iter().any(is_exempt) {
            return (Answer::Exempt, None);
        }
        if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") {
            return (Answer::Other, None);
        }
        let Some((old, mut new)) = request.events() else { return (Answer::Unread, None) };
        // A write of this process or of another replica.
        if !tags(&new).eq(old.iter().flat_map(tags)) {
            return (Answer::Exempt, None);
        }
        // The record of an event with a longer name has another one, so the client's own write could not begin it.
        if !self.ingest.0.shards.correlates(&new) || new.metadata.name.len() > NAME_BYTES_MAX {
            return (Answer::Other, None);
        }
        if self.ingest.check_source(Some(&self.caller), ApiGroup::Core, &new, Extent::Whole).is_err() {
            return (Answer::Unbound, None);
        }
        strip(&mut new);
        let answered = match &old {
            None => self.created(&mut new),
            Some(old) => self.updated(old, &new),
        };
        match answered {
            Ok(answer @ (Answer::Counted | Answer::Repeated)) => (answer, Some(self.refusal(old.as_ref(), &new))),
            Ok(answer) => (answer, None),
            Err(status) => (Answer::Limited, Some(status)),
        }
    }

    /// Returns the refusal of an event that eventweir counts. client-go's recorders do not log `AlreadyExists`, and
    /// `tools/events` retries a series after it. A series that will not be allowed is forbidden: after another
    /// refusal, `tools/events` would send it every six minutes for as long as its process runs. With a
    /// `generateName`, the apiserver would take `AlreadyExists` for a taken name, and ask again with seven others.
    fn refusal(&self, old: Option<&Event>, new: &Event) -> Status {
        let Ingest(ingest) = self.ingest;
        let ObjectMeta { namespace, name, .. } = &new.metadata;
        let may_be_allowed = || match old {
            // The next try changes the client's own event, if that is about to exist.
            None => ingest.shards.find(new).is_some_and(|found| found.name == *name),
            Some(_) => self.admitting.is_early(ingest.aliases.key(namespace, name), self.began),
        };
        let is_named_by_server = new.metadata.rare.as_ref().is_some_and(|rare| !rare.generate_name.is_empty());
        if new.series.is_none() || may_be_allowed() {
            let reason = if old.is_none() && is_named_by_server { "Conflict" } else { "AlreadyExists" };
            Status::new(409, reason, COUNTED)
        } else {
            Status::new(403, "Forbidden", COUNTED)
        }
    }

    fn created(&self, event: &mut Event) -> Result<Answer, Status> {
        self.limit(event, 1)?;
        self.ingest.annotate(Some(&self.caller), event);
        let aliases = &self.ingest.0.aliases;
        if event.series.is_some()
            && let Some(posted) = aliases.get(&event.metadata.namespace, &event.metadata.name)
        {
            // The object is gone.
            self.without_unwritten(posted, None);
        }
        let posted = match aliases.enter(event) {
            Entered::New(posted) => posted,
            Entered::Included(_) => return Ok(Answer::Repeated),
        };
        let is_gone = || self.ingest.0.shards.find(event).is_some_and(|found| found.is_gone);
        if posted.as_ref().is_some_and(|posted| is_repeated(posted, event)) && !is_gone() {
            return Ok(Answer::Repeated);
        }
        let occurrences = self.ingest.brings(event, posted.as_ref());
        if occurrences == 0 {
            return Ok(Answer::Repeated);
        }
        let as_it_is = total(event) == i64::from(occurrences);
        let taken = self.take(event, occurrences, as_it_is);
        if taken.is_err() {
            aliases.leave(event, posted.as_ref());
        }
        Ok(taken.into())
    }

    fn updated(&self, old: &Event, new: &Event) -> Result<Answer, Status> {
        let (namespace, name) = (&new.metadata.namespace, &new.metadata.name);
        let aliases = &self.ingest.0.aliases;
        if !is_of_one_line(old, new) || !says_the_same(old, new) {
            return Ok(Answer::Other);
        }
        let posted = aliases.get(namespace, name).filter(|posted| is_of_one_line(posted, new));
        let posted = posted.map(|posted| self.without_unwritten(posted, old.series.as_ref()));
        let is_series = old.series != new.series;
        if is_series && (old.count, old.last_timestamp) != (new.count, new.last_timestamp) {
            return Ok(Answer::Other);
        }
        let is_idle = (old.count, old.last_timestamp, &old.message) == (new.count, new.last_timestamp, &new.message);
        if is_idle && !is_series && posted.is_none() {
            return Ok(Answer::Other);
        }
        let posted = posted.map(|posted| self.with_unreviewed(posted, old, new));
        let known = posted.as_ref().map_or_else(|| self.counted_before(old, new), line);
        if is_series {
            // A series below the count would hide the others' occurrences.
            let is_again = posted.as_ref().is_some_and(|posted| is_again(posted, new));
            let is_exact = !is_again && line(new) - known == total(new) - total(old) && line(new) == total(new);
            let allowed = Allowed { at: self.began, line: line(new), before: known };
            if is_exact && self.admitting.passes(aliases.key(namespace, name), allowed) {
                aliases.insert(&Event { count: 0, ..new.clone() });
                return Ok(Answer::Series);
            }
            self.admitting.end_allowed(aliases.key(namespace, name));
        }
        if posted.is_none() {
            let count = i32::try_from(known).unwrap_or(i32::MAX);
            aliases.insert(&Event { count, series: None, ..new.clone() });
        }
        let growth = Growth {
            count: (!is_series).then_some(new.count),
            last_timestamp: Some(new.last_timestamp),
            message: Some(new.message.clone()),
            series: new.series.clone().filter(|_| is_series),
        };
        let Some((shown, grown)) = aliases.grow_refused(namespace, name, &growth) else { return Ok(Answer::Other) };
        let shown = Event { metadata: new.metadata.clone(), ..shown };
        // Its client does not know how much was counted under its name.
        let is_again = line(&shown) > line(new);
        let grown = if is_again { grown } else { self.ingest.new_of(&shown, grown.into()) };
        if grown == 0 {
            return Ok(if is_idle && !is_series { Answer::Other } else { Answer::Repeated });
        }
        let taken = self.limit(&shown, grown).map(|()| self.take(&shown, grown, false));
        match (&taken, posted) {
            (Ok(Ok(_)), _) => {}
            (_, Some(posted)) if is_again => aliases.insert(&posted),
            _ => self.ingest.take_back(&shown, grown),
        }
        taken.map(Answer::from)
    }

    /// Returns the total that a client has stored itself, because its requests were not reviewed or were answered too
    /// late, if it is above the `known` one. Only a count: a series is not set by other writers.
    fn unreviewed(&self, old: &Event, new: &Event, known: i64) -> Option<i32> {
        let count = old.count.min(new.count.saturating_sub(1));
        let is_count = old.series.is_none() && new.series.is_none() && i64::from(count) > known;
        (is_count && is_set_without_lines(old) && self.ingest.0.shards.writes_lines()).then_some(count)
    }

    /// Adds to a client's known event what the client has stored itself.
    fn with_unreviewed(&self, posted: Event, old: &Event, new: &Event) -> Event {
        let Some(count) = self.unreviewed(old, new, posted.count.into()) else { return posted };
        let posted = Event { count, ..posted };
        self.ingest.0.aliases.insert(&posted);
        posted
    }

    /// Returns how far a client has counted whose name is not known any more: by the old state of the object, and by the
    /// line of its name, which also contains what waits.
    fn counted_before(&self, old: &Event, new: &Event) -> i64 {
        let counted = self.ingest.0.shards.counted_under(new, &new.metadata.name);
        let counted = self.unreviewed(old, new, counted).map_or(counted, i64::from);
        match (old.series != new.series, &old.series) {
            (true, Some(series)) => counted.max(series.count.into()),
            (true, None) if counted > 0 => counted,
            (true, None) => total(old).min(line(new) - 1),
            (false, _) if counted > 0 => counted.min(i64::from(new.count) - 1),
            (false, _) => total(old).min(i64::from(new.count) - 1),
        }
    }

    /// Takes an allowed series back from a client's known event, if the object does not show it: its request was not
    /// executed. A series that eventweir has ended was read before.
    fn without_unwritten(&self, posted: Event, shown: Option<&EventSeries>) -> Event {
        let aliases = &self.ingest.0.aliases;
        let key = aliases.key(&posted.metadata.namespace, &posted.metadata.name);
        let Some(Allowed { line: allowed, before, .. }) = self.admitting.series.lock().get(&key).copied() else {
            return posted;
        };
        let shown = shown.map_or(0, |series| series.count);
        let read = self.ingest.0.shards.line_of(&posted).unwrap_or(0);
        if posted.series.is_none() || line(&posted) != allowed || i64::from(shown.max(read)) >= allowed {
            return posted;
        }
        let posted = Event { count: i32::try_from(before).unwrap_or(i32::MAX), series: None, ..posted };
        aliases.insert(&posted);
        posted
    }

    /// Counts occurrences within the rest of the timeout.
    fn take(&self, event: &Event, occurrences: u32, as_it_is: bool) -> Result<Writer, Unable> {
        let spent = self.ingest.0.shards.clock().now().mono.since(self.began);
        let left = self.admitting.settings.timeout.checked_sub(spent).ok_or(Unable::Late)?;
        self.ingest.admit(event, occurrences, as_it_is, &self.caller.name, left)
    }

    /// Takes a token of the rate limits, or rejects the occurrences.
    fn limit(&self, event: &Event, occurrences: u32) -> Result<(), Status> {
        let limited = self.ingest.limit(Some(&self.caller), &event.metadata.namespace, Some(event));
        limited.map_err(|rejection| {
            self.ingest.0.shards.reject(RejectReason::Limited, occurrences.into());
            self.ingest.note_rejection(event, occurrences, &rejection);
            *rejection.status
        })
    }
}

/// Whether an update changes only count, series, last timestamp and message. A combined message changes with each
/// occurrence.
fn says_the_same(old: &Event, new: &Event) -> bool {
    let rest = |event: &Event| {
        let mut event = event.clone();
        strip(&mut event);
        if let Some(rare) = &mut event.metadata.rare {
            rare.generation = 0;
        }
        Event { count: 0, series: None, last_timestamp: None, message: "".into(), ..event }
    };
    rest(old) == rest(new)
}
