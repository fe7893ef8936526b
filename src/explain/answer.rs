//! The query, and the answer from what the shards know.

use serde::Deserialize;
use serde::de::value::{Error as ValueError, MapDeserializer};

use super::document::{Answer, Explanation, Object, Part, Record, Stored};
use super::fact::Fact;
use super::history::{History, OTHERS};
use super::numbers::plural;
use super::sentence::{Situation, answer};
use crate::event::{Event, MicroTime};

/// The objects that are selected; every condition that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names of the query")]
pub struct Query {
    /// `KIND/NAME`, instead of `kind` and `name`.
    pub object: String,
    pub namespace: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// The name of an event: a client's, or a record's.
    pub event: String,
    /// `COMPONENT`, `COMPONENT/HOST` or `/HOST`.
    pub source: String,
    pub reason: String,
}

/// One shard's part of the answer.
#[derive(Debug, Default)]
pub struct Known {
    /// Whether `explain.enabled` is `false`.
    pub is_off: bool,
    /// When its store began, and the time of the newest decision that it has forgotten.
    pub span: (Option<i64>, Option<i64>),
    /// Occurrences that the shard has received, in the queried namespace if there is one.
    pub received: u64,
    /// Refused occurrences, less those that are noted with their object. May be negative, because the two may be in
    /// different shards. 0 if a namespace is queried.
    pub unread: i64,
    /// The selected objects, up to a limit.
    pub objects: Vec<Object>,
    /// Number of selected objects beyond the limit.
    pub more_objects: usize,
    /// Sentences about objects with similar names.
    pub nearest: Vec<String>,
}

/// Formats a time for people and programs.
pub fn stamp(nanos: i64) -> String {
    MicroTime::from_unix_nanos(nanos).to_string()
}

/// Whether a character neither controls a terminal nor changes the direction of the text.
pub fn is_safe(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces control characters that a terminal would obey, and cuts the text to at most `most` bytes.
pub fn clean(text: &str, most: usize) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' | '\r' => ' ',
        c if is_safe(c) => c,
        _ => '\u{fffd}',
    };
    let text: String = text.chars().map(shown).collect();
    crate::event::cut(&text, most).into()
}

/// Short names of kinds, as in kubectl.
const SHORT: [(&str, &str); 18] = [
    ("po", "pod"),
    ("deploy", "deployment"),
    ("rs", "replicaset"),
    ("sts", "statefulset"),
    ("ds", "daemonset"),
    ("cj", "cronjob"),
    ("no", "node"),
    ("ns", "namespace"),
    ("svc", "service"),
    ("ep", "endpoints"),
    ("pv", "persistentvolume"),
    ("pvc", "persistentvolumeclaim"),
    ("cm", "configmap"),
    ("sa", "serviceaccount"),
    ("ing", "ingress"),
    ("hpa", "horizontalpodautoscaler"),
    ("pdb", "poddisruptionbudget"),
    ("rc", "replicationcontroller"),
];

/// Whether a word names a kind: in any case, plural, short, or followed by the API group.
pub(super) fn is_kind(word: &str, kind: &str, api_version: &str) -> bool {
    let (word, group) = word.split_once('.').map_or((word, None), |(word, group)| (word, Some(group)));
    let (word, kind) = (word.to_ascii_lowercase(), kind.to_ascii_lowercase());
    let word = SHORT.iter().find(|(short, _)| *short == word).map_or(word.as_str(), |(_, long)| long);
    let is_plural = word.strip_suffix("es").is_some_and(|one| one == kind)
        || word.strip_suffix('s').is_some_and(|one| one == kind)
        || word.strip_suffix("ies").zip(kind.strip_suffix('y')).is_some_and(|(one, other)| one == other);
    (word == kind || is_plural) && group.is_none_or(|group| api_version.split('/').next() == Some(group))
}

