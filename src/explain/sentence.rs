//! The first sentence of an answer: where the occurrences of a reason are, and what to do.

use super::answer::Upstream;
use super::document::{Answer, Budget, Decided, Object, Part, Record};
use super::numbers::plural;

/// The circumstances in which a question is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation<'a> {
    /// Whether the upstream answers.
    pub(super) upstream: Upstream,
    /// When the question was asked.
    pub(super) now: &'a str,
}

impl Situation<'_> {
    /// Returns the time of day in UTC, after the date if that is another day than the question's.
    pub(super) fn clock(self, stamp: &str) -> String {
        let (day, time) = stamp.split_once('T').unwrap_or_default();
        let time = time.split(['.', 'Z']).next().unwrap_or(time);
        if self.now.starts_with(day) { format!("{time}Z") } else { format!("{day} {time}Z") }
    }
}

pub(super) fn answer(code: &'static str, text: String, action: &str) -> Answer {
    Answer { code, text, action: action.to_owned() }
}

/// The action if eventweir lacks write permission.
const RIGHTS: &str = "Grant eventweir create and patch on events.";

/// The action if a budget is empty and never refilled.
const NO_TOKENS: &str = "Set qps and burstSize above 0: the budget is never refilled.";

/// The action if a storm record counts occurrences, or is about to.
const OWN_RECORDS: &str = "Nothing; a rule with a larger groupBurstSize or groupQps gives them records of their own.";

/// Returns the code and the action if the API server's text says that a webhook or an admission policy refused the
/// write.
fn of_refusal(text: &str) -> Option<(&'static str, &'static str)> {
    if text.contains("admission webhook") {
        Some(("refused", "Exempt Events from that webhook; what is lost is not tried again."))
    } else if text.contains("ValidatingAdmissionPolicy") {
        Some(("refused", "Exempt Events from that policy; what is lost is not tried again."))
    } else {
        None
    }
}

/// Returns the action after a failure that is retried.
fn of_fault(why: &str) -> &'static str {
    match why {
        "unauthorized" => {
            "Renew eventweir's credentials: its service account's token, or those of its kubeconfig. What waits is written then."
        }
        "not_apiserver" => "Check the upstream's address: another server answers there, such as a load balancer.",
        _ => "Check the API server and the network; what waits is written once it answers.",
    }
}

impl Object {
    fn budget(&self, part: &Part, suppression: &str) -> Option<&Budget> {
        let mut budgets = self.budgets.iter().filter(|budget| budget.suppression == suppression);
        budgets.find(|budget| budget.facts.contains(&part.fact))
    }

    fn newest(&self, part: &Part, verdict: &str) -> Option<usize> {
        self.decisions.iter().rposition(|decision| decision.verdict == verdict && decision.fact == part.fact)
    }

    fn decided(&self, part: &Part, verdict: &str) -> Option<&Decided> {
        self.newest(part, verdict).map(|place| &self.decisions[place])
    }

    fn record(&self, part: &Part, form: &str) -> Option<&Record> {
        self.records.iter().rev().find(|record| record.form == form && record.fact == part.fact)
    }

    /// Returns the newest loss for a reason. The loss of a storm record is a decision about another object.
    fn loss(&self, part: &Part, why: &str) -> Option<&Decided> {
        let is_it = |of: &&Decided| of.verdict == "lost" && of.fact == part.fact && of.why == why;
        self.decisions.iter().rfind(is_it)
    }

    /// Whether later occurrences were written since the newest loss for a reason.
    fn is_past(&self, part: &Part, why: &str) -> bool {
        self.loss(part, why).is_some_and(|lost| part.last_shown.as_ref() > Some(&lost.last))
    }

