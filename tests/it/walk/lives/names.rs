//! Walks of fixed steps: a record is deleted, and its name given to another event. The process that knows the record
//! has not read that yet.

use std::num::NonZeroUsize;

use super::super::super::support::fake::Fault;
use super::super::super::support::http::EVENTS;
use super::super::growth::{Growth, Message, Shape};
use super::super::model::Group;
use super::super::process::{Setup, Writes};
use super::super::world;
use super::changes::{Answer, Form, Set};
use super::{JSON, Step, Walk, walk};

fn setup() -> Setup {
    let configuration = Setup::plain(1000);
    Setup { replicas: 2, shards: NonZeroUsize::MIN, spool: true, writes: Writes::Exact, configuration }
}

fn walk_with_two_replicas(steps: Vec<Step>) {
    walk(setup(), 1, steps);
}

/// An occurrence waits for the record of the name.
fn a_waiting_event_whose_name_another_one_has() -> Vec<Step> {
    vec![
        Step::Post { name: 0, kind: 0, group: Group::Core, more: 0 },
        Step::Delete { replica: 1, name: 0, posts: 0, answer: Answer::Given },
        Step::Fail(Fault::Before(500)),
        Step::PostGenerated { kind: 0, group: Group::Core, total: 1 },
        Step::Batch { replica: 1, events: vec![(0, 2, 0)] },
    ]
}

/// Fault: GET showed the event of the other replica.
#[test]
fn a_waiting_event_is_shown_under_its_name_although_another_event_has_it() {
    walk_with_two_replicas(a_waiting_event_whose_name_another_one_has());
}

/// Fault: the label went to the event of the other replica, and the waiting occurrence was counted on it.
#[test]
fn a_label_ties_a_waiting_event_to_no_other_event_that_has_its_name() {
    let mut steps = a_waiting_event_whose_name_another_one_has();
    steps.push(Step::Label { replica: 0, name: 0, form: Form::Strategic });
    walk_with_two_replicas(steps);
}

/// Fault: the next occurrence was counted on the event of the other replica.
#[test]
fn a_label_ties_an_event_that_owes_nothing_to_no_other_event_that_has_its_name() {
    walk_with_two_replicas(vec![
        Step::Post { name: 0, kind: 0, group: Group::Core, more: 0 },
        Step::Delete { replica: 1, name: 0, posts: 0, answer: Answer::Given },
        Step::Batch { replica: 1, events: vec![(0, 2, 0)] },
        Step::Pass { milliseconds: 70_000 },
        Step::Label { replica: 0, name: 0, form: Form::Strategic },
        Step::PostGenerated { kind: 0, group: Group::Core, total: 1 },
    ]);
}

/// Fault: GET showed the event that had the name of the deleted record, under the name of a client whose event had
/// counted on it, and a label went to that event.
#[test]
fn a_name_whose_record_is_deleted_does_not_lead_to_another_event_of_the_records_name() {
    let steps = [
        Step::Post { name: 0, kind: 0, group: Group::Core, more: 0 },
        Step::Post { name: 2, kind: 0, group: Group::Core, more: 0 },
        Step::Delete { replica: 1, name: 0, posts: 0, answer: Answer::Given },
        Step::Batch { replica: 1, events: vec![(0, 2, 0)] },
        Step::Pass { milliseconds: 70_000 },
    ];
    world::run(async {
        let mut walk = Walk::begin(setup(), 1);
        for step in steps {
            walk.take(step).await;
        }
        let before = walk.world.fake.events();
        walk.label(0, "c", Form::Strategic).await;
        assert_eq!(walk.world.fake.events(), before);
        let reply = walk.process(0).send("GET", &format!("{EVENTS}/c"), JSON, String::new()).await;
        assert_eq!(reply.status, 404, "{}", reply.text);
    });
}

/// The record continues under another name, and shows what was not in the deleted event.
#[test]
fn a_record_whose_deletion_is_not_known_continues_without_what_the_deleted_event_has_shown() {
    let setup = Setup { replicas: 1, spool: false, configuration: Setup::plain(2), ..setup() };
    let post = |kind| Step::Post { name: 0, kind, group: Group::Core, more: 0 };
    let pass = |milliseconds| Step::Pass { milliseconds };
    let steps = vec![post(3), pass(20), Step::DeleteUpstream { kind: 3 }, post(0), post(3), pass(3000)];
    walk(setup, 1, steps);
}

/// A PUT of what GET has shown states the client's total, also if the watch shows it before the answer comes.
#[test]
fn a_put_that_the_watch_shows_first_states_its_clients_total() {
    let growth = Growth { by: 1, message: Message::Kept, shape: Shape::Strategic, group: Group::Core };
    let steps = vec![
        Step::Post { name: 0, kind: 0, group: Group::Core, more: 0 },
        Step::Set { name: 0, posts: 1, set: Set::Shown, form: Form::Strategic },
        Step::Patch { name: 0, growth },
    ];
    walk(Setup { replicas: 1, spool: false, configuration: Setup::plain(2), ..setup() }, 1, steps);
}

/// Fault: it was 200, although nothing was deleted.
#[test]
fn a_delete_of_a_record_that_another_replica_has_deleted_is_404() {
    for is_known in [false, true] {
        let steps = [
            Step::Post { name: 1, kind: 0, group: Group::Core, more: 0 },
            Step::Post { name: 3, kind: 0, group: Group::Core, more: 0 },
            Step::Delete { replica: 0, name: 1, posts: 0, answer: Answer::Given },
            Step::Post { name: 2, kind: 0, group: Group::Core, more: 0 },
        ];
        world::run(async {
            let mut walk = Walk::begin(setup(), 1);
            for step in steps {
                walk.take(step).await;
            }
            walk.settle().await;
            if is_known {
                walk.world.watch(1);
            }
            let before = walk.world.fake.events();
            for path in ["b", "d"].map(|name| format!("{EVENTS}/{name}")) {
                for path in [format!("{path}?dryRun=All"), path] {
                    let reply = walk.process(1).send("DELETE", &path, JSON, String::new()).await;
                    let after = walk.world.fake.events();
                    assert_eq!((reply.status, &after), (404, &before), "{path}, {is_known}: {}", reply.text);
                }
            }
        });
    }
}