impl Query {
    /// Parses the pairs of a query string.
    ///
    /// # Errors
    /// Names the parameter that is unknown, or given twice.
    pub fn parse<'a>(
        pairs: impl Iterator<Item = (std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>)>,
    ) -> Result<Self, String> {
        let mut query =
            Self::deserialize(MapDeserializer::new(pairs)).map_err(|error: ValueError| error.to_string())?;
        if !query.object.is_empty() {
            // Without a kind, it is an object of any kind, or of none.
            let parts = query.object.split_once('/').filter(|(_, name)| !name.is_empty());
            let (kind, name) = parts.ok_or("object: expected KIND/NAME, such as pod/web-0")?;
            (query.kind, query.name) = (kind.to_owned(), name.to_owned());
        }
        if [&query.name, &query.uid, &query.event, &query.source, &query.kind].iter().all(|text| text.is_empty()) {
            return Err("name an object, a uid, an event or a source".to_owned());
        }
        Ok(query)
    }

    /// Redirects the query to the object of an event that a client knows under another name.
    pub fn follow_alias(&mut self, event: &Event) {
        self.kind = event.involved_object.kind.to_string();
        self.name = event.involved_object.name.to_string();
        self.reason = event.reason.to_string();
        self.event = String::new();
    }

    /// Whether the query selects an object.
    pub fn matches(&self, history: &History) -> bool {
        self.is_about(history) && history.facts.iter().any(|fact| self.means(history, fact))
    }

    /// Whether the query selects an object, whatever its reasons and sources.
    fn is_about(&self, history: &History) -> bool {
        let is = |asked: &str, text: &str| asked.is_empty() || asked == text;
        is(&self.namespace, &history.namespace)
            && is(&self.name, &history.name)
            && is(&self.uid, &history.uid)
            && (self.kind.is_empty() || is_kind(&self.kind, &history.kind, &history.api_version))
            && (self.event.is_empty() || history.records.iter().any(|kept| kept.name == self.event))
    }

    /// Whether the query selects a reason of an object. A reason that has no fact of its own may be among the others.
    pub fn means(&self, history: &History, fact: &Fact) -> bool {
        let names_object = [&self.name, &self.uid, &self.event].iter().any(|text| !text.is_empty());
        let is_meant = |fact: &Fact| self.selects(&fact.reason, &fact.component, &fact.host);
        is_meant(fact) || names_object && fact.reason == OTHERS && !history.facts.iter().any(is_meant)
    }

    /// Whether the query selects a reason that a source reports.
    pub fn selects(&self, reason: &str, of_component: &str, of_host: &str) -> bool {
        let is_source = || match self.source.strip_prefix(of_component) {
            // A component may have a slash, as `example.com/backup`.
            Some("" | "/") => true,
            Some(host) => host.strip_prefix('/') == Some(of_host),
            None => self.source.strip_prefix('/') == Some(of_host),
        };
        (self.reason.is_empty() || self.reason == reason) && (self.source.is_empty() || is_source())
    }

    /// Says that an object has a similar name, or that it has other reasons and sources only.
    pub fn near(&self, history: &History) -> String {
        if self.is_about(history) {
            return "Other reasons or sources of it are known: leave out --reason and --source.".to_owned();
        }
        format!("The nearest name is {} {}/{}.", history.kind, history.namespace, history.name)
    }

    /// Whether an object is of the selected kind and uid.
    pub fn means_object(&self, object: &crate::event::ObjectReference) -> bool {
        (self.kind.is_empty() || is_kind(&self.kind, &object.kind, &object.api_version))
            && (self.uid.is_empty() || self.uid == object.uid)
    }

    /// Returns the length of the common beginning of the queried name and the object's name.
    pub fn likeness(&self, history: &History) -> usize {
        let is_near = !self.name.is_empty() && (self.namespace.is_empty() || self.namespace == history.namespace);
        if !is_near {
            return 0;
        }
        self.name.bytes().zip(history.name.bytes()).take_while(|(one, other)| one == other).count()
    }

    /// Describes the selected object in words.
    pub fn object(&self) -> String {
        let texts = [("event", &self.event), ("uid", &self.uid), ("source", &self.source)];
        let other = || texts.iter().find(|(_, text)| !text.is_empty()).map(|(what, text)| format!("{what} {text}"));
        let name = || format!("{} {}/{}", self.kind, self.namespace, self.name).trim().to_owned();
        let of = if self.name.is_empty() { other().unwrap_or_else(name) } else { name() };
        let reason = if self.reason.is_empty() { String::new() } else { format!(" with the reason {}", self.reason) };
        clean(&(of + &reason), 300)
    }
}

