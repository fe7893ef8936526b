//! The section of the page that compares the shadow configuration with the live one.

use serde_json::Value;

use super::{Cell, Html, ROWS};

/// Adds both ledgers, and the reasons that differ most.
pub(super) fn section(html: &mut Html, difference: &Value, shows_events: bool) {
    let ledger = &difference["ledger"];
    let mut rows: Vec<Vec<Cell>> = ["received", "writes", "shown", "waiting", "lost", "rejected"]
        .into_iter()
        .map(|member| {
            let cells = [&ledger["live"][member], &ledger["shadow"][member]].map(Cell::from);
            let name = if member == "rejected" { "rejected (full)" } else { member };
            std::iter::once(Cell::Text(name.to_owned())).chain(cells).collect()
        })
        .collect();
    let unseen = ["live", "shadow"].map(|side| Cell::from(&difference["unseen"][side]["facts"]));
    rows.push(std::iter::once(Cell::Text("facts not shown yet".to_owned())).chain(unseen).collect());
    html.tag("<section id=\"shadow\">").table("Shadow rules", &["occurrences", "active", "shadow"], &rows);
    let text = |member: &str| difference[member].as_str().unwrap_or_default().to_owned();
    html.tag("<p class=\"faint\">").text(&format!("{}, since {}", text("file"), text("since")));
    if difference["missed"].as_u64().unwrap_or_default() > 0 {
        html.text(&format!("; {} occurrences were left out, so that clients do not wait for it", difference["missed"]));
    }
    html.tag("</p>");
    if shows_events {
        let differs = |row: &&Value| row["live"] != row["shadow"];
        let of = |row: &Value, member: &str| Cell::Text(format!("{} / {}", row["live"][member], row["shadow"][member]));
        let row = |row: &Value| {
            let numbers = ["writes", "shown", "folded", "lost"].map(|member| of(row, member));
            let first = [Cell::from(&row["reason"]), Cell::from(&row["accepted"]["live"])];
            first.into_iter().chain(numbers).collect()
        };
        let rows = difference["reasons"].as_array().into_iter().flatten().filter(differs).take(ROWS).map(row);
        html.table(
            "Reasons that differ, active / shadow",
            &["reason", "accepted", "writes", "shown", "in a digest", "lost"],
            &rows.collect::<Vec<_>>(),
        );
    }
    html.tag("</section>");
}
