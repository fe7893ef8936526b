//! Which namespaces have trouble of their own. Pure.
//!
//! An apiserver limits the events of one object (EventRateLimit), and an admission webhook may fail for one namespace. What fails
//! there says little of the upstream. So a failure counts against the upstream only while it is news: another object of its
//! namespace than the last that failed, and no more than a few one after the other. From then on the namespace is sick: its records
//! are put off, and one of them at a time tries whether it is well again.

use std::collections::HashMap;

use smol_str::SmolStr;

use super::gate::{GateSettings, Outcome};
use crate::clock::Mono;
use crate::outbox::{Applied, Fault, Request, Retry, backoff};

/// Objects of a namespace that have to fail one after the other, with no good answer between, until it counts as sick.
const SICK_AFTER: u32 = 4;

/// LIMIT: namespaces with trouble that are remembered; beyond it those are forgotten whose pause is over, and further ones are not
/// noted.
const LANES_MAX: usize = 4096;

/// The namespaces with trouble.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    // LIMIT: `LANES_MAX`.
    lanes: HashMap<SmolStr, Lane>,
}

#[derive(Debug)]
struct Lane {
    /// Objects that failed in a row; once it is sick, tries.
    failures: u32,
    /// The last of them.
    object: SmolStr,
    /// When that was counted. What was sent before says nothing new.
    counted: Mono,
    /// While it is sick, the next try goes then.
    until: Mono,
    /// A try is on its way.
    is_tried: bool,
    /// What the last failure was.
    fault: Fault,
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    namespace: SmolStr,
    /// The name of the record, without its end: that is the name of its object, unless a client has chosen otherwise.
    object: SmolStr,
}

impl Place {
    /// The place of a request.
    pub(super) fn of(request: &Request) -> Self {
        let (namespace, name) = match request {
            Request::Create { event, .. } => (&event.metadata.namespace, &event.metadata.name),
            Request::Patch { namespace, name, .. }
            | Request::Read { namespace, name, .. }
            | Request::Delete { namespace, name, .. } => (namespace, name),
        };
        let object = name.rsplit_once('.').map_or(name.as_str(), |(object, _)| object);
        Self { namespace: namespace.clone(), object: object.into() }
    }
}

impl Lane {
    const fn is_sick(&self) -> bool {
        self.failures >= SICK_AFTER
    }
}

impl Lanes {
    /// Whether a request may go now. If not, its record is to be settled with this.
    pub(super) fn acquire(&mut self, place: &Place, now: Mono) -> Result<(), Retry> {
        let Some(lane) = self.lanes.get_mut(&place.namespace).filter(|lane| lane.is_sick()) else { return Ok(()) };
        if lane.is_tried || lane.until > now {
            let after = Some(lane.until.since(now));
            return Err(Retry { after, applied: Applied::No, fault: lane.fault });
        }
        lane.is_tried = true;
        Ok(())
    }

    /// Takes the answer to a request that was sent then, and says what it tells of the upstream. `trouble` is `None` for an answer
    /// that shows the upstream at work.
    pub(super) fn settle(
        &mut self,
        place: &Place,
        trouble: Option<Retry>,
        (sent, now): (Mono, Mono),
        settings: &GateSettings,
        jitter: f64,
    ) -> Outcome {
        let Some(Retry { fault, .. }) = trouble else {
            self.lanes.remove(&place.namespace);
            return Outcome::Good;
        };
        let is_of_upstream = matches!(fault, Fault::Transport | Fault::Unauthorized | Fault::NotApiserver);
        let Some(lane) = self.lanes.get_mut(&place.namespace) else {
            if !is_of_upstream {
                self.begin(place, fault, now);
            }
            return Outcome::Trouble;
        };
        if lane.is_sick() && sent < lane.until {
            return Outcome::Known;
        }
        if is_of_upstream {
            lane.is_tried = false;
            return Outcome::Trouble;
        }
        if !lane.is_sick() && lane.object == place.object {
            return Outcome::Known;
        }
        if sent < lane.counted {
            return Outcome::Trouble;
        }
        let outcome = if lane.is_sick() { Outcome::Known } else { Outcome::Trouble };
        lane.failures = lane.failures.saturating_add(1);
        lane.object.clone_from(&place.object);
        (lane.counted, lane.is_tried, lane.fault) = (now, false, fault);
        let pause = backoff(lane.failures.saturating_add(1), jitter, settings.first_backoff, settings.max_backoff);
        lane.until = now.after(pause);
        outcome
    }

