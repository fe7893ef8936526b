//! The first sentence of an answer: where the occurrences of a reason are, and what to do.

use smol_str::SmolStr;

use super::answer::{Answer, Budget, Decided, Object, Part, Record, Upstream};

pub(super) fn plural(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns the time of day.
pub(super) fn clock(stamp: &str) -> &str {
    stamp.split_once('T').map_or(stamp, |(_, time)| time.split(['.', 'Z']).next().unwrap_or(time))
}

impl Part {
    fn of_how_many(&self) -> String {
        let refused = match self.rejected {
            0 => String::new(),
            1 => ", 1 was refused".to_owned(),
            rejected => format!(", {rejected} were refused"),
        };
        format!("{} of {} occurrences are shown{refused}", self.shown + self.in_summary, self.received)
    }
}

pub(super) fn answer(code: &'static str, text: String, action: &str) -> Answer {
    Answer { code, text, action: action.to_owned() }
}

/// The action if eventweir lacks write permission.
const RIGHTS: &str = "Grant eventweir create and patch on events.";

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
    fn budget(&self, part: &Part) -> Option<&Budget> {
        self.budgets.iter().find(|budget| budget.facts.contains(&part.fact))
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

    /// Says where the occurrences of a reason are.
    pub fn explain(&self, part: &Part, upstream: Upstream) -> Answer {
        let losses = part.lost.iter().filter(|(why, _)| **why != "suppressed");
        // A client's DELETE is the most harmless.
        if let Some((why, number)) = losses.min_by_key(|(why, _)| **why == "deleted") {
            self.explain_lost(part, why, *number)
        } else if let Some(number) = part.lost.get("suppressed") {
            self.explain_dropped(part, *number)
        } else if let Some((why, _)) = part.waiting.iter().next_back() {
            self.explain_waiting(part, why, upstream)
        } else if part.received == part.rejected {
            self.explain_refused(part)
        } else {
            self.explain_shown(part)
        }
    }

    fn explain_lost(&self, part: &Part, why: &str, number: u64) -> Answer {
        let newest =
            |decision: &&Decided| decision.verdict == "lost" && decision.fact == part.fact && decision.why == why;
        let newest = self.decisions.iter().rfind(newest);
        // The loss of a storm record is a decision about another object.
        let at = newest.map(|decision| format!(" at {}", clock(&decision.last))).unwrap_or_default();
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

    fn explain_dropped(&self, part: &Part, number: u64) -> Answer {
        let of_how_many = part.of_how_many();
        let budget = self.budget(part);
        let others: Vec<String> = budget
            .into_iter()
            .flat_map(|budget| &budget.spent_on)
            .filter(|(_, spent)| **spent > 0)
            .map(|(reason, spent)| format!("{reason} {spent}"))
            .collect();
        let next = budget
            .and_then(|budget| budget.next_token.as_deref())
            .map_or("never".to_owned(), |next| clock(next).to_owned());
        let were = if number == 1 { "was" } else { "were" };
        answer(
            "dropped-no-token",
            format!(
                "{of_how_many}. {number} {were} dropped: the budget was empty, and suppression is `drop`. The next token comes at {next}. \
                     Tokens spent: {}. A later write of the record counts them.",
                others.join(", ")
            ),
            "suppression: defer keeps them (the default). Or give each reason a budget of its own: `reason` in spamKey.",
        )
    }

    fn explain_waiting(&self, part: &Part, why: &str, upstream: Upstream) -> Answer {
        let is_down = upstream == Upstream::Down;
        let of_how_many = part.of_how_many();
        let budget = self.budget(part);
        let waiting: u64 = part.waiting.values().sum();
        let wait = format!("{} {}", plural(waiting, "occurrence"), if waiting == 1 { "waits" } else { "wait" });
        // While a retry is in flight, the last failure is still why the occurrences are not written.
        let is_retried =
            part.waiting.contains_key("in_flight") && self.newest(part, "failed") > self.newest(part, "written");
        let has_failed = part.waiting.contains_key("retry") || is_retried;
        if let Some(failed) = self.decided(part, "failed").filter(|_| has_failed) {
            if failed.why == "forbidden" {
                let (code, action) = of_refusal(&failed.text).unwrap_or(("forbidden", RIGHTS));
                let (since, text) = (clock(&failed.time), failed.text.trim_end_matches('.'));
                let text = format!(
                    "Not written: the upstream has refused it since {since} (403): {text}. {wait}; what is refused for five minutes is lost."
                );
                return answer(code, text, action);
            }
            let is_silent = is_down || ["transport", "timeout"].contains(&failed.why);
            return answer(
                if is_silent { "upstream-down" } else { "upstream-retrying" },
                format!(
                    "Not written yet: the upstream has failed since {} ({}). {wait}.",
                    clock(&failed.time),
                    failed.why
                ),
                of_fault(failed.why),
            );
        }
        if is_down {
            let text = format!("Not written yet: the upstream is down. {of_how_many}; {wait}.");
            return answer("upstream-down", text, of_fault(""));
        }
        if let Some(budget) = budget.filter(|_| part.waiting.contains_key("budget")) {
            let next = budget.next_token.as_deref().map_or("never comes", clock);
            let first = budget.queue.first().map_or("", SmolStr::as_str);
            return answer(
                "deferred",
                format!("{of_how_many}; {wait} for a token. The next token, {next}, goes to {first}."),
                "Nothing: they are written when their turn comes. burstSize and qps say how fast.",
            );
        }
        answer(
            if why == "group" { "deferred" } else { "coalescing" },
            format!("{of_how_many}; {wait} ({}).", part.waiting.keys().copied().collect::<Vec<_>>().join(", ")),
            "Nothing: they are written within moments, or when the budget of their group allows.",
        )
    }

    fn explain_refused(&self, part: &Part) -> Answer {
        let refused = self.decided(part, "rejected");
        let at = refused.map_or("", |decision| clock(&decision.last));
        let words = refused.map_or("", |decision| decision.text.as_str());
        let why = refused.map_or("", |decision| decision.why);
        if part.received == 0 {
            return answer(
                "rejected",
                format!("No occurrence was received. A change of the event was refused at {at}: {words}"),
                "The client has the refusal; a PUT, an apply or a patch of other members is no occurrence.",
            );
        }
        let text = format!("Refused at {at}: {} ({why})", plural(part.rejected, "occurrence"));
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
            let form =
                self.records.iter().find(|record| record.name == part.summary).map_or("digest", |record| record.form);
            return answer(
                form,
                format!(
                    "{} never got a token; the {form} {} counts {}.",
                    plural(part.in_summary, "occurrence"),
                    part.summary,
                    if part.in_summary == 1 { "it" } else { "them" }
                ),
                if form == "storm" {
                    "Nothing; a rule with a larger groupBurstSize or groupQps gives them records of their own."
                } else {
                    "Nothing; a larger burstSize gives them records of their own."
                },
            );
        }
        if self.newest(part, "deleted") > self.newest(part, "written") {
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
                "Its last messages are below.",
            );
        }
        let record = self.record(part, "single");
        let name = record.map_or("", |record| record.name.as_str());
        let were = of_how_many.replacen(" are ", " were ", 1);
        if record.is_some_and(|record| record.state == "gone") {
            let text = format!("{were}, in {name}. The API server has it no longer: it expired or was deleted.");
            return answer("shown", text, "Nothing: the next occurrence creates it again.");
        }
        if self.records.iter().any(|record| record.fact == part.fact && record.state == "gone") {
            let text = format!("{were}, the newest in {name}. An earlier record is gone: it expired or was deleted.");
            return answer("shown", text, "");
        }
        answer("shown", format!("{of_how_many}, in {name}."), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(verdict: &'static str, text: &str) -> Decided {
        let last = "2026-03-01T10:33:02.000000Z".to_owned();
        Decided { last, reason: "R".into(), verdict, why: "forbidden", text: text.into(), ..Decided::default() }
    }

    fn object(part: &Part, decisions: Vec<Decided>) -> Object {
        Object { reasons: vec![part.clone()], decisions, ..Object::default() }
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
            let part = Part { reason: "R".into(), received: 1, waiting: [(why, 1)].into(), ..Part::default() };
            assert_eq!(object(&part, decisions).explain(&part, Upstream::Up).code, code, "{why}");
        }
    }

    #[test]
    fn a_record_that_was_not_tried_waits_for_an_upstream_that_is_down() {
        for why in ["turn", "group", "budget"] {
            let part = Part { reason: "R".into(), received: 1, waiting: [(why, 1)].into(), ..Part::default() };
            let explained = |upstream| object(&part, Vec::new()).explain(&part, upstream);
            let text = "Not written yet: the upstream is down. 0 of 1 occurrences are shown; 1 occurrence waits.";
            let down = explained(Upstream::Down);
            assert_eq!((down.code, down.text.as_str()), ("upstream-down", text));
            assert_ne!(explained(Upstream::Up).code, "upstream-down");
        }
    }

    #[test]
    fn the_action_after_a_failure_fits_its_cause() {
        for (why, beginning) in [("unauthorized", "Renew"), ("not_apiserver", "Check the upstream's address")] {
            let part = Part { reason: "R".into(), received: 1, waiting: [("retry", 1)].into(), ..Part::default() };
            let failed = Decided { why, ..decided("failed", "") };
            let action = object(&part, vec![failed]).explain(&part, Upstream::Up).action;
            assert!(action.starts_with(beginning), "{action}");
        }
    }

    #[test]
    fn refused_occurrences_are_named_beside_the_others() {
        for (rejected, refused) in [(1, "1 was refused"), (2, "2 were refused")] {
            let part = Part { reason: "R".into(), received: 4, shown: 4 - rejected, rejected, ..Part::default() };
            let text = object(&part, Vec::new()).explain(&part, Upstream::Up).text;
            assert_eq!(text, format!("{} of 4 occurrences are shown, {refused}, in .", 4 - rejected));
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
            let part = Part { reason: "R".into(), received: 1, lost: [("forbidden", 1)].into(), ..Part::default() };
            let answer = object(&part, vec![decided("lost", text)]).explain(&part, Upstream::Up);
            let said = format!("Lost at 10:33:02, 1 occurrence: the upstream refused it (403): {text}");
            assert_eq!((answer.code, answer.text), (code, said));
        }
    }
}
