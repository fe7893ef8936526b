//! The report of a comparison for `replay`, `observe` and `demo`: a summary, rows, one JSON document, a drawing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use smol_str::{SmolStr, format_smolstr};

use super::{Error, print, print_document, suggest, table};
use crate::cli::{By, Output, Report, Sort};
use crate::event::Time;
use crate::replay::{Comparison, Fact, Fate, Sent, Simulation};

const SECOND: i64 = 1_000_000_000;

/// A finished comparison.
pub(super) struct Compared {
    pub(super) comparison: Comparison,
    /// Names of the columns; the first is client-go.
    pub(super) names: Vec<String>,
    /// Configuration files of the columns.
    pub(super) configs: Vec<Option<String>>,
    /// Unix nanoseconds of the end.
    pub(super) until: i64,
    /// Documents that were skipped.
    pub(super) bad: u64,
    /// Notes about the input, for the reader.
    pub(super) notes: Vec<String>,
}

/// Prints a comparison in the format of its flags.
pub(super) fn finish(compared: &Compared, flags: &Report) -> Result<(), Error> {
    draw(compared, flags.svg.as_deref())?;
    match flags.output {
        Output::Json => print_document(&(json_document(compared).to_string() + "\n"))?,
        Output::Table | Output::Wide => {
            let rows = never_shown(compared, flags.top) + &rows(compared, flags);
            print(&(summary(compared) + &rows + &suggest::text(compared) + &notes(compared)))?;
        }
    }
    if compared.comparison.balances() { Ok(()) } else { Err(Error::Unbalanced) }
}

/// Writes the drawing of the writes per minute to a file, if one is given.
pub(super) fn draw(compared: &Compared, path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, svg(compared))
        .map_err(|source| Error::Io { what: format!("writing {}", path.display()), source })
}

/// Returns the facts that were sent, each with its fate in each simulation.
fn fates<'c>(comparison: &'c Comparison, simulations: &[Simulation]) -> Vec<(&'c Fact, Sent, Vec<Fate>)> {
    let fates: Vec<Vec<Fate>> = simulations.iter().map(Simulation::fates).collect();
    let facts = comparison.facts.iter().enumerate().filter(|(_, (_, sent))| sent.number > 0);
    let of = |number: usize| fates.iter().map(|fates| fates.get(number).copied().unwrap_or_default()).collect();
    facts.map(|(number, (fact, sent))| (&**fact, *sent, of(number))).collect()
}

/// The fate of the occurrences of some facts in one simulation.
pub(super) struct Total {
    pub(super) fate: Fate,
    pub(super) unseen: usize,
    /// Longest time until a fact was shown; `None` if one never was.
    pub(super) wait: Option<i64>,
    /// Longest time by which a fact's newest shown occurrence is older than its newest sent one.
    pub(super) behind: i64,
}

impl Total {
    fn add(&mut self, sent: &Sent, fate: &Fate) {
        self.fate.add(fate);
        self.unseen += usize::from(fate.shown == 0);
        self.wait = self.wait.zip(fate.first_shown).map(|(wait, shown)| wait.max(shown - sent.first));
        self.behind = self.behind.max(fate.newest_shown.map_or(0, |newest| sent.newest - newest));
    }

    /// Returns the longest wait; a fact that is never shown waits forever.
    pub(super) fn wait(&self) -> i64 {
        self.wait.unwrap_or(i64::MAX)
    }

    pub(super) fn wait_text(&self) -> String {
        self.wait.map_or_else(|| "never".to_owned(), |wait| length(wait / SECOND))
    }
}

/// The sums of some facts.
pub(super) struct Sums {
    pub(super) sent: u64,
    facts: usize,
    /// One per simulation.
    pub(super) totals: Vec<Total>,
}

impl Sums {
    fn none(simulations: &[Simulation]) -> Self {
        let total = |_| Total { fate: Fate::default(), unseen: 0, wait: Some(0), behind: 0 };
        Self { sent: 0, facts: 0, totals: simulations.iter().map(total).collect() }
    }

    /// Returns the sums in the last simulation, which is ours.
    fn ours(&self) -> &Total {
        &self.totals[self.totals.len() - 1]
    }
}