    fn begin(&mut self, place: &Place, fault: Fault, now: Mono) {
        if self.lanes.len() >= LANES_MAX {
            self.lanes.retain(|_, lane| lane.until > now);
        }
        if self.lanes.len() < LANES_MAX {
            let object = place.object.clone();
            let lane = Lane { failures: 1, object, counted: now, until: now, is_tried: false, fault };
            self.lanes.insert(place.namespace.clone(), lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: i64) -> Mono {
        Mono(millis * 1_000_000)
    }

    fn place(namespace: &str, object: &str) -> Place {
        Place { namespace: namespace.into(), object: object.into() }
    }

    fn settle(lanes: &mut Lanes, place: &Place, fault: Option<Fault>, millis: i64) -> Outcome {
        let trouble = fault.map(|fault| Retry { after: None, applied: Applied::No, fault });
        lanes.settle(place, trouble, (at(millis), at(millis)), &GateSettings::default(), 0.0)
    }

    #[test]
    fn one_object_is_news_once_and_never_makes_its_namespace_sick() {
        let mut lanes = Lanes::default();
        let hot = place("shop", "hot");
        assert_eq!(settle(&mut lanes, &hot, Some(Fault::Overloaded), 0), Outcome::Trouble);
        for millis in 1..100 {
            assert_eq!(lanes.acquire(&hot, at(millis)), Ok(()));
            assert_eq!(settle(&mut lanes, &hot, Some(Fault::Overloaded), millis), Outcome::Known);
            assert_eq!(lanes.acquire(&place("shop", "other"), at(millis)), Ok(()));
        }
    }

    #[test]
    fn a_sick_namespace_is_tried_now_and_then_and_holds_up_no_other() {
        let mut lanes = Lanes::default();
        for (number, object) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert_eq!(lanes.acquire(&place("sick", object), at(0)), Ok(()), "{number}");
            assert_eq!(settle(&mut lanes, &place("sick", object), Some(Fault::ServerError), 0), Outcome::Trouble);
        }
        let put_off =
            Retry { after: Some(Duration::from_millis(1_600)), applied: Applied::No, fault: Fault::ServerError };
        assert_eq!(lanes.acquire(&place("sick", "e"), at(0)), Err(put_off));
        assert_eq!(lanes.acquire(&place("well", "a"), at(0)), Ok(()));
        assert_eq!(lanes.acquire(&place("sick", "e"), at(1_600)), Ok(()));
        assert!(lanes.acquire(&place("sick", "f"), at(1_600)).is_err(), "one at a time");
        assert_eq!(settle(&mut lanes, &place("sick", "e"), Some(Fault::ServerError), 1_600), Outcome::Known);
        assert!(lanes.acquire(&place("sick", "f"), at(4_799)).is_err());
        assert_eq!(lanes.acquire(&place("sick", "f"), at(4_800)), Ok(()));
        assert_eq!(settle(&mut lanes, &place("sick", "f"), None, 4_800), Outcome::Good);
        assert_eq!(lanes.acquire(&place("sick", "g"), at(4_800)), Ok(()));
    }

    #[test]
    fn what_is_not_about_a_record_is_the_upstreams() {
        let mut lanes = Lanes::default();
        for fault in [Fault::Transport, Fault::Unauthorized, Fault::NotApiserver] {
            for _ in 0..9 {
                assert_eq!(settle(&mut lanes, &place("shop", "a"), Some(fault), 0), Outcome::Trouble);
            }
        }
        assert_eq!(lanes.acquire(&place("shop", "b"), at(0)), Ok(()));
    }

    #[test]
    fn requests_of_one_round_trip_count_once() {
        let mut lanes = Lanes::default();
        let trouble = Some(Retry { after: None, applied: Applied::No, fault: Fault::ServerError });
        for object in ["a", "b", "c", "d", "e", "f"] {
            let outcome = lanes.settle(&place("shop", object), trouble, (at(0), at(1)), &GateSettings::default(), 0.0);
            assert_eq!(outcome, Outcome::Trouble);
        }
        assert_eq!(lanes.acquire(&place("shop", "g"), at(1)), Ok(()));
    }
}
