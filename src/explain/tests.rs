//! Tests of what is kept, and for how long.

use super::*;
use crate::outbox::Reach;

const SECRET: KeySecret = KeySecret(1, 2);

fn event(object: usize, reason: &str, message: &str) -> Event {
    let mut event = Event { reason: reason.into(), message: message.into(), ..Event::default() };
    event.metadata.namespace = "shop".into();
    event.involved_object.name = format!("web-{object}").into();
    event.involved_object.uid = format!("{:036}", object + message.len() % 3).into();
    event
}

fn accept(store: &mut Store, event: &Event, record: u64, at: i64) {
    accept_as(Verdict::Combined, store, event, record, at);
}

fn accept_as(verdict: Verdict, store: &mut Store, event: &Event, record: u64, at: i64) {
    let now = Now::at(at);
    let key = SECRET.keys(event, &Default::default()).event;
    let (record, message) = (RecordId(record), event.message.clone());
    let arrival = Arrival { record, repeat: Some(key), caller: "", event, message, number: 1 };
    let received = store.receive_of(arrival, now).unwrap();
    let ruling = Ruling {
        verdict,
        number: 1,
        record,
        kind: Kind::Combined,
        caller: "",
        source: Key(1),
        keys: Some((key, Key(2))),
        paid: None,
        rule: None,
        // A record's first occurrence is counted in no run.
        before: 1,
    };
    store.decide(received, ruling, now, || None);
}

