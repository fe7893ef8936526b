//! Replays every recorded case of a real apiserver (`vectors/api`, `vectors/validation`, and those of `EVENTWEIR_VECTORS` if set)
//! over HTTP against the program with the embedded store. Status, headers, warnings and bodies must be equal, except for the
//! differences in `differences.rs`.

mod case;
mod client;
mod compare;
mod differences;
mod player;
mod program;
mod protobuf;
mod validation;

use std::collections::{BTreeMap, BTreeSet};

use differences::{ALWAYS, CORRELATED, Row};

/// The settings that are closest to the apiserver.
const PLAIN: &str = "correlation: {enabled: false}\ningest: {ack: written, repair: off}\n";
/// The same with correlation.
const CORRELATING: &str = "outbox: {coalesceInterval: 0s}\ningest: {ack: written, repair: off}\n";

/// Plays all cases and compares the results with the tables of differences.
async fn replay(yaml: &str, correlates: bool, tables: &[&[Row]]) {
    let rows = tables.iter().copied().flatten();
    let excepted: BTreeMap<&str, (&str, &str)> =
        rows.flat_map(|(reason, cases)| cases.iter().map(|(id, fault)| (*id, (*reason, *fault)))).collect();
    let (mut played, mut faults) = (BTreeSet::new(), Vec::new());
    for (_, case) in case::lines("api") {
        let id = case["id"].as_str().unwrap_or_default().to_owned();
        match (player::play(yaml, correlates, &case).await, excepted.get(id.as_str())) {
            (Ok(()), Some((reason, _))) => faults.push(format!("{id} passes and is excepted: {reason}")),
            (Err(fault), Some((reason, known))) if !fault.starts_with(known) => {
                faults.push(format!("{id} differs by {fault:?} instead of {known:?}, excepted: {reason}"));
            }
            (Err(fault), None) => faults.push(format!("{id} ({}): {fault}", case["note"])),
            (Ok(()), None) | (Err(_), Some(_)) => {}
        }
        played.insert(id);
    }
    faults
        .extend(excepted.keys().filter(|id| !played.contains(**id)).map(|id| format!("{id} is excepted, and no case")));
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), played.len(), faults.join("\n"));
}

#[tokio::test]
async fn without_correlation_every_request_is_answered_as_recorded() {
    replay(PLAIN, false, &[ALWAYS]).await;
}

#[tokio::test]
async fn with_correlation_so_is_every_request_that_it_does_not_change() {
    replay(CORRELATING, true, &[ALWAYS, CORRELATED]).await;
}
