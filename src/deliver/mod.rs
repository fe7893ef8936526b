//! The delivery loop: takes writes from the shards, sends them to the upstream, and settles their records with the
//! answers. The outbox decides what is sent and what an answer means; the gate and the breakers decide when.
//!
//! One task runs the loop. Each request has its own task, so that encoding and I/O use every core.

mod breaker;
mod gate;
mod metrics;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::{IntGauge, Registry};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::{Mono, Now};
use crate::event::cut;
use crate::metrics::value;
use crate::outbox::{
    Answer, Applied, Fault, LostReason, NORMAL_TURN, RecordId, Retry, STORM_MARK, Settlement, StormNews, Write,
};
use crate::shard::{Shard, Shards};
use crate::upstream::{Upstream, Verb};
use breaker::{Breakers, Scope};
pub use gate::GateSettings;
use gate::{Acquisition, Gate, HealthChange};
use metrics::Metrics;

/// Longest pause between two turns of the loop, on which the liveness check relies.
const TURN: Duration = Duration::from_secs(5);

/// Requests that one turn of the loop begins. Encoding one takes as long as accepting some events, so other tasks run
/// between turns.
const BURST: usize = 4;

/// Records of open breakers that are postponed in a row.
const POSTPONED_MAX: usize = 64;

/// Shortest time between two log lines about losses for one reason, or about one forbidden verb.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// LIMIT: bytes of an event's text in a line of the log; the rest is cut.
const LOGGED_BYTES: usize = 256;

/// Shortest time between two reads of the outbox's storm news, of which it keeps a few.
const STORM_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Settings, state and metrics of delivery, shared with the rest of the program.
#[derive(Debug, Clone)]
pub struct DeliveryStatus(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: ArcSwap<GateSettings>,
    last_turn: AtomicI64,
    /// Whether a request to the upstream has ended.
    is_tried: AtomicBool,
    metrics: Metrics,
}

impl DeliveryStatus {
    /// Creates the monitor of a delivery with these settings, and registers the metrics.
    pub fn new(settings: GateSettings, registry: &Registry) -> Self {
        let monitor = Self(Arc::new(Inner {
            settings: ArcSwap::default(),
            last_turn: AtomicI64::default(),
            is_tried: AtomicBool::default(),
            metrics: Metrics::new(registry),
        }));
        monitor.set_settings(settings);
        monitor
    }

    /// Applies reloaded settings from the next turn of the loop.
    pub fn set_settings(&self, settings: GateSettings) {
        self.0.metrics.in_flight_limit.set(value(settings.max_in_flight));
        self.0.settings.store(Arc::new(settings));
    }

    /// Removes the rate limit, so that the rest is delivered as fast as the window allows.
    pub fn drain(&self) {
        self.set_settings(GateSettings { rate: None, ..self.settings() });
    }

    /// Returns the current settings.
    pub fn settings(&self) -> GateSettings {
        **self.0.settings.load()
    }

    /// Returns the time of the loop's last turn.
    pub fn last_turn(&self) -> Mono {
        Mono(self.0.last_turn.load(Ordering::Relaxed))
    }

    /// Returns the metric of the upstream's state.
    pub fn up(&self) -> IntGauge {
        self.0.metrics.up.clone()
    }

    /// Whether the upstream is up.
    pub fn is_up(&self) -> bool {
        self.0.metrics.up.get() == 1
    }

    /// Whether a request to the upstream has ended, with an answer or without.
    pub fn is_tried(&self) -> bool {
        self.0.is_tried.load(Ordering::Relaxed)
    }

    /// Whether the upstream's newest answer to this verb of delivery was 403.
    pub fn is_forbidden(&self, verb: Verb) -> bool {
        self.forbidden(verb).is_some_and(|forbidden| forbidden.get() == 1)
    }

    fn forbidden(&self, verb: Verb) -> Option<&IntGauge> {
        let index = Verb::OF_DELIVERY.iter().position(|known| *known == verb)?;
        self.0.metrics.forbidden.get(index)
    }

