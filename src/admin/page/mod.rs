//! The web page: rates, what waits and what is lost, the noisiest objects, and the explanation of an object. The server
//! renders the whole HTML; a script refreshes it.
//!
//! Texts of events come from clients and are not trusted: only [`Html::text`] may write them, and it escapes them.

mod drawing;
mod shadow;

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{Html as Answer, IntoResponse, Response};
use serde_json::Value;

use super::Admin;
use crate::correlator::{Matches, Pattern, Rule};
use crate::event::MicroTime;
use crate::explain::{clean, saved};
use crate::history::{HistoryStatus, Mode};
use crate::ingest::TopQuery;

pub(super) const CSS: &str = include_str!("page.css");
pub(super) const SCRIPT: &str = include_str!("page.js");
pub(super) const ICON: &str =
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><path d='M0 2h8M0 4h5M0 6h2' stroke='#1f6feb'/></svg>";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Most rows of a table.
const ROWS: usize = 15;
/// Minutes whose losses are an alarm.
const ALARM_MINUTES: usize = 10;
/// Text instead of events, if other machines reach the port without authentication.
const HIDDEN: &str =
    "Other machines reach this port without authentication, so it shows no events; see --web.config.file.";
/// Text instead of events, if nothing about them is kept.
const OFF: &str = "explain.enabled is false, so no rates are kept, and nothing about objects and reasons.";
/// What to do before the first event, instead of tables.
const FIRST_STEPS: &str = "<section><h2>No event has arrived yet</h2><ol>\
    <li>Send one: the README's section \u{201c}Try it\u{201d} has the command.</li>\
    <li>Let a component report here: <code>docs/clients.md</code> has a recipe for each kind of client.</li>\
    </ol></section><div class=\"sides\">";

/// A buffer of HTML.
#[derive(Default)]
struct Html(String);

impl Html {
    /// Adds trusted markup.
    fn tag(&mut self, markup: &str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Adds escaped text.
    fn text(&mut self, text: &str) -> &mut Self {
        self.escaped(&clean(text, 2000))
    }

    fn escaped(&mut self, text: &str) -> &mut Self {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.tag(&text.replace('"', "&quot;").replace('\'', "&#39;"))
    }

    /// Adds a table, whose first column names its rows.
    fn table(&mut self, title: &str, headings: &[&str], rows: &[Vec<Cell>]) -> &mut Self {
        if rows.is_empty() {
            return self.tag("<h2>").text(title).tag("</h2><p class=\"faint\">none</p>");
        }
        self.tag("<div class=\"scroll\"><table><caption><h2>").text(title).tag("</h2></caption><thead><tr>");
        for heading in headings {
            self.tag("<th scope=\"col\">").text(heading).tag("</th>");
        }
        self.tag("</tr></thead><tbody>");
        for row in rows {
            self.tag("<tr>");
            for (index, cell) in row.iter().enumerate() {
                self.tag(if index == 0 { "<th scope=\"row\">" } else { "<td>" });
                match cell {
                    Cell::Text(text) => self.text(text),
                    Cell::Link(text, target) => {
                        self.tag("<a href=\"").escaped(target).tag("\">").text(text).tag("</a>")
                    }
                };
                self.tag(if index == 0 { "</th>" } else { "</td>" });
            }
            self.tag("</tr>");
        }
        self.tag("</tbody></table></div>")
    }
}

enum Cell {
    Text(String),
    Link(String, String),
}

impl From<&Value> for Cell {
    fn from(value: &Value) -> Self {
        Self::Text(match value {
            Value::String(text) if !text.is_empty() => text.clone(),
            Value::String(_) | Value::Null => "-".to_owned(),
            Value::Object(members) if members.is_empty() => "0".to_owned(),
            Value::Object(members) => {
                members.iter().map(|(name, number)| format!("{name} {number}")).collect::<Vec<_>>().join(", ")
            }
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | "),
            Value::Number(number) if number.is_f64() => format!("{:.1}", number.as_f64().unwrap_or_default()),
            other => other.to_string(),
        })
    }
}

fn rows(value: &Value, members: &[&str]) -> Vec<Vec<Cell>> {
    let row = |row: &Value| members.iter().map(|member| Cell::from(&row[*member])).collect();
    value.as_array().into_iter().flatten().map(row).collect()
}

/// Renders the page with this main part, and what it has searched: an object and its namespace.
fn page(title: &str, searched: [&str; 2], is_live: bool, main: &str) -> Response {
    let [title, object, namespace] = [title, searched[0], searched[1]].map(|text| {
        let mut html = Html::default();
        html.text(text);
        html.0
    });
    let pause =
        if is_live { "<button id=\"pause\" type=\"button\" aria-keyshortcuts=\"p\" hidden>pause</button>" } else { "" };
    let html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><link rel=\"stylesheet\" href=\"page.css\">\
         <link rel=\"icon\" href=\"icon.svg\"><script src=\"page.js\" defer></script></head><body>\
         <a class=\"skip\" href=\"#main\">to the content</a>\
         <header><h1>eventweir</h1><nav aria-label=\"pages\"><a href=\"./\">overview</a><a href=\"metrics\">metrics</a>\
         <a href=\"config\">active configuration</a><a href=\"readyz\">ready</a><a href=\"livez\">alive</a></nav>\
         <form action=\"explain\" role=\"search\"><input id=\"find\" name=\"object\" value=\"{object}\" required aria-label=\"object\" \
         placeholder=\"pod/web-0\" size=\"14\"><input name=\"namespace\" value=\"{namespace}\" aria-label=\"namespace\" placeholder=\"namespace\" \
         size=\"10\"><button>find</button></form>{pause}\
         <button id=\"keys\" type=\"button\" title=\"single keys: / searches, p pauses\" hidden>keys</button></header><main id=\"main\">{main}</main></body></html>\n"
    );
    answer(Answer(html).into_response())
}

