//! A drawing of the occurrences received and writes made per minute in the last hour, with the same numbers in a table.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Cell, Html};

const WIDTH: usize = 600;
const HEIGHT: usize = 100;

/// Returns the numbers of a line, the oldest first.
fn numbers(line: &Value) -> Vec<u64> {
    line.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Returns the points of a line; the largest number is at the top.
fn points(numbers: &[u64], largest: u64) -> String {
    let step = WIDTH / numbers.len().saturating_sub(1).max(1);
    let mut points = String::new();
    for (place, number) in numbers.iter().enumerate() {
        let height = u128::from(*number) * HEIGHT as u128 / u128::from(largest.max(1));
        let down = HEIGHT.saturating_sub(usize::try_from(height).unwrap_or(HEIGHT));
        write!(points, "{},{} ", place * step, down).unwrap_or_default();
    }
    points
}

/// Adds the drawing, if there were any occurrences or writes.
pub(super) fn per_minute(html: &mut Html, minutes: &Value) {
    let [received, written] = ["received", "written"].map(|line| numbers(&minutes[line]));
    let largest = received.iter().chain(&written).copied().max().unwrap_or(0);
    if largest == 0 {
        return;
    }
    let [all_received, all_written] = [&received, &written].map(|line| line.iter().sum::<u64>());
    html.tag("<h2>Received and written per minute, last hour</h2><figure>");
    write!(
        html.0,
        "<svg viewBox=\"0 -4 {WIDTH} {}\" role=\"img\" preserveAspectRatio=\"none\" aria-label=\"{all_received} received, \
         {all_written} written, {largest} at most in a minute\"><polyline class=\"received\" points=\"{}\"/>\
         <polyline class=\"written\" points=\"{}\"/></svg>",
        HEIGHT + 8,
        points(&received, largest),
        points(&written, largest)
    )
    .unwrap_or_default();
    html.tag("<figcaption class=\"faint\"><span class=\"received\">&#9473; received</span>, ");
    html.tag("<span class=\"written\">&#9476; written</span>; ").text(&format!("{largest} at most in a minute"));
    html.tag("</figcaption><details><summary>as a table</summary>");
    let rows =
        received.iter().zip(&written).enumerate().rev().filter(|(_, (received, written))| **received + **written > 0);
    let row = |(place, (received, written)): (usize, (&u64, &u64))| {
        let ago = 60_usize.saturating_sub(place + 1);
        [ago.to_string(), received.to_string(), written.to_string()].map(Cell::Text).into()
    };
    html.table("Per minute", &["minutes ago", "received", "written"], &rows.map(row).collect::<Vec<_>>());
    html.tag("</details></figure>");
}
