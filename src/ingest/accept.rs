//! An Accept header taken apart and sorted as `github.com/munnerz/goautoneg` does it.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// One part of an Accept header.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clause<'a> {
    pub(super) main: &'a str,
    pub(super) sub: &'a str,
    weight: f32,
    pub(super) parameters: Vec<(&'a str, &'a str)>,
}

/// LIMIT: parts of an Accept header that are looked at; further ones are ignored.
const CLAUSES_MAX: usize = 32;
/// LIMIT: parameters of one part; further ones are ignored.
const PARAMETERS_MAX: usize = 16;

/// The parts in the order of preference.
pub(super) fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut sorted: Vec<Clause<'_>> = Vec::new();
    for clause in accept.split(',').take(CLAUSES_MAX).filter_map(clause) {
        // Go's insertion sort, since its order is not a total one: `goes_first` can hold both ways.
        let place =
            sorted.iter().rposition(|other| !goes_first(&clause, other)).map_or(0, |index| index.saturating_add(1));
        sorted.insert(place, clause);
    }
    sorted
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let text = text.trim_matches(' ');
    let (name, rest) = text.split_once(';').unwrap_or((text, ""));
    let (main, sub) = match name.split_once('/') {
        Some((_, sub)) if sub.contains('/') || sub.is_empty() => return None,
        Some((main, sub)) => (main.trim_matches(' '), sub.trim_matches(' ')),
        None if name.trim_matches(' ') == "*" => ("*", "*"),
        None => return None,
    };
    let (mut weight, mut parameters) = (1.0, Vec::new());
    for parameter in rest.split(';').take(PARAMETERS_MAX) {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        if value.is_empty() || value.contains('=') {
            continue;
        }
        match name.trim_matches(' ') {
            "q" => weight = value.parse().unwrap_or(0.0),
            name => parameters.push((name, value.trim_matches(' '))),
        }
    }
    Some(Clause { main, sub, weight, parameters })
}

/// `acceptSlice.Less`.
fn goes_first(left: &Clause<'_>, right: &Clause<'_>) -> bool {
    left.weight > right.weight || (left.main != "*" && right.main == "*") || (left.sub != "*" && right.sub == "*")
}