    /// Updates the metric of forbidden verbs, and returns whether a verb became forbidden. A lost connection changes
    /// nothing, nor does an answer that may come before the API server has looked for the right: 401, 429, 5xx.
    fn note_rights(&self, verb: Verb, answer: &Answer) -> bool {
        let Some(forbidden) = self.forbidden(verb) else { return false };
        match answer {
            Answer::Refused(refusal) if refusal.reason == LostReason::Forbidden => {
                let was_allowed = forbidden.get() == 0;
                forbidden.set(1);
                was_allowed
            }
            Answer::Retry(retry) if retry.fault != Fault::Conflict => false,
            Answer::Stored(_) | Answer::Missing | Answer::Exists | Answer::Refused(_) | Answer::Retry(_) => {
                forbidden.set(0);
                false
            }
        }
    }
}

struct Delivery {
    shards: Shards,
    upstream: Arc<Upstream>,
    monitor: DeliveryStatus,
    gate: Gate,
    breakers: Breakers,
    jitter: fastrand::Rng,
    // LIMIT: `max_in_flight`, checked by the gate.
    requests: JoinSet<Answer>,
    /// The record of each request in flight.
    // LIMIT: as many as `requests`.
    records: HashMap<Id, Sent>,
    /// Time of the last log line about a loss, by reason, and about a forbidden verb.
    // LIMIT: one per reason and verb.
    logged: HashMap<&'static str, Mono>,
    storms_logged: Mono,
    turn: usize,
    /// Consecutive writes taken from shards with a Warning.
    warnings: usize,
    /// The failure that began the newest outage.
    went_down: Option<Retry>,
    /// Whether a request of the newest outage got no answer, and none was answered since.
    is_silent: bool,
}

struct Sent {
    shard: usize,
    record: RecordId,
    verb: Verb,
    scope: Scope,
    at: Mono,
}

/// Result of a search for the next write.
enum Next {
    Write(usize, Write, Scope),
    /// So far, all records found were of open breakers.
    Postponed,
    Nothing,
}

