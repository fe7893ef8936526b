//! Label selectors: a parsed selector is written in a form that parses and selects the same.
#![no_main]

use eventweir::event::{Event, RareMeta};
use eventweir::upstream::LabelSelector;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(selector) = LabelSelector::parse(text) else { return };
    let written = selector.to_string();
    let again = LabelSelector::parse(&written).expect("the written selector is parsed");
    assert_eq!(again.to_string(), written);
    assert_eq!(again.is_empty(), selector.is_empty());
    for value in ["", "a", "7", "-1"] {
        let rare = RareMeta { labels: [("app".into(), value.into())].into(), ..RareMeta::default() };
        let mut event = Event::default();
        event.metadata.rare = Some(Box::new(rare));
        assert_eq!(again.matches(&event), selector.matches(&event), "{written}");
    }
});
