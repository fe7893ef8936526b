pub(crate) mod bench;
pub(crate) mod events;
pub(crate) mod fake;