/// Sums up the facts that share a key; those without one are left out.
pub(super) fn sums<K: Ord>(
    comparison: &Comparison,
    simulations: &[Simulation],
    key: impl Fn(&Fact) -> Option<K>,
) -> BTreeMap<K, Sums> {
    let mut sums = BTreeMap::new();
    for (fact, sent, fates) in fates(comparison, simulations) {
        let Some(key) = key(fact) else { continue };
        let sum = sums.entry(key).or_insert_with(|| Sums::none(simulations));
        sum.sent += sent.number;
        sum.facts += 1;
        sum.totals.iter_mut().zip(&fates).for_each(|(total, fate)| total.add(&sent, fate));
    }
    sums
}

/// Returns the sums of all facts in each column.
pub(super) fn totals(compared: &Compared) -> Sums {
    let Comparison { columns, .. } = &compared.comparison;
    sums(&compared.comparison, columns, |_| Some(())).remove(&()).unwrap_or_else(|| Sums::none(columns))
}

/// Renders the totals of the columns, beside those of a client without a correlator.
pub(super) fn summary(compared: &Compared) -> String {
    let comparison = &compared.comparison;
    let sent = comparison.sent();
    let mut objects: Vec<_> =
        comparison.facts.iter().map(|(fact, _)| (&fact.namespace, &fact.kind, &fact.name)).collect();
    objects.sort_unstable();
    objects.dedup();
    let Some((from, to)) = comparison.span else { return "No events.\n".to_owned() };
    let after = match (compared.until - to) / SECOND {
        0 => String::new(),
        seconds => format!(", then run on for {}", length(seconds)),
    };
    let mut text = table::wrap(&format!(
        "{} of {}, {} to {}{after}",
        plural(sent, "event"),
        plural(objects.len() as u64, "object"),
        clock(from, to),
        clock(to, from)
    ));
    text.push_str("\n\n");
    let Sums { facts, totals, .. } = totals(compared);
    let mut headings = vec!["", "no correlator"];
    let names = short_names(compared);
    headings.extend(names.iter().map(String::as_str));
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, none: String, cell: &dyn Fn(&Total) -> String| {
        rows.push([name.to_owned(), none].into_iter().chain(totals.iter().map(cell)).collect());
    };
    row("writes", thousands(sent), &|total| thousands(total.fate.writes));
    row("  saved", "-".to_owned(), &|total| percent(sent, total.fate.writes));
    row("shown", thousands(sent), &|total| thousands(total.fate.shown));
    if totals.iter().any(|total| total.fate.folded > 0) {
        row("  in a summary", "-".to_owned(), &|total| thousands(total.fate.folded));
    }
    row("waiting", "-".to_owned(), &|total| thousands(total.fate.waiting));
    row("lost", "0".to_owned(), &|total| thousands(total.fate.lost));
    if totals.iter().any(|total| total.fate.rejected > 0) {
        row("rejected", "-".to_owned(), &|total| thousands(total.fate.rejected));
    }
    row("= sent", thousands(sent), &|total| thousands(total.fate.total()));
    row("facts never shown", format!("0 of {}", thousands(facts as u64)), &|total| {
        format!("{} of {}", thousands(total.unseen as u64), thousands(facts as u64))
    });
    row("longest wait", "0s".to_owned(), &Total::wait_text);
    row("newest behind by", "0s".to_owned(), &|total| length(total.behind / SECOND));
    text.push_str(&table::render(usize::MAX, &headings, 1, &rows));
    text
}

fn short_names(compared: &Compared) -> Vec<String> {
    match &*compared.names {
        [client_go, first, second] => {
            let [mut first, mut second] = [first, second].map(|name| table::cut(name, 12));
            if first == second {
                [first, second] = ["--config", "--against"].map(str::to_owned);
            }
            vec![client_go.clone(), first, second]
        }
        names => names.to_vec(),
    }
}