/// The codes in order, the worst for a reader first.
const WORST_FIRST: [&str; 19] = [
    "namespace-gone",
    "refused",
    "forbidden",
    "too-large",
    "expired",
    "deleted",
    "dropped-no-token",
    "upstream-down",
    "upstream-retrying",
    "deferred",
    "coalescing",
    "full",
    "rejected",
    "digest",
    "storm",
    "evicted",
    "combined",
    "shown",
    "unknown",
];

/// Whether the upstream answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// It does, or was not tried yet.
    Up,
    /// Its newest requests failed.
    Down,
}

impl Explanation {
    /// Combines what the shards know into an answer.
    pub fn new(query: &Query, shards: Vec<Known>, upstream: Upstream, now: i64) -> Self {
        let began = shards.iter().filter_map(|known| known.span.0).min();
        let forgotten = shards.iter().filter_map(|known| known.span.1).max();
        let received: u64 = shards.iter().map(|known| known.received).sum();
        let unread: i64 = shards.iter().map(|known| known.unread).sum();
        let unread = u64::try_from(unread).unwrap_or(0);
        let is_off = shards.iter().any(|known| known.is_off);
        let more_objects = shards.iter().map(|known| known.more_objects).sum();
        let (mut objects, mut nearest, now) = (Vec::<Object>::new(), Vec::new(), stamp(now));
        let asked = Situation { upstream, now: &now };
        for known in shards {
            nearest.extend(known.nearest);
            for mut object in known.objects {
                // Before objects are joined, because each shard numbers its own facts.
                for number in 0..object.reasons.len() {
                    object.reasons[number].answer = object.explain(&object.reasons[number], asked);
                }
                let same = |other: &&mut Object| {
                    (&other.kind, &other.namespace, &other.name) == (&object.kind, &object.namespace, &object.name)
                };
                match objects.iter_mut().find(same) {
                    Some(other) => {
                        other.reasons.extend(object.reasons);
                        other.budgets.extend(object.budgets);
                        other.records.extend(object.records);
                        other.decisions.extend(object.decisions);
                        other.decisions.sort_by(|one, next| one.last.cmp(&next.last));
                        other.forgotten_decisions += object.forgotten_decisions;
                    }
                    None => objects.push(object),
                }
            }
        }
        let rank = |part: &Part| WORST_FIRST.iter().position(|code| *code == part.answer.code);
        let parts = || objects.iter().flat_map(|object| object.reasons.iter().map(move |part| (object, part)));
        let mut answer = match parts().min_by_key(|(_, part)| rank(part)) {
            Some((object, worst)) => {
                let (text, reason) = (&worst.answer.text, &worst.reason);
                let are = if reason == OTHERS { ", which are counted together" } else { "" };
                let text = match (objects.len(), parts().count()) {
                    (1, 1) if are.is_empty() => text.clone(),
                    (1, 1) => format!("{reason}{are}: {text}"),
                    (1, _) => format!("{} {reason}{are}: {text}", Part::sum(parts().map(|(_, part)| part)).in_all()),
                    _ => format!("{} {}/{} {reason}{are}: {text}", object.kind, object.namespace, object.name),
                };
                Answer { text, ..worst.answer.clone() }
            }
            None => match objects.iter().flat_map(|object| &object.records).next() {
                Some(record) => of_record(query, record),
                None if is_off => off(query),
                None => unknown(query, (received, unread), (began, forgotten), &nearest, asked),
            },
        };
        if more_objects > 0 {
            answer.text += &format!(" {} left out: name one.", plural(more_objects as u64, "further object"));
        }
        Self {
            api_version: "eventweir/v1",
            kind: "Explanation",
            now,
            started_at: began.map(stamp),
            known_since: forgotten.or(began).map(stamp),
            answer,
            objects,
            more_objects,
            upstream: Vec::new(),
        }
    }

