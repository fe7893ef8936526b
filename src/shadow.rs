//! The shadow configuration: a second configuration that gets the same occurrences as the live one and writes nothing.
//!
//! It drives its own [`Shard`], as `serve` and `replay` do, with an upstream that answers at once and stores nothing.
//! The results of both configurations are compared from its start on. Its own limits bound its memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use smol_str::{SmolStr, format_smolstr};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::{Mono, Now};
use crate::correlator::{KeySecret, Policy};
use crate::event::{Event, ObjectMeta};
use crate::explain::{Group, Totals, Unseen};
use crate::ledger::{Balance, RejectReason};
use crate::outbox::{Answer, Patch, Request, Why};
use crate::shard::{Settings, Shard, Shards, Shown};

/// LIMIT: occurrences in the queue of the shadow; further ones are left out and counted as missed.
const QUEUE: usize = 1024;
/// LIMIT: occurrences that are processed under one lock; further ones stay in the queue.
const AT_ONCE: usize = 256;
/// Shortest pause between two checks for due writes.
const PAUSE: Duration = Duration::from_millis(1);

/// Namespace and reason.
type Name = (SmolStr, SmolStr);

/// A shadow configuration.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    /// Its file.
    pub file: String,
    /// Its rules.
    pub policy: Policy,
    /// Its limits.
    pub settings: Settings,
    /// `explain.maxBytes` of the live configuration, only to notice a change: with less memory, the live totals may begin
    /// again. The shadow's own is in `settings`.
    pub explain_bytes: usize,
}

/// The running shadow, if there is one. Clones share it.
#[derive(Debug, Clone)]
pub struct Shadow(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: Shards,
    secret: KeySecret,
    run: Mutex<Option<Run>>,
    sender: mpsc::Sender<Shown>,
    changed: Notify,
}

/// The task that processes the occurrences which the shards mirror.
#[derive(Debug)]
pub struct Runner {
    shadow: Shadow,
    shown: mpsc::Receiver<Shown>,
}

#[derive(Debug)]
struct Run {
    rules: Rules,
    shard: Shard,
    number: u64,
    revision: u64,
    since: i64,
    /// The live ledger at the start of the shadow.
    ledger: Sums,
    /// The live totals at the start of the shadow.
    // LIMIT: groups of the live configuration.
    totals: BTreeMap<Name, Totals>,
}

/// The sums of one configuration's ledger, and its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sums {
    /// Occurrences that arrived at the correlator, which is all that the shadow gets.
    pub received: u64,
    /// Creates and patches.
    pub writes: u64,
    /// Occurrences that are shown.
    pub shown: u64,
    /// Occurrences that wait.
    pub waiting: u64,
    /// Waiting occurrences that wait for a token.
    pub deferred: u64,
    /// Occurrences that are lost.
    pub lost: u64,
    /// Occurrences that were refused because the outbox was full.
    pub rejected: u64,
}

/// Results of the same occurrences under the live and the shadow configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Sides<T> {
    /// The live result since the start of the shadow.
    pub live: T,
    /// The shadow's result.
    pub shadow: T,
}

/// The difference between the live and the shadow configuration.
#[derive(Debug)]
pub struct Difference {
    /// File of the shadow configuration.
    pub file: String,
    /// When the shadow started, in unix nanoseconds.
    pub since: i64,
    /// Occurrences that were left out because the queue was full.
    pub missed: u64,
    /// All occurrences.
    pub ledger: Sides<Sums>,
    /// Facts without a shown occurrence.
    pub unseen: Sides<Unseen>,
    /// Totals by reason, in the visible namespaces; those whose writes differ most come first.
    pub reasons: Vec<(SmolStr, Sides<Totals>)>,
}

impl Sums {
    fn of(balance: &Balance, groups: &[Group]) -> Self {
        let ledger = &balance.ledger;
        let full = ledger.rejected(RejectReason::Full);
        Self {
            received: ledger.received() - (ledger.total_rejected() - full),
            writes: groups.iter().map(|group| group.totals.writes).sum(),
            shown: ledger.total_written(),
            waiting: balance.total_waiting(),
            deferred: balance.waiting[Why::Budget as usize] + balance.waiting[Why::Group as usize],
            lost: ledger.total_lost(),
            rejected: full,
        }
    }

    /// Subtracts an earlier ledger; what waits is the current number.
    fn since(self, before: Self) -> Self {
        Self {
            received: self.received.saturating_sub(before.received),
            writes: self.writes.saturating_sub(before.writes),
            shown: self.shown.saturating_sub(before.shown),
            lost: self.lost.saturating_sub(before.lost),
            rejected: self.rejected.saturating_sub(before.rejected),
            ..self
        }
    }
}

fn by_name(groups: &[Group]) -> BTreeMap<Name, Totals> {
    let mut sums = BTreeMap::<Name, Totals>::new();
    for group in groups {
        let sum = sums.entry((group.namespace.clone(), group.reason.clone())).or_default();
        *sum = sum.plus(group.totals);
    }
    sums
}

impl Shadow {
    /// Creates a handle without a shadow, and the task to run.
    pub fn new(shards: Shards, secret: KeySecret) -> (Self, Runner) {
        let (sender, shown) = mpsc::channel(QUEUE);
        let (run, changed) = (Mutex::default(), Notify::new());
        let shadow = Self(Arc::new(Inner { shards, secret, run, sender, changed }));
        (shadow.clone(), Runner { shadow, shown })
    }