/// Renders the facts that client-go never shows.
fn never_shown(compared: &Compared, top: usize) -> String {
    let mut fates = fates(&compared.comparison, &compared.comparison.columns);
    fates.retain(|(_, _, fates)| fates[0].shown == 0);
    if fates.is_empty() {
        return String::new();
    }
    fates.sort_by_key(|(fact, sent, _)| (fact.event_type != "Warning", std::cmp::Reverse(sent.number), *fact));
    let rows: Vec<_> = fates
        .iter()
        .take(limit(top))
        .map(|(fact, sent, fates)| {
            let wait = fates[1].first_shown.map_or_else(|| "never".to_owned(), |at| length((at - sent.first) / SECOND));
            let (object, reason) = (object(fact).to_string(), fact.reason.to_string());
            let (number, shown) = (thousands(sent.number), thousands(fates[1].shown));
            vec![object, reason, fact.event_type.to_string(), number, shown, wait]
        })
        .collect();
    let headings = ["OBJECT", "REASON", "TYPE", "SENT", "SHOWN", "AFTER"];
    format!(
        "\nFacts that client-go never shows{}\n{}",
        of_how_many(rows.len(), fates.len()),
        table::render(table::WIDTH, &headings, 3, &rows)
    )
}

fn rows(compared: &Compared, flags: &Report) -> String {
    let by = |fact: &Fact| match flags.by {
        By::Object => object(fact),
        By::Reason => fact.reason.clone(),
        By::Component => fact.component.clone(),
        By::Namespace => fact.namespace.clone(),
        By::Type => fact.event_type.clone(),
    };
    let comparison = &compared.comparison;
    let mut rows: Vec<_> = sums(comparison, &comparison.columns, |fact| Some(by(fact))).into_iter().collect();
    // Rows in which two configurations do the same are left out.
    let names = short_names(compared);
    if let [_, first, second] = &*names {
        let all = rows.len();
        rows.retain(|(_, row)| row.totals[1].fate != row.totals[2].fate);
        if rows.is_empty() {
            return format!("\nNo row differs between {first} and {second} ({all} compared).\n");
        }
    }
    rows.sort_by_key(|(_, row)| {
        let Total { fate, .. } = row.ours();
        std::cmp::Reverse(match flags.sort {
            Sort::Writes => fate.writes,
            Sort::Sent => row.sent,
            Sort::Lost => fate.lost + fate.rejected,
            Sort::Wait => row.ours().wait().unsigned_abs(),
            Sort::Name => 0,
        })
    });
    let is_wide = flags.output == Output::Wide;
    let heading = format!("{:?}", flags.by).to_uppercase();
    let mut headings = vec![heading.as_str(), "SENT"];
    headings.extend(names.iter().map(String::as_str));
    headings.push("SAVED");
    if is_wide {
        headings.extend(["SHOWN", "WAITING", "LOST", "REJECTED", "WAIT"]);
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .take(limit(flags.top))
        .map(|(name, row)| {
            let Total { fate, .. } = row.ours();
            let mut cells = vec![name.to_string(), thousands(row.sent)];
            cells.extend(row.totals.iter().map(|total| thousands(total.fate.writes)));
            cells.push(percent(row.sent, fate.writes));
            if is_wide {
                cells.extend([fate.shown, fate.waiting, fate.lost, fate.rejected].map(thousands));
                cells.push(row.ours().wait_text());
            }
            cells
        })
        .collect();
    let which = if compared.names.len() > 2 { "Writes, where they differ" } else { "Writes" };
    let width = if is_wide { usize::MAX } else { table::WIDTH };
    format!("\n{which}{}\n{}", of_how_many(cells.len(), rows.len()), table::render(width, &headings, 1, &cells))
}

fn notes(compared: &Compared) -> String {
    let mut notes = compared.notes.clone();
    if compared.comparison.is_cut() {
        notes.push("Occurrences of facts beyond the first 100,000 are counted together, as (others).".to_owned());
    }
    if compared.bad > 0 {
        notes.push(format!("{} left out: no event, or without a time.", plural(compared.bad, "document")));
    }
    let (late, sent) = (compared.comparison.out_of_order, compared.comparison.sent());
    if late > 0 {
        notes.push(format!(
            "{late} of {sent} events are older than one before them, and were replayed at that one's time; --sort-by-time sorts them."
        ));
    }
    notes.iter().fold(String::new(), |text, note| text + "\n" + &table::wrap(note) + "\n")
}

/// Converts to seconds, rounded to milliseconds.
pub(super) fn seconds(nanos: i64) -> f64 {
    (nanos as f64 / 1e6).round() / 1e3
}

/// Returns the document that docs/replay.md describes.
fn json_document(compared: &Compared) -> Value {
    let comparison = &compared.comparison;
    let (from, to) = comparison.span.unwrap_or_default();
    let Sums { facts, totals, .. } = totals(compared);
    let minutes = |minutes: &BTreeMap<i64, u64>| {
        minutes.iter().map(|(minute, number)| json!([minute, number])).collect::<Vec<_>>()
    };
    let fate = |fate: &Fate| {
        json!({
            "writes": fate.writes, "shown": fate.shown, "inSummary": fate.folded, "waiting": fate.waiting,
            "lost": fate.lost, "rejected": fate.rejected,
        })
    };
    let columns = totals.iter().zip(&comparison.columns).enumerate().map(|(number, (total, column))| {
        let mut value = fate(&total.fate);
        value["name"] = json!(compared.names[number]);
        value["config"] = json!(compared.configs[number]);
        value["unseenFacts"] = json!(total.unseen);
        value["longestWaitSeconds"] = json!(total.wait.map(seconds));
        value["newestBehindSeconds"] = json!(seconds(total.behind));
        value["writesPerMinute"] = json!(minutes(&column.writes_per_minute));
        value
    });
    let rows = fates(comparison, &comparison.columns).into_iter().map(|(fact, sent, fates)| {
        let columns = fates.iter().enumerate().map(|(number, found)| {
            let mut value = fate(found);
            value["name"] = json!(compared.names[number]);
            value["firstShownAfterSeconds"] = json!(found.first_shown.map(|at| seconds(at - sent.first)));
            value
        });
        json!({
            "namespace": *fact.namespace, "kind": *fact.kind, "name": *fact.name, "reason": *fact.reason,
            "type": *fact.event_type, "component": *fact.component, "sent": sent.number,
            "columns": columns.collect::<Vec<_>>(),
        })
    });
    json!({
        "apiVersion": "eventweir/v1", "kind": "Replay",
        "input": {
            "events": comparison.sent(), "bad": compared.bad, "outOfOrder": comparison.out_of_order, "facts": facts,
            "from": stamp(from), "to": stamp(to), "until": stamp(compared.until),
            "sentPerMinute": minutes(&comparison.sent_per_minute),
        },
        "columns": columns.collect::<Vec<_>>(),
        "facts": rows.collect::<Vec<_>>(),
        "suggestions": suggest::json(compared),
    })
}

/// Draws the writes per minute of each column on a logarithmic scale.
fn svg(compared: &Compared) -> String {
    const STYLE: &str = "text{font:12px sans-serif;fill:#222}.axis{stroke:#888}.line{fill:none;stroke-width:2}\
        .c0{stroke:#777;stroke-dasharray:2 3}.c1{stroke:#b35900;stroke-dasharray:7 4}.c2{stroke:#0a6fb0}.c3{stroke:#7a2f9a}\
        @media(prefers-color-scheme:dark){text{fill:#ddd}.c0{stroke:#aaa}.c1{stroke:#f0a050}.c2{stroke:#5ab4f0}.c3{stroke:#c58ae0}}";
    let comparison = &compared.comparison;
    let mut lines = vec![("no correlator", comparison.sent(), &comparison.sent_per_minute)];
    for ((name, column), total) in compared.names.iter().zip(&comparison.columns).zip(&totals(compared).totals) {
        lines.push((name, total.fate.writes, &column.writes_per_minute));
    }
    let last = lines.iter().filter_map(|(_, _, minutes)| minutes.keys().next_back()).max().copied().unwrap_or(0).max(1);
    let most = lines.iter().flat_map(|(_, _, minutes)| minutes.values()).max().copied().unwrap_or(1).max(9);
    let top = ((most + 1) as f64).log10().ceil();
    let (x, y) = (
        |minute: i64| 50.0 + minute as f64 * 500.0 / last as f64,
        |number: u64| 220.0 - ((number + 1) as f64).log10() * 190.0 / top,
    );
    let description: Vec<String> =
        lines.iter().map(|(name, total, _)| format!("{}: {} writes", escape(name), thousands(*total))).collect();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 260\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">Writes per minute</title>\n<desc id=\"d\">{}</desc>\n<style>{STYLE}</style>\n\
         <path class=\"axis\" fill=\"none\" d=\"M50 30V220H550\"/>\n<text x=\"50\" y=\"18\">Writes per minute</text>\n\
         <text x=\"50\" y=\"240\">0</text><text x=\"550\" y=\"240\" text-anchor=\"end\">{last} min</text>\n",
        description.join("; ")
    );
    for power in 0..=5_u32 {
        let number = 10_u64.pow(power);
        if number <= most {
            let label = thousands(number);
            writeln!(text, "<text x=\"44\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>", y(number) + 4.0)
                .unwrap_or_default();
        }
    }
    for (number, (name, total, minutes)) in lines.iter().enumerate() {
        // Minutes without a write need only two points.
        let mut points = String::new();
        let mut next = 0;
        for (minute, writes) in *minutes {
            if *minute > next {
                write!(points, "{:.1},220 {:.1},220 ", x(next), x(minute - 1)).unwrap_or_default();
            }
            write!(points, "{:.1},{:.1} ", x(*minute), y(*writes)).unwrap_or_default();
            next = minute + 1;
        }
        writeln!(text, "<polyline class=\"line c{number}\" points=\"{}\"/>", points.trim_end()).unwrap_or_default();
        let (at, name) = (50 + 40 * number, escape(name));
        writeln!(
            text,
            "<path class=\"line c{number}\" d=\"M570 {at}h30\"/><text x=\"606\" y=\"{}\">{name}</text>\
             <text x=\"606\" y=\"{}\">{} writes</text>",
            at + 4,
            at + 20,
            thousands(*total)
        )
        .unwrap_or_default();
    }
    text + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn object(fact: &Fact) -> SmolStr {
    let Fact { namespace, kind, name, .. } = fact;
    if kind.is_empty() { name.clone() } else { format_smolstr!("{namespace} {kind}/{name}") }
}

/// Returns how many rows are shown, and of how many.
fn of_how_many(shown: usize, all: usize) -> String {
    if shown == all { format!(" ({all})") } else { format!(" ({shown} of {all}; --top 0 lists all)") }
}

const fn limit(top: usize) -> usize {
    if top == 0 { usize::MAX } else { top }
}

pub(super) fn plural(number: u64, word: &str) -> String {
    format!("{} {word}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Formats digits in groups of three.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns by how many percent `writes` are fewer than `sent`.
fn percent(sent: u64, writes: u64) -> String {
    if sent == 0 {
        return "-".to_owned();
    }
    let saved = 100.0 * (1.0 - writes as f64 / sent as f64);
    // 100 % would mean that nothing is written.
    if writes > 0 && saved >= 99.95 { "> 99.9 %".to_owned() } else { format!("{saved:.1} %") }
}

/// Formats a duration of this many seconds.
pub(super) fn length(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..172_800 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn stamp(nanos: i64) -> String {
    Time::from_unix_nanos(nanos).to_string()
}

/// Formats the time of day, with the date if it differs from that of `other`.
fn clock(nanos: i64, other: i64) -> String {
    let (text, other) = (stamp(nanos), stamp(other));
    match (text.split_once('T'), other.split_once('T')) {
        (Some((day, time)), Some((other, _))) if day == other => time.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::compare;
    use super::*;

    /// Fault: a `Y` in the name of a configuration was drawn as a number.
    #[test]
    fn a_drawing_has_the_names_of_its_columns() {
        let mut compared = compare(None, None).unwrap();
        compared.names[1] = "Yes: <b>".to_owned();
        let drawing = svg(&compared);
        assert!(drawing.contains(">Yes: &lt;b&gt;</text>"), "{drawing}");
    }
}