/// Delivers until `stop` is cancelled. Cancelling this future loses no accepted event: a record whose request was in
/// flight stays unsettled in its outbox.
pub async fn run(shards: Shards, upstream: Upstream, monitor: DeliveryStatus, stop: CancellationToken, seed: u64) {
    let gate = Gate::new(monitor.settings());
    let mut delivery = Delivery {
        shards,
        upstream: Arc::new(upstream),
        monitor,
        gate,
        breakers: Breakers::default(),
        jitter: fastrand::Rng::with_seed(seed),
        requests: JoinSet::new(),
        records: HashMap::new(),
        logged: HashMap::new(),
        storms_logged: Mono(i64::MIN),
        turn: 0,
        warnings: 0,
        went_down: None,
        is_silent: false,
    };
    loop {
        let next = delivery.send_some();
        let clock = delivery.shards.clock().clone();
        let pause = async {
            match next {
                Flow::Continue(()) => tokio::task::yield_now().await,
                Flow::Break(wakeup) => clock.sleep_until(wakeup).await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(answer) = delivery.requests.join_next_with_id() => delivery.settle(answer),
            () = delivery.shards.woken() => {}
            () = pause => {}
        }
    }
}

/// Whether to continue at once, or the time of the next turn if nothing happens before it.
type Flow = ControlFlow<Mono>;

impl Delivery {
    /// Sends up to [`BURST`] writes.
    fn send_some(&mut self) -> Flow {
        let now = self.shards.clock().now();
        let settings = self.monitor.settings();
        if self.gate.set_settings(settings, now.mono) {
            self.breakers.end_pauses_by(now.mono.after(settings.max_backoff));
        }
        self.monitor.0.last_turn.store(now.mono.0, Ordering::Relaxed);
        self.log_storms(now.mono);
        let flow = (0..BURST).try_for_each(|_| self.send_one(now));
        self.monitor.0.metrics.in_flight.set(value(self.gate.in_flight()));
        self.monitor.0.metrics.window.set(value(self.gate.window()));
        let turn = now.mono.after(TURN);
        flow.map_break(|wakeup| wakeup.map_or(turn, |wakeup| wakeup.min(turn)))
    }

    fn log_storms(&mut self, now: Mono) {
        if now < self.storms_logged.after(STORM_LOG_INTERVAL) {
            return;
        }
        self.storms_logged = now;
        for StormNews { begins, event } in self.shards.take_storm_news() {
            let annotations = event.metadata.rare.as_deref().map(|rare| &rare.annotations);
            let kind = logged(annotations.and_then(|all| all.get(STORM_MARK)).map_or("", |kind| kind));
            let [component, reason, namespace, event_type, record] =
                [event.component(), &event.reason, &event.metadata.namespace, &event.event_type, &event.metadata.name]
                    .map(logged);
            let count = event.count;
            if begins {
                tracing::warn!(%component, %reason, %event_type, kind, %namespace, %record, "a storm of events begins");
            } else {
                let ended = "a storm of events has ended";
                tracing::info!(%component, %reason, %event_type, kind, %namespace, %record, count, "{ended}");
            }
        }
    }

    /// Sends a write, or returns the time of the next attempt; `None` if it depends on an answer or an event.
    fn send_one(&mut self, now: Now) -> ControlFlow<Option<Mono>> {
        match self.gate.acquire(now.mono) {
            Acquisition::Go => {}
            Acquisition::Wait(until) => return ControlFlow::Break(Some(until)),
            Acquisition::Full => return ControlFlow::Break(None),
        }
        match self.next(now) {
            Next::Write(shard, write, scope) => self.send(shard, write, scope, now.mono),
            Next::Postponed => self.gate.release(),
            Next::Nothing => {
                self.gate.release();
                return ControlFlow::Break(self.next_wakeup(now));
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the next write whose breaker is closed or has to be probed, and postpones the records of open breakers.
    fn next(&mut self, now: Now) -> Next {
        for _ in 0..POSTPONED_MAX {
            let Some((shard, write)) = self.next_write() else { return Next::Nothing };
            let scope = Scope::of(&write.request);
            match self.breakers.acquire(&scope, now.mono) {
                Ok(()) => return Next::Write(shard, write, scope),
                Err(retry) => self.settle_record(shard, write.record, Answer::Retry(retry), now.mono),
            }
        }
        Next::Postponed
    }

    /// Returns the next write, round-robin over the shards. Shards with a Warning have priority, except every eighth
    /// time.
    fn next_write(&mut self) -> Option<(usize, Write)> {
        let count = self.shards.count();
        let turns = || (0..count).map(|offset| (self.turn + offset) % count);
        let is_normal_due = self.warnings + 1 >= NORMAL_TURN;
        let first = turns().filter(|index| {
            self.shards.look(*index, if is_normal_due { Shard::has_normal } else { Shard::has_warning })
        });
        let found = first.map(|index| (index, true)).chain(turns().map(|index| (index, false))).find_map(
            |(index, is_first)| {
                let write = self.shards.with(index, Shard::next_write)?;
                Some((index, is_first, write))
            },
        );
        let (index, is_first, write) = found?;
        self.turn = (index + 1) % count;
        self.warnings = if is_first && !is_normal_due { self.warnings + 1 } else { 0 };
        Some((index, write))
    }

    fn next_wakeup(&self, now: Now) -> Option<Mono> {
        (0..self.shards.count()).filter_map(|index| self.shards.look(index, |shard| shard.next_wakeup(now.mono))).min()
    }

    fn send(&mut self, shard: usize, write: Write, scope: Scope, now: Mono) {
        let upstream = Arc::clone(&self.upstream);
        let (record, verb) = (write.record, Verb::of(&write.request));
        let task = self.requests.spawn(async move { upstream.write(&write.request).await });
        self.records.insert(task.id(), Sent { shard, record, verb, scope, at: now });
    }

    fn settle(&mut self, joined: Result<(Id, Answer), JoinError>) {
        let (id, answer) = match joined {
            Ok(joined) => joined,
            // After a panic it is unknown whether the request was executed.
            Err(error) => {
                tracing::error!(%error, "a request to the upstream ended abnormally");
                let retry = Retry::new(Fault::BadAnswer, Applied::Perhaps);
                (error.id(), Answer::Retry(retry))
            }
        };
        let Some(sent) = self.records.remove(&id) else { return };
        let now = self.shards.clock().now();
        let failure = match &answer {
            // A conflict concerns one record, and shows a working upstream.
            Answer::Retry(retry) if retry.fault != Fault::Conflict => Some(retry.clone()),
            Answer::Retry(_) | Answer::Stored(_) | Answer::Missing | Answer::Exists | Answer::Refused(_) => None,
        };
        let became_forbidden = self.monitor.note_rights(sent.verb, &answer);
        if let Answer::Refused(refusal) = &answer {
            // Not `message`, which is the text of the line, and quoted, because a webhook may quote an event.
            let (reason, answer, verb) = (refusal.reason.label(), &refusal.status.message, sent.verb.label());
            tracing::debug!(reason, answer, "the upstream refused an event");
            if became_forbidden && self.may_log(verb, now.mono) {
                tracing::error!(
                    verb,
                    answer,
                    "the upstream forbids eventweir to write events; see /readyz of the admin port"
                );
            }
        }
        let (jitter, settings) = (self.jitter.f64(), self.monitor.settings());
        let outcome = self.breakers.settle(&sent.scope, failure.as_ref(), sent.at, now.mono, &settings, jitter);
        let change = self.gate.settle(outcome, sent.at, now.mono, jitter);
        self.note_health(change, failure);
        self.settle_record(sent.shard, sent.record, answer, now.mono);
    }

    fn settle_record(&mut self, shard: usize, record: RecordId, answer: Answer, now: Mono) {
        let Settlement { repairs, lost, .. } = self.shards.settle(shard, record, answer);
        for repair in repairs {
            self.monitor.0.metrics.repairs[repair as usize].inc();
        }
        if let Some((reason, _)) = lost {
            self.log_loss(reason, now);
        }
    }

    /// Logs losses at most once a minute per reason; the ledger counts all.
    fn log_loss(&mut self, reason: LostReason, now: Mono) {
        let why = match reason {
            LostReason::Expired => {
                "the upstream has answered 429, 5xx or 409 to their records for longer than outbox.maxAge"
            }
            LostReason::Deleted => "a client deleted their records before they were written",
            _ => "the upstream refuses their records for good",
        };
        if self.may_log(reason.label(), now) {
            tracing::warn!(reason = reason.label(), "occurrences are lost: {why}");
        }
    }

    /// Whether a reason of losses or a forbidden verb was not logged within a minute; notes that it is logged now.
    fn may_log(&mut self, what: &'static str, now: Mono) -> bool {
        let may = self.logged.get(what).is_none_or(|last| now.since(*last) >= LOG_INTERVAL);
        if may {
            self.logged.insert(what, now);
        }
        may
    }

    fn note_health(&mut self, change: HealthChange, failure: Option<Retry>) {
        self.monitor.0.is_tried.store(true, Ordering::Relaxed);
        let is_answer = failure.as_ref().is_none_or(|retry| retry.fault.is_answer());
        self.is_silent = !is_answer || self.is_silent && change != HealthChange::WentDown;
        let is_of_outage = self.gate.is_down() || matches!(change, HealthChange::CameUp(_));
        // A refusal ends the silence too.
        if is_answer && self.is_silent && is_of_outage {
            self.shards.end_silence();
            self.is_silent = false;
        }
        match change {
            HealthChange::None => {}
            HealthChange::WentDown => {
                self.went_down = failure;
                self.monitor.0.metrics.up.set(0);
                self.monitor.0.metrics.outages.inc();
            }
            // Logged at the second failure, because with few events each lost answer would look like an outage.
            HealthChange::StaysDown => {
                // An API server closes the connection after a 401, so the second failure may hide the first.
                let [(first, its_cause), (mut fault, mut cause)] = [self.went_down.take(), failure].map(|failure| {
                    failure.map(|retry| (retry.fault.label(), retry.cause.to_string())).unwrap_or_default()
                });
                if first != fault {
                    (fault, cause) = (first, format!("{its_cause}; then {fault}: {cause}"));
                }
                tracing::warn!(fault, cause, "the upstream is down; events wait in the outbox");
            }
            HealthChange::CameUp(failures) => {
                if failures > 1 {
                    tracing::info!("the upstream is up again");
                }
                self.monitor.0.metrics.up.set(1);
            }
        }
    }
}

/// Returns a text of an event for a line of the log, without characters that would begin another line.
fn logged(text: &str) -> String {
    cut(text, LOGGED_BYTES).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a reason was logged with its line ends and control characters, and with up to 3 MiB.
    #[test]
    fn a_text_of_an_event_is_one_short_line_of_the_log() {
        assert_eq!(logged("Back-Off \u{e9}"), "Back-Off \u{e9}");
        assert_eq!(logged("a\nERROR \u{1b}[31m"), "a\\nERROR \\u{1b}[31m");
        assert!(logged(&"\u{1b}".repeat(3 << 20)).len() < 10 * LOGGED_BYTES);
    }
}
