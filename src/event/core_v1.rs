//! core/v1: an [`Event`] as JSON under `/api/v1`.

super::json::of_group!(crate::event::ApiGroup::Core);