    /// Adds the upstream's events of an object that is not known here.
    pub fn found_upstream(&mut self, stored: Vec<Stored>) {
        if let Some(first) = stored.first() {
            let number = plural(stored.len() as u64, "event");
            self.answer.text += &format!(
                " The API server has {number} of it, reported by {}: another replica, an earlier process or the reporter has written them, or this process before it forgot them.",
                first.source
            );
            self.answer.action = "Ask all replicas, each with a --server of its own.".to_owned();
        }
        self.upstream = stored;
    }
}

/// Returns the answer about an object of which no occurrences are known, but a record.
fn of_record(query: &Query, record: &Record) -> Answer {
    let (object, Record { form, name, state, .. }) = (query.object(), record);
    let nothing = format!("Nothing was reported about {object}.");
    let (code, text) = match *form {
        "storm" => ("storm", format!("{nothing} Its storm record {name} counts occurrences of other objects.")),
        "digest" => ("digest", format!("{nothing} Its digest {name} counts occurrences that never got a token.")),
        _ => (
            "unknown",
            format!(
                "The occurrences of {object} are forgotten, or only an earlier process knew them. Its {form} record {name} is {state}."
            ),
        ),
    };
    answer(code, text, "")
}

fn off(query: &Query) -> Answer {
    let text = format!("Nothing is known about {}: explain.enabled is false.", query.object());
    answer("unknown", text, "Set explain.enabled: true. Decisions are recorded from then on.")
}

