//! The errors of a configuration, one line per error, with file, line, path, value and what is allowed.

use std::fmt;

use strsim::levenshtein;

use super::raw::Origin;
use crate::explain::is_safe;

/// LIMIT: errors of one file; further ones are only counted.
const ERRORS_MAX: usize = 100;
/// LIMIT: characters of a value in an error; the rest is cut off.
const VALUE_MAX: usize = 80;

/// All errors of a configuration, in the order in which they were found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Errors {
    kept: Vec<Error>,
    further: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Error {
    file: String,
    origin: Origin,
    path: String,
    problem: Problem,
}

/// The kinds of errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// The file cannot be read, with the reason.
    File(String),
    /// The file is no YAML, or uses a feature that is not supported.
    Syntax(String),
    /// The section has no such key.
    UnknownKey { near: Option<&'static str>, known: Vec<&'static str> },
    /// The value is not one of the allowed ones.
    Value { value: String, allowed: String },
    /// Values that are allowed by themselves conflict, with the reason.
    Conflict(String),
}

impl Errors {
    /// Whether there is no error.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether the only errors are files that cannot be read.
    pub fn are_of_files(&self) -> bool {
        self.kept.iter().all(|error| matches!(error.problem, Problem::File(_)))
    }

    /// Returns the value if there is no error.
    pub(super) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Sorts by line of `file`, then by flag. Errors of other files come last, in their order.
    pub(super) fn sort(&mut self, file: &str) {
        self.kept.sort_by_key(|error| if error.file == file { (false, error.origin) } else { (true, Origin::Nowhere) });
    }

    /// Returns those of values that are not allowed by themselves.
    pub(super) fn of_values(mut self) -> Self {
        self.kept.retain(|error| matches!(error.problem, Problem::Value { .. }));
        self
    }

    pub(super) fn append(&mut self, errors: Self) {
        self.further = self.further.saturating_add(errors.further);
        errors.kept.into_iter().for_each(|error| self.push(error));
    }

    pub(super) fn push(&mut self, error: Error) {
        if self.kept.len() < ERRORS_MAX {
            self.kept.push(error);
        } else {
            self.further = self.further.saturating_add(1);
        }
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Self {
        Self { kept: vec![error], further: 0 }
    }
}

impl std::error::Error for Errors {}

impl Error {
    pub(super) fn new(file: &str, origin: Origin, path: String, problem: Problem) -> Self {
        Self { file: file.to_owned(), origin, path, problem }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.kept.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        if self.further > 0 {
            write!(f, "\nand {} more", self.further)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Line(line) => write!(f, "{}:{line}: ", printable(&self.file))?,
            Origin::Flag(flag) => write!(f, "{flag}: ")?,
            Origin::Nowhere => write!(f, "{}: ", printable(&self.file))?,
        }
        // A flag names its key.
        if !self.path.is_empty() && !matches!(self.origin, Origin::Flag(_)) {
            write!(f, "{}: ", cut(&self.path))?;
        }
        match &self.problem {
            Problem::File(text) | Problem::Conflict(text) | Problem::Syntax(text) => {
                f.write_str(&text.replace(char::is_control, " "))
            }
            Problem::UnknownKey { near: Some(near), known } => {
                write!(f, "no such key; did you mean {near}? allowed: {}", known.join(", "))
            }
            Problem::UnknownKey { near: None, known } => write!(f, "no such key; allowed: {}", known.join(", ")),
            Problem::Value { value, allowed } => write!(f, "{} is not allowed; allowed: {allowed}", cut(value)),
        }
    }
}

/// Cuts a value, and escapes its control characters.
pub(super) fn cut(text: &str) -> String {
    let end = text.char_indices().nth(VALUE_MAX).map_or(text.len(), |(end, _)| end);
    let (shown, rest) = text.split_at_checked(end).unwrap_or((text, ""));
    printable(shown) + if rest.is_empty() { "" } else { "…" }
}

/// Escapes control characters; all else stays as it was written.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if is_safe(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
    }
    shown
}

/// Returns the known key that is nearest to `written`, if one is near.
pub(super) fn near_match(written: &str, known: &[&'static str]) -> Option<&'static str> {
    let lower: String = written.chars().take(64).filter(|c| !matches!(c, '_' | '-')).collect::<String>().to_lowercase();
    let prefix = |key: &str| {
        let key = key.to_lowercase();
        lower.len() >= 4 && key.len() >= 4 && (lower.starts_with(&key) || key.starts_with(&lower))
    };
    let (distance, nearest) = known.iter().map(|key| (levenshtein(&lower, &key.to_lowercase()), *key)).min()?;
    let close = distance == 0 || (distance <= 2 && distance.saturating_mul(3) <= nearest.len());
    if close { Some(nearest) } else { known.iter().copied().find(|key| prefix(key)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_beyond_the_limit_are_counted() {
        let mut errors = Errors::default();
        for line in 1..=ERRORS_MAX + 3 {
            errors.push(Error::new("f", Origin::Line(line), "a".into(), Problem::Conflict("no".into())));
        }
        assert!(errors.to_string().ends_with("f:100: a: no\nand 3 more"));
    }
}
