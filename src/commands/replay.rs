//! replay
use super::Error;
use crate::cli::Replay;
/// `replay`
///
/// # Errors
/// none yet
pub fn replay(_replay: &Replay) -> Result<(), Error> {
    Err(Error::Demo("not yet".to_owned()))
}
