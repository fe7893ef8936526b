//! Together is as one after the other, whoever has locked what.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Clock;
use crate::correlator::KeySecret;
use crate::event::Event;
use crate::shard::Settings;

/// An event of one of a few sources, about one of a few objects, with one of a few messages.
fn event((source, object, message): (u8, u8, u8)) -> Event {
    let mut event = Event { message: format!("message {message}").into(), ..Event::default() };
    event.source.component = format!("component-{source}").into();
    event.involved_object.name = format!("object-{object}").into();
    event.metadata.name = format!("object-{object}.{source}{message}").into();
    event.metadata.namespace = "default".into();
    event
}

fn shards(count: usize, max_records: usize, clock: Clock) -> Shards {
    let mut settings = Settings::default();
    settings.outbox.max_records = NonZeroUsize::new(max_records).unwrap();
    Shards::new(NonZeroUsize::new(count).unwrap(), &settings, Policy::default(), clock, KeySecret(1, 2), 1)
}

fn records(shards: &Shards) -> Vec<(Event, u64)> {
    let of_one = |index| {
        shards.look(index, |shard| shard.pending().map(|(event, count)| (event.clone(), count)).collect::<Vec<_>>())
    };
    let mut records: Vec<_> = (0..shards.count()).flat_map(of_one).collect();
    records.sort_by(|(one, _), (other, _)| {
        (&one.metadata.name, &one.message).cmp(&(&other.metadata.name, &other.message))
    });
    records
}

proptest! {
    /// Shards with nothing in them, then with what came before; sometimes with no room, and one that somebody has locked.
    #[test]
    fn together_is_as_one_after_the_other(
        rounds in proptest::collection::vec(proptest::collection::vec((0..9_u8, 0..3_u8, 0..20_u8), 0..90), 1..4),
        count in 1..5_usize,
        max_records in prop_oneof![4..40_usize, Just(1000)],
    ) {
        let clock = Clock::manual(1_700_000_000_000_000_000);
        let (together, alone) = (shards(count, max_records, clock.clone()), shards(count, max_records, clock.clone()));
        let policy = Policy::default();
        for round in rounds {
            let mut events: Vec<Event> = round.iter().copied().map(event).collect();
            // By shards, because their room is shared: whoever comes first gets it.
            let mut order: Vec<usize> = (0..events.len()).collect();
            order.sort_by_key(|place| alone.shard_of(&events[*place]));
            let mut expected = vec![Err(Full); events.len()];
            for place in order {
                expected[place] = alone.accept(events[place].clone(), 1);
            }
            let mut all = together.together(&policy);
            all.accept(&mut events);
            prop_assert_eq!(all.finish(), expected);
            prop_assert_eq!(together.balance(), alone.balance());
            prop_assert_eq!(records(&together), records(&alone));
            clock.advance(Duration::from_secs(7));
        }
    }
}

/// More of each source than one turn and one lock take, alternating; in threes.
fn many() -> [Vec<Event>; 3] {
    [0, 1, 2].map(|part| (0..200_u8).map(|number| event((number % 16, number % 3, part * 7 + number / 48))).collect())
}

#[test]
fn those_of_a_locked_shard_are_left_until_it_is_free() {
    let (clock, policy) = (Clock::manual(0), Policy::default());
    let (shards, alone) = (shards(2, 1000, clock.clone()), shards(2, 1000, clock));
    let expected: Vec<_> = many().into_iter().flatten().map(|event| alone.accept(event, 1)).collect();
    let own: Vec<bool> = many().iter().flatten().map(|event| shards.shard_of(event) == 0).collect();
    let [mut first, mut second, mut third] = many();
    let mut all = shards.together(&policy);

    let guard = shards.0.shards[0].lock();
    all.accept(&mut first[..40]);
    assert!(!all.left.is_empty() && all.left.iter().all(|left| left.shard == 0 && own[left.place]));
    assert_eq!(all.left.len(), own[..40].iter().filter(|own| **own).count());
    for (place, result) in all.results.iter().enumerate() {
        let is_left = own[place];
        assert_eq!(*result, if is_left { Err(Full) } else { expected[place] }, "{place}");
    }
    drop(guard);

    // Those that are left come first.
    all.accept(&mut first[40..]);
    assert!(all.left.is_empty());
    assert_eq!(all.results, expected[..200]);

    // It is locked again, until the end.
    let guard = shards.0.shards[0].lock();
    all.accept(&mut second[..30]);
    drop(guard);
    assert!(!all.left.is_empty());
    all.accept(&mut second[30..]);
    all.accept(&mut third);
    assert_eq!(all.finish(), expected);
    assert_eq!(records(&shards), records(&alone));
    assert_eq!(shards.balance(), alone.balance());
    assert!(shards.0.shards.iter().all(|shard| !shard.is_locked()));
}

#[test]
fn those_behind_others_that_are_left_are_left() {
    let (shards, policy) = (shards(1, 1000, Clock::manual(0)), Policy::default());
    let mut all = shards.together(&policy);
    let [mut first, mut second, _] = many();
    all.accept_by(&mut first[..3], |_| None);
    // It becomes free after those that are left were tried.
    let tries = Cell::new(0);
    all.accept_by(&mut second[..3], |shard| {
        tries.set(tries.get() + 1);
        (tries.get() > 1).then(|| shard.lock())
    });
    assert!(tries.get() > 1);
    assert_eq!(all.left.iter().map(|left| left.place).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(all.finish().iter().all(Result::is_ok));
}

#[test]
fn those_that_were_left_are_not_too_many_under_one_lock_either() {
    let (shards, policy) = (shards(1, 1000, Clock::manual(0)), Policy::default());
    let mut all = shards.together(&policy);
    let [mut events, ..] = many();
    all.accept_by(&mut events[..LEFT], |_| None);
    let places = |all: &Together<'_, '_>| all.left.iter().map(|left| left.place).collect::<Vec<_>>();
    // Locked for the first of them: the others stay behind.
    let tries = Cell::new(0);
    let count = || tries.replace(tries.get() + 1);
    all.accept_left(|shard| (count() > 0).then(|| shard.lock()));
    assert_eq!((tries.take(), places(&all)), (LEFT / UNDER_ONE_LOCK, (0..LEFT).collect()));
    // Locked for the others.
    all.accept_left(|shard| (count() == 0).then(|| shard.lock()));
    assert_eq!((tries.take(), places(&all)), (LEFT / UNDER_ONE_LOCK, (UNDER_ONE_LOCK..LEFT).collect()));
    assert!(all.finish().iter().all(Result::is_ok));
}

#[test]
fn one_waits_when_too_many_are_left() {
    let (shards, policy) = (shards(2, 1000, Clock::manual(0)), Policy::default());
    let mut all = shards.together(&policy);
    let [mut events, ..] = many();
    all.accept_by(&mut events[..LEFT], |_| None);
    assert_eq!(all.left.len(), LEFT);
    all.accept_by(&mut events[LEFT..=LEFT], |_| None);
    assert_eq!((all.left.len(), all.results.len()), (0, LEFT + 1));
    assert!(all.results.iter().all(Result::is_ok));
}
