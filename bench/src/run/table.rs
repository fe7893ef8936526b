//! Figures of several rounds, and their verdicts.

use std::fmt;

/// A figure of each round.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(pub(super) Vec<f64>);

impl Figures {
    pub(super) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            count if count % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// Divides by the other figure of the same round.
    pub(super) fn ratio(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// Subtracts the other figure of the same round.
    pub(super) fn less(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours - theirs).collect())
    }
}

/// Formats a number with three significant digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        f.pad(&format!("{} ({}–{})", short(self.median()), short(least), short(most)))
    }
}

/// A limit for a median.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints a figure, and whether it meets its target, if any.
pub(super) fn verdict(what: &str, figures: &Figures, target: Option<Target>) {
    let (words, met) = match target {
        Some(Target::AtLeast(least)) => (format!("at least {least}"), figures.median() >= least),
        Some(Target::AtMost(most)) => (format!("at most {most}"), figures.median() <= most),
        None => return println!("{what}: {figures}"),
    };
    let word = if met { "met" } else { "MISSED" };
    println!("{what}: {figures}; target {words}: {word}");
}
