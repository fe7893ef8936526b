//! The configuration file: what is taken is printed as a file that means the same.
#![no_main]

use eventweir::config::{Config, Overrides, RawConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(raw) = RawConfig::parse("fuzz.yaml", text) else { return };
    let Ok(config) = Config::from_raw(raw, &Overrides::default()) else { return };
    let printed = config.to_yaml();
    let raw = RawConfig::parse("printed.yaml", &printed).expect("our own file is read");
    let again = Config::from_raw(raw, &Overrides::default()).expect("our own file is taken");
    assert_eq!(again.to_yaml(), printed);
});
