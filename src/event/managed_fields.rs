//! `metadata.managedFields`: passed between an apiserver and its clients as JSON, without decoding. The embedded store
//! keeps none.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// `metadata.managedFields` as compact JSON; `None` when absent.
pub type ManagedFields = Option<Arc<str>>;

/// The only entry of an event that is to be created under its client's name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    manager: String,
}

/// Returns the managed fields of an event that is to be created under its client's name.
pub fn claim(manager: &str) -> ManagedFields {
    serde_json::to_string(&[Claim { manager: manager.to_owned() }]).ok().map(Arc::from)
}

/// Returns the manager of a [`claim`]; `None` for any other managed fields.
pub fn claimed(fields: &ManagedFields) -> Option<SmolStr> {
    let [Claim { manager }] = serde_json::from_str(fields.as_deref()?).ok()?;
    Some(manager.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_names_its_manager_and_other_managed_fields_are_none() {
        for manager in ["kubectl", "", "a\"\\\n<"] {
            assert_eq!(claimed(&claim(manager)).as_deref(), Some(manager));
        }
        for other in ["[]", "[{}]", "{}", r#"[{"manager":"m","operation":"Update"}]"#, r#"[{"manager":"m"},{}]"#] {
            assert_eq!(claimed(&Some(other.into())), None, "{other}");
        }
        assert_eq!(claimed(&None), None);
    }
}
