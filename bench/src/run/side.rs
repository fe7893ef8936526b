//! Sides of a comparison, loaded in turn.

use super::bench::Bench;
use super::table::{Figures, Target, short, verdict};
use crate::load::Outcome;

/// A side, with the outcomes of all rounds.
#[derive(Debug)]
pub(super) struct Side<T> {
    pub(super) name: &'static str,
    /// The program to start and load.
    pub(super) what: T,
    outcomes: Vec<Outcome>,
}

impl<T> Side<T> {
    pub(super) const fn new(name: &'static str, what: T) -> Self {
        Self { name, what, outcomes: Vec::new() }
    }

    pub(super) fn per_second(&self) -> Figures {
        self.figures(|outcome| outcome.per_second)
    }

    /// Returns the server's CPU time in microseconds per event.
    pub(super) fn cpu_micros(&self) -> Figures {
        self.figures(Outcome::cpu_micros)
    }

    /// Returns the p99 latency in milliseconds.
    pub(super) fn p99(&self) -> Figures {
        self.figures(|outcome| millis(outcome.p99))
    }

    fn figures(&self, of: impl Fn(&Outcome) -> f64) -> Figures {
        Figures(self.outcomes.iter().map(of).collect())
    }

    /// Prints this side's throughput divided by the other's, per second and per CPU second.
    pub(super) fn compare(&self, other: &Self, target: Option<f64>) {
        let target = target.map(Target::AtLeast);
        let ratio = self.per_second().ratio(&other.per_second());
        verdict(&format!("{} : {}, throughput", self.name, other.name), &ratio, target);
        // Other load on the machine changes this ratio least.
        verdict("the same, by CPU time", &other.cpu_micros().ratio(&self.cpu_micros()), target);
    }
}

/// Measures each side once per round. Even rounds go in reverse order, so that no side always follows the same one.
/// Then prints a line per side. `measure` returns an outcome, and text to append to its line.
///
/// # Errors
/// When a measurement fails.
pub(super) fn rounds<T>(
    bench: &Bench<'_>,
    sides: &mut [Side<T>],
    mut measure: impl FnMut(&T) -> anyhow::Result<(Outcome, String)>,
) -> anyhow::Result<()> {
    for round in 1..=bench.options.rounds {
        println!("round {round}");
        let mut measure = |side: &mut Side<T>| {
            let (outcome, rest) = measure(&side.what)?;
            println!(
                "  {:<10} {:>7}/s  {:>5} µs CPU each  server {:>3.0} %, generator {:>3.0} %  ms: p50 {}, p99 {}, p99.9 {}, longest {}{rest}{}",
                side.name,
                short(outcome.per_second),
                short(outcome.cpu_micros()),
                outcome.watched_cpu[0] / outcome.seconds * 100.0,
                outcome.own_cpu / outcome.seconds * 100.0,
                short(millis(outcome.p50)),
                short(millis(outcome.p99)),
                short(millis(outcome.p999)),
                short(millis(outcome.max)),
                if outcome.failed > 0 { format!("  {} FAILED", outcome.failed) } else { String::new() },
            );
            side.outcomes.push(outcome);
            anyhow::Ok(())
        };
        if round % 2 == 1 {
            sides.iter_mut().try_for_each(&mut measure)?;
        } else {
            sides.iter_mut().rev().try_for_each(&mut measure)?;
        }
    }
    for side in sides {
        println!("{:<10} {}/s, {} µs CPU each, p99 {} ms", side.name, side.per_second(), side.cpu_micros(), side.p99());
    }
    Ok(())
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}