    /// Says where the occurrences of a reason are.
    pub(super) fn explain(&self, part: &Part, asked: Situation<'_>) -> Answer {
        // A client has asked for its DELETE.
        let faults = part.lost.iter().filter(|(why, _)| !["suppressed", "deleted"].contains(*why));
        let fault = faults.min_by_key(|(why, _)| self.is_past(part, why));
        let fault = fault.filter(|(why, _)| part.waiting.is_empty() || !self.is_past(part, why));
        let deleted = part.lost.get_key_value("deleted").filter(|(why, _)| !self.is_past(part, why));
        if let Some((why, number)) = fault {
            self.explain_lost(part, why, *number, asked)
        } else if let Some(number) = part.lost.get("suppressed") {
            self.explain_dropped(part, *number, asked)
        } else if !part.waiting.is_empty() {
            self.explain_waiting(part, asked)
        } else if let Some((why, number)) = deleted {
            self.explain_lost(part, why, *number, asked)
        } else if part.received == part.rejected {
            self.explain_refused(part, asked)
        } else {
            self.explain_shown(part)
        }
    }

    /// Explains a loss, and says what became of later occurrences.
    fn explain_lost(&self, part: &Part, why: &str, number: u64, asked: Situation<'_>) -> Answer {
        let mut lost = self.explain_loss(part, why, number, asked);
        let end = |text: &str| format!("{}.", text.trim_end_matches('.'));
        if !part.waiting.is_empty() {
            lost.text = format!("{} {}.", end(&lost.text), part.waits());
        } else if self.is_past(part, why) {
            lost.text = format!("{} Later ones were written: {} are shown.", end(&lost.text), part.how_many());
            lost.action = "Nothing, if it does not happen again.".to_owned();
        }
        lost
    }

    fn explain_loss(&self, part: &Part, why: &str, number: u64, asked: Situation<'_>) -> Answer {
        let newest = self.loss(part, why);
        let at = newest.map(|decision| format!(" at {}", asked.clock(&decision.last))).unwrap_or_default();
        let text = newest.map(|decision| decision.text.as_str()).unwrap_or_default();
        let number = plural(number, "occurrence");
        let words = if text.is_empty() { ".".to_owned() } else { format!(": {text}") };
        match why {
            "namespace_gone" => answer(
                "namespace-gone",
                format!("Lost{at}, {number}: namespace {} is missing or being terminated.", self.namespace),
                "Nothing if the namespace was deleted. If it never existed, correct it at the reporter.",
            ),
            "forbidden" => {
                let (code, action) = of_refusal(text).unwrap_or(("forbidden", RIGHTS));
                answer(code, format!("Lost{at}, {number}: the upstream refused it (403){words}"), action)
            }
            "too_large" => answer(
                "too-large",
                format!("Lost{at}, {number}: the upstream takes no event that large{words}"),
                "Shorten the message at its source.",
            ),
            "expired" => answer(
                "expired",
                format!("Lost{at}, {number}: the upstream postponed the write for longer than outbox.maxAge."),
                "See eventweir_upstream_requests_total for its answers.",
            ),
            "deleted" => answer(
                "deleted",
                format!("A client deleted the record{at}, and with it {number} that waited."),
                "Nothing: the next occurrence begins a record at 1.",
            ),
            _ => {
                let other = "The upstream's words say what is wrong; eventweir does not try again.";
                let (code, action) = of_refusal(text).unwrap_or(("refused", other));
                answer(code, format!("Lost{at}, {number}: the upstream refused it ({why}){words}"), action)
            }
        }
    }

    fn explain_dropped(&self, part: &Part, number: u64, asked: Situation<'_>) -> Answer {
        let of_how_many = part.of_how_many();
        let were = if number == 1 { "was" } else { "were" };
        let later = "A later write of the record counts them.";
        let Some(budget) = self.budget(part, "drop") else {
            let text = format!(
                "{of_how_many}. {number} {were} dropped: the budget was empty under `suppression: drop`. {later}"
            );
            return answer("dropped-no-token", text, "Nothing: occurrences without a token wait now.");
        };
        let spent = budget.spent_on.iter().filter(|(_, spent)| **spent > 0);
        let spent = spent.map(|(reason, spent)| format!("{reason} {spent}")).collect::<Vec<_>>().join(", ");
        let spent = if spent.is_empty() { "none".to_owned() } else { spent };
        let next = match &budget.next_token {
            Some(next) => format!("The next token comes at {}.", asked.clock(next)),
            None => "No further token comes.".to_owned(),
        };
        let text = format!(
            "{of_how_many}. {number} {were} dropped: the budget was empty, and suppression is `drop`. {next} Tokens spent: {spent}. {later}"
        );
        let action = if budget.next_token.is_none() {
            NO_TOKENS
        } else {
            "suppression: defer keeps them (the default). Or give each reason a budget of its own: `reason` in spamKey."
        };
        answer("dropped-no-token", text, action)
    }