/// Notes what became of `number` occurrences of a record, or of none.
fn remark(
    store: &mut Store,
    fact_ref: FactRef,
    (verdict, why): (Verdict, &'static str),
    number: u64,
    record: Option<u64>,
    now: Now,
) {
    let record = record.map(RecordId);
    store.remark(fact_ref, Remark { verdict, why, number, record, text: "" }, now);
}

/// Notes that the upstream has stored a record with this count, and one more occurrence than before.
fn written(store: &mut Store, event: &Event, record: u64, kind: Kind, count: i64, now: Now) {
    let (record, fact_ref) = (RecordId(record), store.fact_ref(event, now).unwrap());
    let written = Written { record, kind, name: &"n".into(), message: &event.message, count, number: 1 };
    store.written(fact_ref, written, now);
}

/// Notes that one occurrence of a record has folded into a digest, which has this reach with it.
fn fold(store: &mut Store, event: &Event, record: u64, into: RecordId, reach: Reach, now: Now) {
    let forgotten = Forgotten {
        source: Key(1),
        key: Key(record.into()),
        record: RecordId(record),
        into,
        kind: Kind::Digest,
        name: SmolStr::default(),
        reach,
        event: Box::new(event.clone()),
        number: 1,
    };
    store.fold(&forgotten, into, now);
}

fn store(bytes: usize) -> Store {
    Store::new(Settings { enabled: true, max_bytes: NonZeroUsize::new(bytes).unwrap(), ..Settings::default() }, SECRET)
}

#[test]
fn bytes_stay_within_the_budget_whatever_arrives_and_are_what_is_there() {
    let mut store = store(100_000);
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..20_000 {
        let (reason, message) = (format!("R{}", random.u32(..60)), "m".repeat(random.usize(..3000)));
        accept(&mut store, &event(random.usize(..300), &reason, &message), random.u64(..40), number);
        assert!(store.bytes() <= 100_000 + 120_000, "one object may be as large as it may be");
    }
    let counted: usize = store.histories().map(History::bytes).sum();
    assert_eq!(counted + store.group_bytes.own() + store.runs.bytes(), store.bytes());
    assert!((1..=25_000).contains(&store.runs.bytes()), "a quarter is the most");
    assert!(store.span().1.is_some());
    store.set_settings(Settings::default(), 0, Now::at(0));
    assert_eq!(store.bytes(), 0);
}

/// Fault: two shards had added a group at once, and the next reload of anything emptied them.
#[test]
fn a_reload_of_the_same_limit_forgets_nothing() {
    let mut store = store(1_000_000);
    accept(&mut store, &event(0, "R", "m"), 0, 1);
    store.group_bytes += store.settings.quarter();
    store.set_settings(store.settings, 0, Now::at(0));
    assert_eq!(store.histories().count(), 1);
}

/// Fault: groups kept more than their part for ever, and left no room for any object.
#[test]
fn after_a_reload_to_a_lower_limit_there_is_room_for_objects() {
    let mut store = store(1_000_000);
    for number in 0..1000 {
        accept(&mut store, &event(number % 9, &format!("R{number}"), "m"), number as u64, 1);
    }
    let settings = Settings { max_bytes: NonZeroUsize::new(100_000).unwrap(), ..store.settings };
    assert!(store.group_bytes.own() > settings.quarter());
    store.set_settings(settings, 0, Now::at(0));
    assert!(store.bytes() <= 100_000 && store.group_bytes.own() <= settings.quarter());
    accept(&mut store, &event(0, "R", "m"), 2000, 2);
    assert_eq!((store.histories().count(), store.span().1), (1, Some(1)), "earlier decisions are forgotten");
}

#[test]
fn equal_decisions_within_seconds_are_one_entry_and_distinct_messages_are_kept() {
    for (seconds, entries) in [(5, 10), (0, 1)] {
        let mut store = store(1_000_000);
        for number in 0..30 {
            accept(
                &mut store,
                &event(0, "R", &format!("m{}", number / 3)),
                7,
                number + seconds * 1_000_000_000 * number,
            );
        }
        store.flush_runs();
        let history = store.histories().next().unwrap();
        assert_eq!((history.decisions.len(), history.facts[0].received), (entries, 30));
        let newest = history.decisions.back().unwrap();
        assert_eq!((newest.occurrences, newest.text.as_str()), (30 / entries as u64, "m9"));
        let kept: Vec<&str> = history.records[0].messages.iter().map(|(_, message)| message.as_str()).collect();
        assert_eq!(kept, ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"]);
    }
}

/// Facts beyond the limit share the place of the last one.
///
/// Fault: their equal decisions were one line each, because each reason has a record of its own.
#[test]
fn repeats_of_facts_beyond_the_limit_are_noted_too() {
    let mut store = store(1_000_000);
    for number in (0..33).chain([32, 32]) {
        accept(&mut store, &event(0, &format!("R{number}"), "m"), number, 1);
    }
    store.flush_runs();
    let history = store.histories().next().unwrap();
    assert_eq!((history.facts.len(), history.facts[31].received), (32, 4));
    assert_eq!(history.decisions.back().unwrap().occurrences, 4);
}

/// Fault: what had folded, was lost or refused of an object's further reasons was counted for the first of them.
#[test]
fn the_totals_of_a_reason_beyond_the_limit_are_its_own() {
    let (mut store, now) = (store(1_000_000), Now::at(1));
    for number in 0..40 {
        accept(&mut store, &event(0, &format!("R{number}"), "m"), number, 1);
    }
    let further = event(0, "R39", "m");
    fold(&mut store, &further, 39, RecordId(1_000), Reach { counted: 1, settled: 0 }, now);
    for verdict in [Verdict::Lost, Verdict::Rejected] {
        let fact_ref = store.receive(&further, 1, now).unwrap();
        remark(&mut store, fact_ref, (verdict, "invalid"), 1, None, now);
    }
    store.flush_runs();
    for group in &store.groups()[1..] {
        let of = u64::from(group.reason == "R39");
        let Totals { received, folded, lost, rejected, .. } = group.totals;
        assert_eq!((received, folded, lost, rejected), (1 + 2 * of, of, of, of), "{}", group.reason);
    }
}

/// Compares numbers that were added at once with numbers that were counted in runs.
#[test]
fn repeats_are_told_whole_whenever_that_is() {
    let mut random = fastrand::Rng::with_seed(1);
    let [mut at_once, mut later] = [store(1_000_000), store(1_000_000)];
    let mut at = 0;
    for _ in 0..30_000 {
        let (object, reason) = (random.usize(..30), random.usize(..3));
        let record = (object * 3 + reason) as u64 * 16;
        let event = event(object, &format!("R{reason}"), &format!("m{}", random.usize(..2)));
        at += random.i64(0..40_000_000);
        // Now and then the budget is empty.
        let verdict = if at % 11 == 10 { Verdict::Deferred } else { Verdict::Combined };
        for store in [&mut at_once, &mut later] {
            accept_as(verdict, store, &event, record, at);
            if record.is_multiple_of(7) && at % 5 == 0 {
                let fact_ref = store.fact_ref(&event, Now::at(at)).unwrap();
                remark(store, fact_ref, (Verdict::Written, ""), 1, Some(record), Now::at(at));
            }
        }
        at_once.flush_runs();
    }
    let runs: Vec<_> = later.change_runs(Runs::end_all).collect();
    assert!(runs.iter().any(|(_, run)| run.number > 1), "nothing was counted in runs");
    runs.iter().for_each(|(record, run)| later.add_run(*record, run));
    let [at_once, later] = [at_once, later].map(|store| {
        let fact = |fact: &Fact| (fact.reason.clone(), fact.received, fact.last_received);
        let history = |history: &History| {
            let facts: Vec<_> = history.facts.iter().map(fact).collect();
            let messages: Vec<_> = history.records.iter().map(|kept| kept.messages.clone()).collect();
            (history.name.clone(), facts, messages)
        };
        let mut histories: Vec<_> = store.histories().map(history).collect();
        histories.sort();
        let totals: Vec<Totals> = store.groups().iter().map(|group| group.totals).collect();
        (histories, totals, store.flow(Mono(at)), store.rule_hits().to_vec())
    });
    assert_eq!(at_once, later);
    let received: u64 = later.1.iter().map(|totals| totals.received).sum();
    assert_eq!(received, 30_000);
}

#[test]
fn a_reason_beyond_the_limit_is_among_the_others() {
    let mut store = store(1_000_000);
    for number in 0..40 {
        accept(&mut store, &event(0, &format!("R{number}"), "m"), number, 1);
    }
    accept(&mut store, &event(1, "R0", "m"), 50, 1);
    store.flush_runs();
    let [full, other] = [31, 0].map(|after| {
        let mut histories = store.histories();
        histories.find(|history| history.facts.len() > after && (after > 0 || history.facts.len() == 1)).unwrap()
    });
    let query = |reason: &str| Query { name: full.name.to_string(), reason: reason.to_owned(), ..Query::default() };
    let meant = |query: &Query| {
        let facts = full.facts.iter().filter(|fact| query.means(full, fact));
        facts.map(|fact| fact.reason.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((meant(&query("R3")), meant(&query("R39"))), (vec!["R3".to_owned()], vec!["(others)".to_owned()]));
    assert!(query("R39").matches(full));
    let source = Query { source: "none".to_owned(), ..Query::default() };
    assert!(!source.matches(full), "no object is named");
    let query = Query { name: other.name.to_string(), reason: "R9".to_owned(), ..Query::default() };
    assert!(!query.matches(other));
    assert!(query.near(other).starts_with("Other reasons or sources of it are known"), "{}", query.near(other));
    assert!(query.near(full).starts_with("The nearest name is"), "{}", query.near(full));
}

#[test]
fn a_failure_after_a_write_begins_another_series() {
    let mut store = store(1_000_000);
    let event = event(0, "R", "m");
    accept(&mut store, &event, 7, 0);
    for (at, verdict) in [(1, Verdict::Failed), (2, Verdict::Failed), (3, Verdict::Written), (9, Verdict::Failed)] {
        let fact_ref = store.fact_ref(&event, Now::at(at)).unwrap();
        remark(&mut store, fact_ref, (verdict, "transport"), 0, Some(7), Now::at(at));
    }
    let history = store.histories().next().unwrap();
    let failed = history.decisions.iter().filter(|decision| decision.verdict == Verdict::Failed);
    assert_eq!(failed.map(|decision| decision.time).collect::<Vec<_>>(), [1, 9]);
}

#[test]
fn a_series_of_failures_has_the_newest_text() {
    let mut store = store(1_000_000);
    let event = event(0, "R", "m");
    accept(&mut store, &event, 7, 0);
    for (at, text) in [(1, "request 1 failed"), (2, "request 2 failed"), (3, "")] {
        let fact_ref = store.fact_ref(&event, Now::at(at)).unwrap();
        let remark =
            Remark { verdict: Verdict::Failed, why: "server_error", number: 0, record: Some(RecordId(7)), text };
        store.remark(fact_ref, remark, Now::at(at));
    }
    let history = store.histories().next().unwrap();
    let failed: Vec<_> = history.decisions.iter().filter(|decision| decision.verdict == Verdict::Failed).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].time, failed[0].last, failed[0].text.as_str()), (1, 3, "request 2 failed"));
}

/// Fault: in an outage, the tries of five records pushed all other decisions out, and each was said to be the first.
#[test]
fn failed_tries_of_several_records_are_one_series() {
    let mut store = store(1_000_000);
    let events = [0, 1, 2, 3, 4, 5].map(|number| event(0, "R", &format!("m{number}")));
    for (event, record) in events.iter().zip(0..) {
        accept_as(Verdict::Created, &mut store, event, record, 0);
    }
    for round in 0..60 {
        let fact_ref = store.fact_ref(&events[0], Now::at(round)).unwrap();
        let record = Some(round.cast_unsigned() % 6);
        remark(&mut store, fact_ref, (Verdict::Failed, "transport"), 0, record, Now::at(round + 1));
    }
    let history = store.histories().next().unwrap();
    let decisions = history.decisions.iter().map(|decision| (decision.verdict, decision.time, decision.last));
    let created = std::iter::repeat_n((Verdict::Created, 0, 0), 6);
    let all: Vec<_> = created.chain([(Verdict::Failed, 1, 60)]).collect();
    assert_eq!((decisions.collect::<Vec<_>>(), history.forgotten), (all, 0));
}

/// Fault: occurrences that waited for a token were neither shown nor waiting, once their object had 32 newer records.
#[test]
fn a_record_that_was_never_written_is_forgotten_last() {
    let (mut store, now) = (store(1_000_000), Now::at(1));
    for record in 0..40 {
        let event = event(0, &format!("R{record}"), "m");
        accept(&mut store, &event, record, 1);
        if record != 3 {
            written(&mut store, &event, record, Kind::Combined, 1, now);
        }
    }
    let records = store.histories().next().unwrap().records.iter().map(|kept| kept.record.0);
    assert_eq!(records.collect::<Vec<_>>(), [3].into_iter().chain(9..40).collect::<Vec<_>>());
}

#[test]
fn a_storm_record_has_its_newest_message() {
    let (mut store, now) = (store(1_000_000), Now::at(1));
    for message in ["storm: 2 events", "storm: 9 events"] {
        let event = event(0, "R", message);
        written(&mut store, &event, 7, Kind::Storm, 9, now);
    }
    let history = store.histories().next().unwrap();
    let messages: Vec<_> = history.records[0].messages.iter().map(|(_, message)| message.as_str()).collect();
    assert_eq!(messages, ["storm: 9 events"]);
}

#[test]
fn the_tap_selects_objects_as_kubectl_names_them() {
    let line = Line { kind: "Pod".into(), name: "web-0".into(), ..Line::default() };
    let parse = |object: &str| Selector::parse([("object".into(), object.to_owned().into())].into_iter());
    let wants = |object: &str| parse(object).unwrap().wants(&line);
    // Fault: `explain /web-0 --follow` was refused, after the answer.
    assert!(["po/web-0", "pods/web-*", "Pod/web-0", "Po*", "job/x,pod/web-0", "/web-0"].into_iter().all(wants));
    assert!(!["po/web-1", "job/web-0", "pods/web", "/web-1"].into_iter().any(wants));
    // Fault: an object without its kind selected nothing, without a word.
    for object in ["web-0", "po/web-0,web-1", "/", "pod/", ""] {
        assert!(parse(object).unwrap_err().ends_with("allowed: KIND/NAME, such as pod/web-*"), "{object}");
    }
}

/// Fault: a component with a slash selected nothing, because it was cut at the slash.
#[tokio::test]
async fn the_tap_selects_a_component_with_a_slash() {
    let tap = Tap::default();
    let mut reader = tap.read(Selector::default());
    let mut event = event(0, "R", "m");
    (event.source.component, event.source.host) = ("example.com/backup".into(), "node-1".into());
    tap.send(&event, "created", "", 1, "", || 0);
    let line = reader.recv().await.unwrap();
    let wants = |source: &str| Selector::parse([("source".into(), source.into())].into_iter()).unwrap().wants(&line);
    assert!(["example.com/backup", "example.com/b*", "example.com/backup/node-1"].into_iter().all(wants));
    assert!(!["example.com", "backup", "example.com/backup/node-2", "/node-2", "backup/"].into_iter().any(wants));
    // Fault: `explain --source /node-1 --follow` printed nothing for ever.
    assert!(["/node-1", "/node-*", "example.com/backup/"].into_iter().all(wants));
    assert!(!serde_json::to_string(&*line).unwrap().contains("component"));
}

/// Fault: a reader that did not read kept a thousand events, each of which may have 3 MiB.
#[tokio::test]
async fn a_line_of_the_tap_has_short_texts() {
    let (tap, long) = (Tap::default(), SmolStr::new("é".repeat(1 << 20)));
    let mut reader = tap.read(Selector::default());
    let mut event =
        Event { reason: long.clone(), event_type: long.clone(), message: long.clone(), ..event(0, "R", "") };
    (event.metadata.name, event.metadata.namespace) = (long.clone(), long.clone());
    (event.source.component, event.source.host) = (long.clone(), long.clone());
    let object = &mut event.involved_object;
    (object.kind, object.name, object.uid) = (long.clone(), long.clone(), long);
    tap.send(&event, "created", "", 1, "", || 0);
    let line = serde_json::to_string(&*reader.recv().await.unwrap()).unwrap();
    assert!(line.len() < 11 << 10, "{}", line.len());
}

/// Fault: readers with thousands of alternatives took milliseconds of CPU for each event.
#[test]
fn a_selector_has_few_alternatives() {
    let parse = |number: usize| {
        let pairs = [("reason", vec!["a"; number].join(",")), ("type", "Normal".to_owned())];
        Selector::parse(pairs.into_iter().map(|(key, value)| (key.into(), value.into())))
    };
    assert!(parse(99).is_ok());
    assert_eq!(parse(100).unwrap_err(), "101 alternatives are too many; allowed: 100");
}

#[test]
fn groups_beyond_the_limit_are_counted_together() {
    let mut store = store(1 << 26);
    for number in 0..GROUPS + 5 {
        accept(&mut store, &event(0, &format!("R{number}"), "m"), 7, 1);
    }
    assert_eq!((store.groups().len(), store.groups()[0].totals.received), (GROUPS + 1, 5));
}

/// Fault: the write of a record that another process counts on too showed the dropped occurrences of another message.
#[test]
fn a_write_shows_no_more_dropped_occurrences_than_its_record_has() {
    let mut store = store(1_000_000);
    let (one, other) = (event(0, "R", "one"), event(0, "R", "two"));
    accept(&mut store, &one, 1, 1);
    accept_as(Verdict::Dropped, &mut store, &other, 2, 2);
    let shown = |store: &mut Store, count| {
        written(store, &one, 1, Kind::Combined, count, Now::at(count));
        store.histories().next().unwrap().facts[0].shown
    };
    assert_eq!(shown(&mut store, 4), 1);
    accept_as(Verdict::Dropped, &mut store, &one, 1, 5);
    assert_eq!(shown(&mut store, 7), 3);
    assert_eq!(shown(&mut store, 9), 4);
}

/// Fault: in a storm, in which each occurrence may begin a record that folds at once, an object had only such records and
/// decisions after a few occurrences.
#[test]
fn records_that_fold_at_once_leave_what_was_known_before() {
    let mut store = store(1_000_000);
    for object in [event(0, "Before", "m"), event(0, "Storm", "m")] {
        for number in 0..100 {
            let record = 100 * (object.reason.len() as u64) + number;
            accept_as(Verdict::Created, &mut store, &object, record, number.cast_signed());
            if object.reason == "Before" {
                break;
            }
            let now = Now::at(number.cast_signed());
            fold(&mut store, &object, record, RecordId(1_000), Reach::default(), now);
        }
    }
    let history = store.histories().next().unwrap();
    let records: Vec<_> = history.records.iter().map(|kept| kept.record.0).collect();
    assert_eq!(records, [600, 1_000]);
    let decision = |decision: &Decision| (decision.fact, decision.verdict, decision.occurrences);
    let decisions: Vec<_> = history.decisions.iter().map(decision).collect();
    assert_eq!(decisions, [(0, Verdict::Created, 1), (1, Verdict::Created, 100), (1, Verdict::Folded, 100)]);
    assert_eq!((history.facts[1].received, history.facts[1].folded), (100, 100));
}

/// Fault: equal messages about another uid or container of the object looked as if the record's key had been evicted.
#[test]
fn a_record_with_another_key_has_not_begun_again() {
    let mut store = store(1_000_000);
    let one = event(0, "R", "m");
    let mut other = one.clone();
    other.involved_object.uid = "another".into();
    accept(&mut store, &one, 1, 1);
    accept(&mut store, &other, 2, 2);
    let why = |store: &Store| store.histories().next().unwrap().decisions.back().unwrap().why;
    assert_eq!(why(&store), "");
    accept(&mut store, &one, 3, 3);
    assert_eq!(why(&store), "evicted");
}

/// Fault: what had folded since a digest's last write was said to be counted by the digest that was lost with it, and
/// what it had shown was said to wait.
#[test]
fn occurrences_are_lost_with_their_digest_unless_it_has_shown_them() {
    let mut store = store(1_000_000);
    let (into, now) = (RecordId(1_000), Now::at(1));
    let (one, other) = (event(0, "One", "m"), event(0, "Two", "m"));
    let fold = |store: &mut Store, event: &Event, record: u64, reach: Reach| {
        accept(store, event, record, 1);
        fold(store, event, record, into, reach, now);
    };
    fold(&mut store, &one, 1, Reach { counted: 1, settled: 0 });
    fold(&mut store, &other, 2, Reach { counted: 2, settled: 0 });
    let digest = event(0, "EventsFolded", "2 events");
    let fact_ref = store.fact_ref(&digest, now).unwrap();
    let (record, name, message) = (into, &"n".into(), &digest.message);
    store.written(fact_ref, Written { record, kind: Kind::Digest, name, message, count: 2, number: 2 }, now);
    fold(&mut store, &one, 3, Reach { counted: 3, settled: 2 });
    let facts = |store: &Store| {
        let history = store.histories().next().unwrap();
        let numbers = |fact: &Fact| (fact.folded, fact.unshown(2), fact.lost());
        history.facts.iter().map(numbers).collect::<Vec<_>>()
    };
    assert_eq!(facts(&store), [(2, 1, 0), (1, 0, 0), (0, 0, 0)]);
    store.lose_folded(fact_ref.object, LostFolds { into, number: 1, settled: 2, why: "deleted" });
    remark(&mut store, fact_ref, (Verdict::Lost, "deleted"), 1, Some(into.0), now);
    assert_eq!(facts(&store), [(1, 0, 1), (1, 0, 0), (0, 0, 0)]);
}

/// Fault: a loss was noted at the facts of the digest's own object only, and without its bytes.
#[test]
fn occurrences_of_other_objects_are_lost_with_their_digest() {
    let mut store = store(1_000_000);
    let (into, now) = (RecordId(1_000), Now::at(1));
    for number in 0..3 {
        let (event, record) = (event(number, "R", "m"), number as u64);
        accept(&mut store, &event, record, 1);
        fold(&mut store, &event, record, into, Reach { counted: record + 1, settled: 0 }, now);
    }
    let fact_ref = store.fact_ref(&event(0, "EventsFolded", "3 events"), now).unwrap();
    // It has shown the first one.
    store.lose_folded(fact_ref.object, LostFolds { into, number: 2, settled: 1, why: "invalid" });
    remark(&mut store, fact_ref, (Verdict::Lost, "invalid"), 2, Some(into.0), now);
    let mut lost: Vec<_> = store.histories().map(|history| (history.name.clone(), history.facts[0].lost())).collect();
    lost.sort();
    assert_eq!(lost, [("web-0".into(), 0), ("web-1".into(), 1), ("web-2".into(), 1)]);
    store.flush_runs();
    let counted: usize = store.histories().map(History::bytes).sum();
    assert_eq!(counted + store.group_bytes.own() + store.runs.bytes(), store.bytes());
}

/// Fault: after it was off, it claimed to know the time in which it was.
#[test]
fn nothing_is_known_of_the_time_before_it_was_turned_on() {
    let mut store = store(1_000_000);
    let on = store.settings;
    accept(&mut store, &event(0, "R", "m"), 1, 1);
    store.set_settings(Settings::default(), 0, Now::at(2));
    store.set_settings(on, 7, Now::at(9));
    assert_eq!((store.span(), store.rejected()), ((Some(1), Some(9)), 7));
}

/// Fault: all losses were said to have the newest one's reason.
#[test]
fn losses_are_counted_by_reason() {
    let mut store = store(1_000_000);
    let event = event(0, "R", "m");
    accept(&mut store, &event, 1, 1);
    let fact_ref = store.fact_ref(&event, Now::at(1)).unwrap();
    for (why, number) in [("forbidden", 5), ("deleted", 3), ("forbidden", 1)] {
        remark(&mut store, fact_ref, (Verdict::Lost, why), number, Some(1), Now::at(2));
    }
    let history = store.histories().next().unwrap();
    assert_eq!(history.facts[0].lost, [("forbidden", 6), ("deleted", 3)]);
}

/// Fault: after twenty other decisions, nothing was known of why and when occurrences were lost.
#[test]
fn the_newest_loss_of_a_fact_stays_known() {
    let mut store = store(1_000_000);
    let lost = event(0, "Lost", "m");
    accept(&mut store, &lost, 1, 1);
    let fact_ref = store.fact_ref(&lost, Now::at(1)).unwrap();
    let (verdict, record) = (Verdict::Lost, Some(RecordId(1)));
    store.remark(fact_ref, Remark { verdict, why: "forbidden", number: 1, record, text: "the webhook" }, Now::at(2));
    for number in 0..100 {
        accept(&mut store, &event(0, "Other", &format!("m{number}")), 2 + number, 3);
    }
    let history = store.histories().next().unwrap();
    let texts: Vec<_> = history.decisions.iter().filter(|decision| decision.verdict == Verdict::Lost).collect();
    assert_eq!((texts.len(), texts[0].text.as_str(), history.decisions.len()), (1, "the webhook", 20));
}
