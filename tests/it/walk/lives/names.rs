//! Walks of fixed steps: a replica deletes the event of a name, and gives the name to another event. The other replica has
//! not read that yet.

use std::num::NonZeroUsize;

use super::super::super::support::fake::Fault;
use super::super::model::Group;
use super::super::process::{Setup, Writes};
use super::changes::{Answer, Form};
use super::{Step, walk};

fn walk_with_two_replicas(steps: Vec<Step>) {
    let configuration = Setup::plain(1000);
    let setup = Setup { replicas: 2, shards: NonZeroUsize::MIN, spool: true, writes: Writes::Exact, configuration };
    walk(setup, 1, steps);
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