    fn explain_waiting(&self, part: &Part, asked: Situation<'_>) -> Answer {
        let is_down = asked.upstream == Upstream::Down;
        let (of_how_many, waits) = (part.of_how_many(), part.waits());
        // While a retry is in flight, the last failure is still why the occurrences are not written.
        let is_retried =
            part.waiting.contains_key("in_flight") && self.newest(part, "failed") > self.newest(part, "written");
        let has_failed = part.waiting.contains_key("retry") || is_retried;
        if let Some(failed) = self.decided(part, "failed").filter(|_| has_failed) {
            let since = asked.clock(&failed.time);
            let text = failed.text.trim_end_matches('.');
            if failed.why == "forbidden" {
                let (code, action) = of_refusal(&failed.text).unwrap_or(("forbidden", RIGHTS));
                let text = format!(
                    "Not written: the upstream has refused it since {since} (403): {text}. {waits}; what is refused for five minutes is lost."
                );
                return answer(code, text, action);
            }
            let is_silent = is_down || ["transport", "timeout"].contains(&failed.why);
            let code = if is_silent { "upstream-down" } else { "upstream-retrying" };
            let cause = if text.is_empty() { String::new() } else { format!(": {text}") };
            let text =
                format!("Not written yet: the upstream has failed since {since} ({}){cause}. {waits}.", failed.why);
            return answer(code, text, of_fault(failed.why));
        }
        if is_down {
            let text = format!("Not written yet: the upstream is down. {of_how_many}; {waits}.");
            return answer("upstream-down", text, of_fault(""));
        }
        let text = format!("{of_how_many}; {waits}.");
        if part.waiting.contains_key("budget") {
            let budget = self.budget(part, "defer");
            if budget.is_some_and(|budget| budget.next_token.is_none()) {
                return answer("deferred", format!("{text} No further token comes."), NO_TOKENS);
            }
            // After a reload, another budget may pay than the one that has decided.
            let next = budget.and_then(|budget| budget.next_token.as_deref().zip(budget.queue.first()));
            let next = next.map(|(next, first)| format!(" The next token, {}, goes to {first}.", asked.clock(next)));
            return answer(
                "deferred",
                text + &next.unwrap_or_default(),
                "Nothing: they are written when their turn comes. burstSize and qps say how fast.",
            );
        }
        match &part.folds_at {
            Some(at) => {
                let them = if part.waiting.values().sum::<u64>() == 1 { "it" } else { "them" };
                let text = format!("{text} Without one by about {}, a storm record counts {them}.", asked.clock(at));
                answer("deferred", text, OWN_RECORDS)
            }
            None if part.waiting.contains_key("group") => {
                answer("deferred", text, "Nothing: a write shows them when there is a token.")
            }
            None => answer("coalescing", text, "Nothing: a write shows them soon."),
        }
    }

    fn explain_refused(&self, part: &Part, asked: Situation<'_>) -> Answer {
        let refused = self.decided(part, "rejected");
        let at = refused.map(|decision| format!(" at {}", asked.clock(&decision.last))).unwrap_or_default();
        let words = refused.map_or("", |decision| decision.text.as_str());
        let why = refused.map_or("", |decision| decision.why);
        if part.received == 0 {
            return answer(
                "rejected",
                format!("No occurrence was received. A change of the event was refused{at}: {words}"),
                "The client has the refusal; a PUT, an apply or a patch of other members is no occurrence.",
            );
        }
        let text = format!("Refused{at}: {} ({why})", plural(part.rejected, "occurrence"));
        if why == "full" {
            return answer(
                "full",
                format!("{text}: the outbox has no room for another record of its source."),
                "Nothing if its client retries. Check the upstream, else raise outbox.maxRecords and outbox.maxBytes.",
            );
        }
        let action = "The client has the refusal; see eventweir_ledger_rejected_total.";
        answer("rejected", format!("{text} {words}"), action)
    }

