//! Shared parts of the tests.

pub(crate) mod app;
pub(crate) mod behind;
pub(crate) mod certificates;
pub(crate) mod bench;
pub(crate) mod disk;
pub(crate) mod events;
pub(crate) mod fake;
pub(crate) mod http;
pub(crate) mod lists;
pub(crate) mod odd;
pub(crate) mod log;
pub(crate) mod seeds;
pub(crate) mod ways;