fn answer(mut response: Response) -> Response {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Answers with a fixed part of the page.
pub(super) fn asset(kind: &'static str, text: &'static str) -> Response {
    answer(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// `/`
pub(super) async fn overview(State(admin): State<Admin>) -> Response {
    let Some(ingest) = admin.0.ingest.get() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let top = ingest.top(&TopQuery::default());
    let ledger = &top["ledger"];
    let full = full(&admin);
    let mut html = Html::default();
    let lost = ["lost", "lostByFault"].map(|member| {
        let minutes = top["perMinute"][member].as_array().into_iter().flatten();
        minutes.rev().take(ALARM_MINUTES).filter_map(Value::as_u64).sum()
    });
    let alarms = alarms(&admin, lost, full);
    html.tag("<p id=\"alarm\">");
    for (number, (alarm, target)) in alarms.iter().enumerate() {
        // Only the first word of the first is announced, because numbers change all the time.
        let (word, text) = alarm.split_once(':').unwrap_or((alarm, ""));
        html.tag(if number == 0 { "<strong role=\"status\"" } else { "<br><strong" });
        html.tag(if word == "OK" { " class=\"good\">" } else { " class=\"alarm\">" });
        html.text(word).tag("</strong>:").text(text);
        if !target.is_empty() {
            let page = if target.starts_with("eventweir_") { "metrics#:~:text=" } else { "" };
            html.tag(" <a href=\"").tag(page).tag(target).tag("\">").tag(target).tag("</a>");
        }
    }
    html.tag("</p><div id=\"live\"><dl class=\"numbers\">");
    for (name, number) in &numbers(&admin, &top, full) {
        html.tag("<div><dt>").text(name).tag("</dt><dd>").text(number).tag("</dd></div>");
    }
    html.tag("</dl>");
    drawing::per_minute(&mut html, &top["perMinute"]);
    if ledger["received"] == 0 {
        html.tag(FIRST_STEPS);
    } else if top["enabled"] == false {
        html.tag("<p class=\"faint\">").text(OFF).tag("</p><div class=\"sides\">");
    } else if admin.knows_callers() {
        let mut objects = rows(&top["objects"], &["object", "reason", "perSecond", "received", "writes"]);
        objects.truncate(ROWS);
        for (cells, row) in objects.iter_mut().zip(top["objects"].as_array().into_iter().flatten()) {
            let [object, namespace] = ["object", "namespace"].map(|member| row[member].as_str().unwrap_or_default());
            let mut pairs = form_urlencoded::Serializer::for_suffix("explain?".to_owned(), 8);
            pairs.append_pair("object", object).append_pair("namespace", namespace);
            let text = format!("{namespace} {object}");
            cells[0] = if object.starts_with('(') { Cell::Text(text) } else { Cell::Link(text, pairs.finish()) };
        }
        let headings = ["object", "reason", "per second", "received", "writes"];
        html.table("Noisiest objects, last hour", &headings, &objects);
        html.tag("<div class=\"sides\">");
        for (title, member) in [("Reasons", "reasons"), ("Sources", "components"), ("Namespaces", "namespaces")] {
            let mut table = rows(&top[member], &["name", "perSecond", "received", "writes"]);
            table.truncate(ROWS);
            html.tag("<section>").table(title, &["name", "per second", "received", "writes"], &table).tag("</section>");
        }
    } else {
        html.tag("<p class=\"faint\">").text(HIDDEN).tag("</p><div class=\"sides\">");
    }
    for (title, member) in
        [("Waiting, by what for", "waiting"), ("Lost, by reason", "lost"), ("Rejected, by reason", "rejected")]
    {
        let members = ledger[member].as_object().into_iter().flatten();
        let table: Vec<Vec<Cell>> = members.map(|(why, number)| vec![Cell::Text(why.clone()), number.into()]).collect();
        html.tag("<section>").table(title, &["reason", "occurrences"], &table).tag("</section>");
    }
    html.tag("</div>").table("Rules", &["rule", "events", "occurrences"], &rules(&admin));
    if let Some(difference) = ingest.shadow(None) {
        shadow::section(&mut html, &difference, admin.knows_callers());
    }
    html.tag("</div>");
    page("eventweir", ["", ""], true, &html.0)
}

/// Returns the sum of a part of the ledger.
fn total(ledger: &Value, what: &str) -> u64 {
    ledger[what].as_object().into_iter().flat_map(|members| members.values()).filter_map(Value::as_u64).sum()
}

/// Returns how full the outbox is, of records or of bytes, in percent.
fn full(admin: &Admin) -> usize {
    let (sizes, limits) = (admin.0.shards.sizes(), admin.0.shards.settings());
    let outbox = &limits.outbox;
    (100 * sizes.records / outbox.max_records.get()).max(100 * sizes.bytes / outbox.max_bytes.get())
}

fn numbers(admin: &Admin, top: &Value, full: usize) -> [(&'static str, String); 11] {
    let number = |member: &str| top[member].as_f64().unwrap_or_default();
    let ledger = &top["ledger"];
    let now = admin.0.shards.clock().now();
    let kept = |text: String| if top["enabled"] == false { "off".to_owned() } else { text };
    [
        ("received", kept(format!("{:.2}/s", number("receivedPerSecond")))),
        ("written", kept(format!("{:.2}/s", number("writtenPerSecond")))),
        ("saved, 1 h", kept(saved(number("receivedLastHour"), number("writtenLastHour")))),
        ("received in all", ledger["received"].to_string()),
        ("waiting", total(ledger, "waiting").to_string()),
        ("lost", total(ledger, "lost").to_string()),
        ("rejected", total(ledger, "rejected").to_string()),
        ("upstream", admin.upstream()),
        ("not shown yet", kept(unseen(&top["unseen"], now.wall))),
        ("history", history(&admin.0.history, admin.0.history.heard(now))),
        ("outbox", format!("{full} %")),
    ]
}

/// Says what is known of the upstream's events.
fn history(status: &HistoryStatus, heard: Option<Duration>) -> String {
    let ago = heard.map(|ago| format!("{} ago", span(ago)));
    match (status.mode(), status.is_synced(), ago) {
        (Mode::Off, ..) => "off".to_owned(),
        (Mode::List, true, Some(ago)) => format!("listed {ago}"),
        (Mode::List, ..) => "not listed".to_owned(),
        (Mode::Watch, true, Some(ago)) => format!("followed, last message {ago}"),
        (Mode::Watch, _, Some(ago)) => format!("not followed, last message {ago}"),
        (Mode::Watch, _, None) => "not followed".to_owned(),
    }
}

/// Formats a duration, rounded down to one unit.
fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Formats the number of facts without a shown occurrence, and how long the oldest has waited.
fn unseen(unseen: &Value, now: i64) -> String {
    let facts = &unseen["facts"];
    let since = unseen["oldest"]["since"].as_str().and_then(|since| MicroTime::parse(since).ok());
    let waited = |since: MicroTime| {
        let waited = now.saturating_sub(since.0.saturating_mul(1000)).max(0);
        Duration::from_nanos(u64::try_from(waited).unwrap_or_default())
    };
    since.map_or_else(|| facts.to_string(), |since| format!("{facts}, {}", span(waited(since))))
}

/// Returns the active rules, with the number of events that each matched.
fn rules(admin: &Admin) -> Vec<Vec<Cell>> {
    let (policy, hits) = (admin.0.shards.policy(), admin.0.shards.rule_hits());
    let is_counted = admin.0.shards.explains();
    let row = |(place, text): (usize, String)| {
        let name = place.checked_sub(1).map_or("(none)".to_owned(), |rule| format!("rules[{rule}]"));
        let hits = hits.get(place).copied().unwrap_or_default();
        let hits = if is_counted { hits.to_string() } else { "off".to_owned() };
        vec![Cell::Text(name), Cell::Text(text), Cell::Text(hits)]
    };
    let texts = std::iter::once("no rule matches".to_owned()).chain(policy.rules.iter().map(conditions));
    texts.enumerate().map(|(place, text)| row((place, text))).collect()
}

fn conditions(rule: &Rule) -> String {
    let Matches { component, namespace, kind, reason, event_type } = &rule.matches;
    let lists =
        [("component", component), ("namespace", namespace), ("kind", kind), ("reason", reason), ("type", event_type)];
    let given = lists.into_iter().filter(|(_, patterns)| !patterns.is_empty());
    let words = given.map(|(name, patterns)| {
        format!("{name}: {}", patterns.iter().map(Pattern::to_string).collect::<Vec<_>>().join(", "))
    });
    words.collect::<Vec<_>>().join("; ")
}

/// Returns the problems, the most severe first, each with the metric or the page that shows it. `by_fault` of the lost
/// occurrences were lost by a fault.
fn alarms(admin: &Admin, [lost, by_fault]: [u64; 2], full: usize) -> Vec<(String, &'static str)> {
    let upstream = admin.upstream();
    let mut alarms = Vec::new();
    if !admin.0.delivery.is_up() {
        let text = "! DOWN: the upstream does not answer; events wait in the outbox.";
        alarms.push((text.to_owned(), "eventweir_upstream_up"));
    }
    if full >= 80 {
        let text = format!("! FULL: the outbox is {full} % full; at 100 % new records are refused with 429.");
        alarms.push((text, "eventweir_outbox_records"));
    }
    for (check, _) in admin.checks().into_iter().filter(|(_, passed)| passed.is_none()) {
        alarms.push((format!("! NOT READY: {check} fails."), "readyz"));
    }
    if upstream.starts_with("forbidden") {
        alarms.push((format!("! UPSTREAM {upstream}."), "eventweir_upstream_forbidden"));
    }
    if by_fault > 0 {
        let text = format!("! LOSING: {by_fault} occurrences in the last ten minutes; by reason below.");
        alarms.push((text, "eventweir_ledger_lost_total"));
    }
    if alarms.is_empty() {
        let text = match lost {
            0 => "OK: nothing was lost in the last ten minutes.".to_owned(),
            _ => format!("OK: of {lost} occurrences lost in the last ten minutes, none was lost by a fault."),
        };
        alarms.push((text, ""));
    }
    alarms
}

/// `/explain`
pub(super) async fn explain(State(admin): State<Admin>, uri: Uri) -> Response {
    let mut html = Html::default();
    let asked = |name: &str| {
        let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        pairs.find_map(|(key, value)| (key == name).then_some(value)).unwrap_or_default()
    };
    let (object, namespace) = (asked("object"), asked("namespace"));
    let page = |html: &Html| page(&format!("explain {object}"), [&object, &namespace], false, &html.0);
    let refused = |code: StatusCode, html: &mut Html, text: &str| {
        html.tag("<h2>").text(text).tag("</h2>");
        (code, page(html)).into_response()
    };
    if !admin.knows_callers() {
        return refused(StatusCode::FORBIDDEN, &mut html, HIDDEN);
    }
    let Some(ingest) = admin.0.ingest.get() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let explanation = match ingest.explain("", uri.query()).await {
        Ok(explanation) => serde_json::to_value(&explanation).unwrap_or_default(),
        Err(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_REQUEST);
            return refused(code, &mut html, &status.message);
        }
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    html.tag("<h2 id=\"answer\">").text(&text(&explanation["answer"]["text"])).tag("</h2><p>");
    html.text(&text(&explanation["answer"]["action"])).tag("</p>");
    for object in explanation["objects"].as_array().into_iter().flatten() {
        let [kind, namespace, name] = ["kind", "namespace", "name"].map(|member| text(&object[member]));
        html.tag("<section>");
        let part =
            ["reason", "type", "source", "received", "shown", "inSummary", "waiting", "lost", "rejected", "lastShown"];
        let headings = ["reason", "type", "source", "received", "shown", "in a digest", "waiting", "lost", "rejected"];
        let headings = [&headings[..], &["last shown"]].concat();
        html.table(&format!("{kind} {namespace}/{name}"), &headings, &rows(&object["reasons"], &part));
        let budget = ["key", "suppression", "tokens", "burst", "nextToken", "spentOn"];
        let headings = ["budget", "suppression", "tokens", "of", "next token", "spent on"];
        html.table("Budgets", &headings, &rows(&object["budgets"], &budget));
        let record = ["name", "form", "count", "pending", "state", "messages"];
        html.table(
            "Records",
            &["name", "form", "count", "waiting", "state", "last messages"],
            &rows(&object["records"], &record),
        );
        let decision = ["last", "reason", "verdict", "occurrences", "why", "nextToken", "text"];
        let headings = ["time", "reason", "verdict", "occurrences", "why", "next token", "text"];
        let mut decisions = rows(&object["decisions"], &decision);
        decisions.reverse();
        html.table("Decisions, the newest first", &headings, &decisions).tag("</section>");
    }
    let stored = rows(&explanation["upstream"], &["name", "reason", "count", "source"]);
    if !stored.is_empty() {
        html.table("In the API server", &["name", "reason", "count", "source"], &stored);
    }
    page(&html)
}
