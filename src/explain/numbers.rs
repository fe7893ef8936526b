//! How many occurrences are shown, wait and are lost, in words.

use super::document::Part;

pub(super) fn plural(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

impl Part {
    pub(super) fn how_many(&self) -> String {
        format!("{} of {} occurrences", self.shown + self.in_summary, self.received)
    }

    /// Says how many occurrences are shown, were refused and are lost; but not how many were dropped without a token.
    pub(super) fn of_how_many(&self) -> String {
        let lost = self.lost.iter().filter(|(why, _)| **why != "suppressed").map(|(_, number)| number).sum();
        let further = [(self.rejected, "refused"), (lost, "lost")].map(|(number, what)| match number {
            0 => String::new(),
            1 => format!(", 1 was {what}"),
            number => format!(", {number} were {what}"),
        });
        format!("{} are shown{}", self.how_many(), further.concat())
    }

    /// Returns the sums of some reasons.
    pub(super) fn sum<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for part in parts {
            sum.received += part.received;
            sum.shown += part.shown + part.in_summary;
            sum.rejected += part.rejected;
            *sum.waiting.entry("").or_default() += part.waiting.values().sum::<u64>();
            *sum.lost.entry("").or_default() += part.lost.values().sum::<u64>();
        }
        sum
    }

    /// Says how many occurrences are shown, were refused, are lost, and wait.
    pub(super) fn in_all(&self) -> String {
        let waits = match self.waiting.values().sum() {
            0_u64 => String::new(),
            1 => "; 1 waits".to_owned(),
            waiting => format!("; {waiting} wait"),
        };
        format!("{}{waits}.", self.of_how_many())
    }

    /// Says how many occurrences wait, and for what.
    pub(super) fn waits(&self) -> String {
        let waiting: u64 = self.waiting.values().sum();
        let wait = format!("{} {}", plural(waiting, "occurrence"), if waiting == 1 { "waits" } else { "wait" });
        let mut whys = self.waiting.iter().map(|(why, number)| (awaited(why), number));
        match (whys.next(), self.waiting.len()) {
            (Some((what, _)), 1) => format!("{wait} for {what}"),
            (first, _) => {
                let parts = first.into_iter().chain(whys).map(|(what, number)| format!("{number} for {what}"));
                format!("{wait}: {}", parts.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Returns what occurrences with this wait reason wait for.
fn awaited(why: &str) -> &str {
    match why {
        "in_flight" => "the answer to a request",
        "coalescing" => "the end of outbox.coalesceInterval",
        "budget" => "a token",
        "group" => "a token of the group, or of all writes",
        "retry" => "the next try",
        "turn" => "a place among the requests in flight",
        other => other,
    }
}
