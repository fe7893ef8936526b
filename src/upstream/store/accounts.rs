//! managedFields that many events have in common, kept once.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::event::{ManagedFields, ManagedFieldsEntry};

/// LIMIT: remembered sets of fields; of more, all are forgotten, and events written from then on share anew.
const TEXTS_MAX: usize = 1024;
/// LIMIT: remembered accounts. Few, because they carry the time of their writes in seconds.
const ACCOUNTS_MAX: usize = 16;

/// What was written of late.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    texts: HashSet<Arc<str>>,
    recent: VecDeque<Arc<[ManagedFieldsEntry]>>,
}

impl Accounts {
    /// The same account, shared with events written before as far as they have it in common.
    pub(super) fn shared(&mut self, account: ManagedFields) -> ManagedFields {
        let account = account?;
        if let Some(known) = self.recent.iter().find(|known| **known == account) {
            return Some(Arc::clone(known));
        }
        let shared = account.iter().map(|entry| {
            let fields = entry.fields.as_ref().map(|fields| self.shared_text(fields));
            ManagedFieldsEntry { fields, ..entry.clone() }
        });
        let shared: Arc<[ManagedFieldsEntry]> = shared.collect();
        self.recent.push_front(Arc::clone(&shared));
        self.recent.truncate(ACCOUNTS_MAX);
        Some(shared)
    }

    fn shared_text(&mut self, text: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.texts.len() >= TEXTS_MAX {
            self.texts.clear();
        }
        self.texts.insert(Arc::clone(text));
        Arc::clone(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(manager: &str, fields: &str) -> ManagedFields {
        let entry = ManagedFieldsEntry {
            manager: manager.into(),
            fields: Some(fields.into()),
            ..ManagedFieldsEntry::default()
        };
        Some([entry].into())
    }

    #[test]
    fn equal_accounts_are_one_and_others_share_their_fields() {
        let mut accounts = Accounts::default();
        let first = accounts.shared(account("m", "{}")).unwrap();
        assert!(Arc::ptr_eq(&first, &accounts.shared(account("m", "{}")).unwrap()));
        let other = accounts.shared(account("n", "{}")).unwrap();
        assert!(Arc::ptr_eq(first[0].fields.as_ref().unwrap(), other[0].fields.as_ref().unwrap()));
        assert_eq!(accounts.shared(None), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut accounts = Accounts::default();
        for number in 0..=TEXTS_MAX {
            accounts.shared(account("m", &number.to_string()));
        }
        assert_eq!((accounts.texts.len(), accounts.recent.len()), (1, ACCOUNTS_MAX));
    }
}