    fn explain_shown(&self, part: &Part) -> Answer {
        let of_how_many = part.of_how_many();
        if part.in_summary > 0 {
            // The name of a digest that left the object's newest records is forgotten.
            let summary = Some(&part.summary).filter(|name| !name.is_empty());
            let record = self.records.iter().find(|record| Some(&record.name) == summary);
            let name = summary.map(|name| format!(" {name}")).unwrap_or_default();
            let form = record.map_or("digest", |record| record.form);
            let (counts, gone) = match record {
                Some(record) if record.state == "gone" => ("counted", " The API server has it no longer."),
                _ => ("counts", ""),
            };
            return answer(
                form,
                format!(
                    "{} never got a token; the {form}{name} {counts} {}.{gone}",
                    plural(part.in_summary, "occurrence"),
                    if part.in_summary == 1 { "it" } else { "them" }
                ),
                if form == "storm" {
                    OWN_RECORDS
                } else {
                    "Nothing; a larger burstSize gives them records of their own."
                },
            );
        }
        let is_left = |record: &Record| record.fact == part.fact && !["gone", "ended"].contains(&record.state);
        if self.newest(part, "deleted") > self.newest(part, "written") && !self.records.iter().any(is_left) {
            let text = "A client deleted the record. The next occurrence begins another.".to_owned();
            return answer("deleted", text, "");
        }
        if self.decisions.iter().any(|decision| decision.fact == part.fact && decision.why == "evicted") {
            return answer(
                "evicted",
                format!(
                    "{of_how_many}, in more than one record: the first was forgotten (its key was evicted, or it expired)."
                ),
                "Raise correlation.lruCacheSize or correlation.maxTrackedKeys.",
            );
        }
        if let Some(record) = self.record(part, "combined") {
            return answer(
                "combined",
                format!("{of_how_many}; those with different messages share the record {} (combined).", record.name),
                "Nothing; its last messages are listed with the records.",
            );
        }
        // The digest of an earlier process may be all that is left of it.
        let record = self.record(part, "single").or_else(|| self.record(part, "digest"));
        let name = record.map_or("", |record| record.name.as_str());
        if name.is_empty() {
            return answer("shown", format!("{of_how_many}; the name of their record is forgotten."), "");
        }
        let were = of_how_many.replacen(" are ", " were ", 1);
        if record.is_some_and(|record| record.state == "gone") {
            let text = format!("{were}, in {name}. The API server has it no longer: it expired or was deleted.");
            return answer("shown", text, "Nothing: the next occurrence creates it again.");
        }
        if self.records.iter().any(|record| record.fact == part.fact && record.state == "gone") {
            let text = format!("{were}, the newest in {name}. An earlier record is gone: it expired or was deleted.");
            return answer("shown", text, "");
        }
        let singles = self.records.iter().filter(|record| record.fact == part.fact && record.form == "single");
        let is_one = singles.count() < 2;
        answer("shown", format!("{of_how_many}, {}{name}.", if is_one { "in " } else { "the newest in " }), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Situation<'_> = Situation { upstream: Upstream::Up, now: "2026-03-01T10:40:00.000000Z" };

    fn decided(verdict: &'static str, text: &str) -> Decided {
        let last = "2026-03-01T10:33:02.000000Z".to_owned();
        Decided { last, verdict, why: "forbidden", text: text.into(), ..Decided::default() }
    }

    fn of(received: u64) -> Part {
        Part { received, ..Part::default() }
    }

    fn waiting(why: &'static str) -> Part {
        Part { waiting: [(why, 1)].into(), ..of(1) }
    }

    fn explained(part: &Part, records: Vec<Record>, decisions: Vec<Decided>) -> Answer {
        Object { records, decisions, ..Object::default() }.explain(part, UP)
    }

    #[test]
    fn a_failure_is_named_while_it_waits_and_while_it_is_retried() {
        let (written, failed) = (decided("written", ""), decided("failed", "no events"));
        for (why, decisions, code) in [
            ("retry", vec![failed.clone()], "forbidden"),
            ("in_flight", vec![written.clone(), failed.clone()], "forbidden"),
            ("in_flight", vec![failed, written], "coalescing"),
            ("in_flight", Vec::new(), "coalescing"),
        ] {
            assert_eq!(explained(&waiting(why), Vec::new(), decisions).code, code, "{why}");
        }
    }

    #[test]
    fn the_action_after_a_failure_fits_its_cause() {
        for (why, beginning) in [("unauthorized", "Renew"), ("not_apiserver", "Check the upstream's address")] {
            let failed = Decided { why, ..decided("failed", "") };
            let action = explained(&waiting("retry"), Vec::new(), vec![failed]).action;
            assert!(action.starts_with(beginning), "{action}");
        }
    }

    #[test]
    fn a_webhook_or_policy_that_refuses_is_named() {
        let words = "admission webhook \"policy.example\" denied the request: no events";
        let policy = "ValidatingAdmissionPolicy 'policy.example' with binding 'b' denied request: no events";
        for (text, code) in [
            (words, "refused"),
            (policy, "refused"),
            ("events is forbidden: User \"eventweir\" cannot create", "forbidden"),
        ] {
            let part = Part { lost: [("forbidden", 1)].into(), ..of(1) };
            let answer = explained(&part, Vec::new(), vec![decided("lost", text)]);
            let said = format!("Lost at 10:33:02Z, 1 occurrence: the upstream refused it (403): {text}");
            assert_eq!((answer.code, answer.text), (code, said));
        }
    }

    /// Fault: it had no time zone, and of an older day no date.
    #[test]
    fn a_time_has_its_zone_and_the_date_of_another_day() {
        for (now, said) in
            [("2026-03-01T23:59:59.000000Z", "10:33:02Z"), ("2026-03-02T00:00:00.000000Z", "2026-03-01 10:33:02Z")]
        {
            assert_eq!(Situation { now, ..UP }.clock("2026-03-01T10:33:02.000000Z"), said);
        }
    }

    /// Fault: the next token was said to come at never, and to go to a record.
    #[test]
    fn a_budget_that_is_never_refilled_has_no_next_token() {
        let dropped = Part { lost: [("suppressed", 1)].into(), ..of(1) };
        for (suppression, part, said) in [
            (
                "defer",
                waiting("budget"),
                "0 of 1 occurrences are shown; 1 occurrence waits for a token. No further token comes.",
            ),
            (
                "drop",
                dropped,
                "0 of 1 occurrences are shown. 1 was dropped: the budget was empty, and suppression is `drop`. No \
                 further token comes. Tokens spent: none. A later write of the record counts them.",
            ),
        ] {
            let (spent_on, queue) = ([("R".into(), 0)].into(), vec!["R".into()]);
            let budget = Budget { facts: vec![0], suppression, spent_on, queue, ..Budget::default() };
            let answer = Object { budgets: vec![budget], ..Object::default() }.explain(&part, UP);
            assert_eq!((answer.text.as_str(), answer.action.as_str()), (said, NO_TOKENS));
        }
    }

    /// Fault: the sentence stayed the one of an old loss, whatever was written, or waited, after it.
    #[test]
    fn a_loss_is_the_answer_only_until_later_occurrences_are_written() {
        let failed = Decided { why: "transport", ..decided("failed", "no route.") };
        let (before, after) = ("2026-03-01T09:00:00Z", "2026-03-01T11:00:00Z");
        for (why, last_shown, waits, code, said) in [
            ("deleted", before, 5, "upstream-down", "(transport): no route. 5 occurrences wait for the next try."),
            (
                "deleted",
                before,
                0,
                "deleted",
                "A client deleted the record at 10:33:02Z, and with it 1 occurrence that waited.",
            ),
            ("deleted", after, 0, "shown", "1 of 7 occurrences are shown, 1 was lost"),
            ("forbidden", before, 5, "forbidden", "no. 5 occurrences wait for the next try."),
            ("forbidden", before, 0, "forbidden", "the upstream refused it (403): no"),
            ("forbidden", after, 5, "upstream-down", "5 occurrences wait for the next try."),
            ("forbidden", after, 0, "forbidden", "no. Later ones were written: 1 of 7 occurrences are shown."),
        ] {
            let waiting = [("retry", waits)].into_iter().filter(|_| waits > 0).collect();
            let (shown, lost, last_shown) = (1, [(why, 1)].into(), Some(last_shown.into()));
            let part = Part { shown, lost, waiting, last_shown, ..of(7) };
            let lost = Decided { why, ..decided("lost", "no") };
            let Answer { code: told, text, .. } = explained(&part, Vec::new(), vec![lost, failed.clone()]);
            assert!(told == code && text.contains(said), "{why}, waiting {waits}: {told}: {text}");
        }
    }

    #[test]
    fn what_is_shown_and_what_waits_is_said_in_words() {
        let record = |name: &str, form, state| Record { name: name.into(), form, state, ..Record::default() };
        let shown = |shown, received| Part { shown, ..of(received) };
        let summary = |name: &str| Part { in_summary: 1, summary: name.into(), ..of(1) };
        let several = |state| vec![record("a", "single", "gone"), record("b", "single", state)];
        let deleted = || vec![decided("deleted", "a")];
        for (part, records, decisions, said) in [
            (
                Part { rejected: 1, ..shown(3, 4) },
                vec![record("w", "single", "")],
                Vec::new(),
                "shown: 3 of 4 occurrences are shown, 1 was refused, in w.",
            ),
            (
                Part { rejected: 2, ..shown(2, 4) },
                vec![record("w", "single", "")],
                Vec::new(),
                "shown: 2 of 4 occurrences are shown, 2 were refused, in w.",
            ),
            (
                Part { waiting: [("turn", 2), ("coalescing", 1)].into(), ..of(3) },
                Vec::new(),
                Vec::new(),
                "coalescing: 0 of 3 occurrences are shown; 3 occurrences wait: 1 for the end of \
                 outbox.coalesceInterval, 2 for a place among the requests in flight.",
            ),
            // Fault: the sentence ended with `in .` if the record was a digest or forgotten.
            (shown(1, 1), vec![record("d", "digest", "")], Vec::new(), "shown: 1 of 1 occurrences are shown, in d."),
            (
                shown(1, 1),
                Vec::new(),
                Vec::new(),
                "shown: 1 of 1 occurrences are shown; the name of their record is forgotten.",
            ),
            // Fault: a client was said to have deleted the record, although another one was shown.
            (
                shown(2, 2),
                several("settled"),
                deleted(),
                "shown: 2 of 2 occurrences were shown, the newest in b. An earlier record is gone: it expired \
                 or was deleted.",
            ),
            (
                shown(2, 2),
                several("gone"),
                deleted(),
                "deleted: A client deleted the record. The next occurrence begins another.",
            ),
            // Fault: a digest whose name is forgotten was taken for a record that has no name yet.
            (
                summary(""),
                vec![record("", "single", "")],
                Vec::new(),
                "digest: 1 occurrence never got a token; the digest counts it.",
            ),
            // Fault: a digest that had expired was said to count occurrences.
            (
                summary("d"),
                vec![record("d", "digest", "gone")],
                Vec::new(),
                "digest: 1 occurrence never got a token; the digest d counted it. The API server has it no longer.",
            ),
        ] {
            let Answer { code, text, .. } = explained(&part, records, decisions);
            assert_eq!(format!("{code}: {text}"), said);
        }
    }
}
