//! demo
use super::Error;
use crate::cli::Demo;
/// `demo`
///
/// # Errors
/// none yet
pub fn demo(_demo: &Demo) -> Result<(), Error> {
    Err(Error::Demo("not yet".to_owned()))
}