    /// Starts, replaces or ends the shadow. An equal configuration changes nothing.
    pub fn set(&self, rules: Option<Rules>) {
        let Inner { shards, secret, run, sender, changed } = &*self.0;
        let mut run = run.lock();
        if run.as_ref().map(|run| &run.rules) == rules.as_ref() {
            return;
        }
        let number = run.as_ref().map_or(0, |run| run.number) + 1;
        *run = rules.map(|rules| {
            let groups: Vec<Group> = shards.groups().into_iter().flatten().collect();
            let (ledger, totals) = (Sums::of(&shards.balance(), &groups), by_name(&groups));
            let shard = Shard::new(*secret, rules.settings.clone(), 0);
            Run { rules, shard, number, revision: 0, since: shards.clock().now().wall, ledger, totals }
        });
        shards.mirror().set(run.is_some().then(|| (sender.clone(), number)));
        changed.notify_one();
    }

    /// Returns the difference in the visible namespaces; `None` without a shadow.
    pub fn difference(&self, is_seen: &dyn Fn(&str) -> bool) -> Option<Difference> {
        let Inner { shards, run, .. } = &*self.0;
        let now = shards.clock().now();
        let groups: Vec<Group> = shards.groups().into_iter().flatten().collect();
        let (live, live_unseen) = (Sums::of(&shards.balance(), &groups), shards.unseen(is_seen));
        let mut run = run.lock();
        let run = run.as_mut()?;
        let mut reasons = BTreeMap::<SmolStr, Sides<Totals>>::new();
        let seen = |totals: BTreeMap<Name, Totals>| totals.into_iter().filter(|((namespace, _), _)| is_seen(namespace));
        for (name, totals) in seen(by_name(&groups)) {
            let before = run.totals.get(&name).copied().unwrap_or_default();
            let sides = reasons.entry(name.1).or_default();
            sides.live = sides.live.plus(totals.since(before));
        }
        let shadow = run.shard.balance();
        let storms = run.shard.storm_states();
        let shadow_unseen = run.shard.unseen(is_seen, &storms, now.mono);
        let kept = run.shard.store();
        for ((_, reason), totals) in seen(by_name(kept.groups())) {
            let sides = reasons.entry(reason).or_default();
            sides.shadow = sides.shadow.plus(totals);
        }
        let is_some = |sides: &Sides<Totals>| *sides != Sides::default();
        let mut reasons: Vec<_> = reasons.into_iter().filter(|(_, sides)| is_some(sides)).collect();
        reasons.sort_by_key(|(_, sides)| std::cmp::Reverse(sides.live.writes.abs_diff(sides.shadow.writes)));
        Some(Difference {
            file: run.rules.file.clone(),
            since: run.since,
            missed: shards.mirror().missed(),
            ledger: Sides { live: live.since(run.ledger), shadow: Sums::of(&shadow, kept.groups()) },
            unseen: Sides { live: live_unseen, shadow: shadow_unseen },
            reasons,
        })
    }

    fn take(&self, shown: impl Iterator<Item = Shown>) {
        let now = self.0.shards.clock().now();
        let mut run = self.0.run.lock();
        let Some(run) = run.as_mut() else { return };
        for Shown { event, occurrences, run: number, share: _share } in shown {
            if number == run.number {
                // The ledger counts an occurrence beyond the limits as rejected.
                let _full = run.shard.accept(event, occurrences, now, &run.rules.policy);
                run.deliver(now);
            }
        }
        run.deliver(now);
    }

    fn next_wakeup(&self, now: Mono) -> Option<Mono> {
        self.0.run.lock().as_ref()?.shard.next_wakeup(now)
    }
}

impl Run {
    /// Delivers as `serve` does, without an upstream.
    fn deliver(&mut self, now: Now) {
        while let Some(write) = self.shard.next_write(now) {
            self.revision += 1;
            self.shard.settle(write.record, answer(write.request, self.revision), now);
        }
    }
}

/// Returns the answer of an upstream that stores everything.
fn answer(request: Request, revision: u64) -> Answer {
    let resource_version = format_smolstr!("{revision}");
    match request {
        Request::Create { mut event, .. } => {
            event.metadata.resource_version = resource_version;
            Answer::Stored(event)
        }
        Request::Patch { namespace, name, patch: Patch { count, message, .. }, .. } => {
            let metadata = ObjectMeta { namespace, name, resource_version, ..ObjectMeta::default() };
            Answer::Stored(Box::new(Event { metadata, count, message, ..Event::default() }))
        }
        Request::Read { .. } | Request::Delete { .. } => Answer::Missing,
    }
}

impl Runner {
    /// Processes mirrored occurrences until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let clock = self.shadow.0.shards.clock().clone();
        let mut shown = Vec::with_capacity(AT_ONCE);
        loop {
            let now = clock.now().mono;
            let at = self.shadow.next_wakeup(now).map(|at| at.max(now.after(PAUSE)));
            let due = async {
                match at {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                _number = self.shown.recv_many(&mut shown, AT_ONCE) => {}
                () = due => {}
                () = self.shadow.0.changed.notified() => {}
            }
            self.shadow.take(shown.drain(..));
        }
    }
}
