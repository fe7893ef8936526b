//! The configuration file: an accepted file is printed as a file with the same meaning.
#![no_main]

use eventweir::config::{Config, Overrides, RawConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(raw) = RawConfig::parse("fuzz.yaml", text) else { return };
    let Ok(config) = Config::from_raw(raw, &Overrides::default()) else { return };
    let printed = config.to_yaml();
    let raw = RawConfig::parse("printed.yaml", &printed).expect("the printed file is parsed");
    let again = Config::from_raw(raw, &Overrides::default()).expect("the printed file is accepted");
    assert_eq!(again.to_yaml(), printed);
});
