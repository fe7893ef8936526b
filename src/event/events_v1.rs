//! events.k8s.io/v1: an [`Event`] as JSON under `/apis/events.k8s.io/v1`.

super::json::of_group!(crate::event::ApiGroup::Events);
