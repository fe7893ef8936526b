//! Seeds of random scenarios.

/// Returns `EVENTWEIR_FRESH_SEEDS` random seeds; none by default, so that runs in CI are repeatable.
#[expect(clippy::disallowed_methods, reason = "how long to search is said by the environment")]
pub(crate) fn fresh_seeds() -> impl Iterator<Item = u64> {
    let number = std::env::var("EVENTWEIR_FRESH_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(0_usize);
    std::iter::repeat_with(|| fastrand::u64(..)).take(number)
}

/// Prints the seed when its test fails.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    #[expect(clippy::print_stderr, reason = "a failure has to tell how to repeat it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}