fn unknown(
    query: &Query,
    (received, unread): (u64, u64),
    span: (Option<i64>, Option<i64>),
    nearest: &[String],
    asked: Situation<'_>,
) -> Answer {
    let object = query.object();
    let mut text = match span {
        (_, Some(forgotten)) => format!(
            "Nothing is known about {object}. Decisions before {} may have been forgotten (explain.maxBytes); since then nothing of it was received.",
            asked.clock(&stamp(forgotten))
        ),
        (Some(began), None) => format!(
            "Nothing is known about {object}: of {}{} since {} none was about it.",
            plural(received, "occurrence"),
            if query.namespace.is_empty() { "" } else { " in its namespace" },
            asked.clock(&stamp(began))
        ),
        (None, None) => format!("Nothing is known about {object}: no occurrence has been received since the start."),
    };
    if unread > 0 {
        let were = if unread == 1 { "was" } else { "were" };
        text += &format!(" {} {were} refused before the object could be read.", plural(unread, "occurrence"));
    }
    if let Some(nearest) = nearest.first() {
        text += &format!(" {nearest}");
    }
    let action = "Check the namespace (-n), and whether its reporter sends its events here. With several replicas ask all, each \
        with a --server of its own: one knows only what it has received.";
    answer("unknown", text, action)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn kinds_are_understood_as_kubectl_understands_them() {
        for word in ["pod", "Pods", "po", "POD"] {
            assert!(is_kind(word, "Pod", "v1"), "{word}");
        }
        assert!(is_kind("ingresses", "Ingress", "networking.k8s.io/v1") && is_kind("policies", "Policy", "x/v1"));
        assert!(is_kind("cj.batch", "CronJob", "batch/v1") && !is_kind("cj.other", "CronJob", "batch/v1"));
        assert!(!is_kind("p", "Pod", "v1") && !is_kind("deploy", "Pod", "v1"));
    }

    /// Fault: a component with a slash was taken for a component and its host.
    #[test]
    fn a_source_is_a_component_that_may_have_a_slash_and_a_host() {
        let selects = |source: &str, component: &str, host: &str| {
            Query { source: source.to_owned(), ..Query::default() }.selects("R", component, host)
        };
        for source in ["example.com/backup", "example.com/backup/node-1", "/node-1", "example.com/backup/", ""] {
            assert!(selects(source, "example.com/backup", "node-1"), "{source}");
        }
        for source in ["kubelet", "kubelet/node-1", "/node-1"] {
            assert!(selects(source, "kubelet", "node-1"), "{source}");
        }
        for source in ["example.com", "backup", "example.com/backup/node-2", "example.com/backup2", "/node", "node-1"] {
            assert!(!selects(source, "example.com/backup", "node-1"), "{source}");
        }
    }

    #[test]
    fn an_object_with_nothing_but_a_summary_is_explained_by_it() {
        let storm = Record { name: "shop.1".into(), form: "storm", ..Record::default() };
        let namespace = Object { records: vec![storm], ..Object::default() };
        let [kind, name] = ["namespace", "shop"].map(str::to_owned);
        let query = Query { kind, namespace: name.clone(), name, ..Query::default() };
        let known = Known { objects: vec![namespace], ..Known::default() };
        let answer = Explanation::new(&query, vec![known], Upstream::Up, 0).answer;
        let text = "Nothing was reported about namespace shop/shop. Its storm record shop.1 counts occurrences of other objects.";
        assert_eq!((answer.code, &*answer.text), ("storm", text));
    }

    #[test]
    fn a_record_without_known_occurrences_says_nothing_about_other_objects() {
        let record = Record { name: "web-0.1".into(), form: "single", state: "settled", ..Record::default() };
        let known = Known { objects: vec![Object { records: vec![record], ..Object::default() }], ..Known::default() };
        let query = Query { kind: "pod".to_owned(), name: "web-0".to_owned(), ..Query::default() };
        let answer = Explanation::new(&query, vec![known], Upstream::Up, 0).answer;
        assert!(answer.text.ends_with("Its single record web-0.1 is settled."), "{}", answer.text);
        assert_eq!(answer.code, "unknown");
    }

    #[test]
    fn an_answer_about_several_objects_names_the_worst_one() {
        let object = |name: &str, lost| {
            let part = Part { reason: "R".into(), received: 1, lost, ..Part::default() };
            Object {
                kind: "Pod".into(),
                namespace: "shop".into(),
                name: name.into(),
                reasons: vec![part],
                ..Object::default()
            }
        };
        let objects = vec![object("a", BTreeMap::new()), object("b", [("invalid", 1)].into())];
        let known = Known { objects, ..Known::default() };
        let answer = Explanation::new(&Query::default(), vec![known], Upstream::Up, 0).answer;
        assert!(
            answer.text.starts_with("Pod shop/b R: Lost, 1 occurrence: the upstream refused it (invalid)."),
            "{}",
            answer.text
        );
    }

    /// Fault: the numbers of one reason were told as if they were the object's.
    #[test]
    fn an_answer_about_several_reasons_begins_with_their_sum() {
        let part = |reason: &str, shown, waiting: &[_], lost: &[_]| {
            let (waiting, lost) = (waiting.iter().copied().collect(), lost.iter().copied().collect());
            Part { reason: reason.into(), received: 4, shown, waiting, lost, ..Part::default() }
        };
        let told = |reasons: Vec<Part>| {
            let known = Known { objects: vec![Object { reasons, ..Object::default() }], ..Known::default() };
            Explanation::new(&Query::default(), vec![known], Upstream::Up, 0).answer.text
        };
        let waits = "1 of 4 occurrences are shown; 3 occurrences wait for a token.";
        let waiting = |reason| part(reason, 1, &[("budget", 3)], &[]);
        assert_eq!(told(vec![waiting("A")]), waits);
        let dropped = part("B", 3, &[], &[("suppressed", 1)]);
        let all = told(vec![dropped, waiting("A")]);
        assert!(all.starts_with("4 of 8 occurrences are shown, 1 was lost; 3 wait. B: 3 of 4"), "{all}");
        let others = told(vec![part("B", 4, &[], &[]), waiting(OTHERS)]);
        let said = "5 of 8 occurrences are shown; 3 wait. (others), which are counted together: ";
        assert_eq!(others, format!("{said}{waits}"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_taken_out() {
        assert_eq!(clean("a\u{1b}[31m\u{202e}b\n", 100), "a\u{fffd}[31m\u{fffd}b ");
        assert_eq!(clean("ääää", 5), "ää");
    }

    /// Fault: the page's link to an object without a kind was refused.
    #[test]
    fn an_object_may_lack_its_kind() {
        let parse = |object: &str| Query::parse([("object".into(), object.into())].into_iter());
        for (object, kind, name) in [("pod/web-0", "pod", "web-0"), ("/web-0", "", "web-0")] {
            let query = parse(object).unwrap();
            assert_eq!((query.kind.as_str(), query.name.as_str()), (kind, name));
        }
        assert!(["web-0", "/", "pod/"].into_iter().all(|object| parse(object).is_err()));
    }
}
