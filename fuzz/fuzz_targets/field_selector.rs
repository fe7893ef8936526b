//! Field selectors: a parsed selector is written in a form that parses and selects the same.
#![no_main]

use eventweir::event::{ApiGroup, Event};
use eventweir::upstream::FieldSelector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for group in [ApiGroup::Core, ApiGroup::Events] {
        let Ok(selector) = FieldSelector::parse(text, group) else { continue };
        assert_eq!(
            FieldSelector::parse(&selector.text(group), group).expect("the written selector is parsed"),
            selector
        );
        // core/v1 has a name for each field.
        let written = selector.text(ApiGroup::Core);
        let again = FieldSelector::parse(&written, ApiGroup::Core).expect("the written selector is parsed");
        assert_eq!(again, selector, "{written}");
        assert_eq!(again.is_empty(), written.is_empty());
        for reason in ["", "BackOff", "a,b=c\\"] {
            let event = Event { reason: reason.into(), event_type: "Normal".into(), ..Event::default() };
            assert_eq!(again.matches(&event), selector.matches(&event));
        }
    }
});
