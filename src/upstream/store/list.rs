//! LIST of the embedded store: ranges in key order, selectors and pages, always of the current state. All pages of a
//! list have the version of the first one, so that a watch from there shows the changes between pages.

use std::ops::Bound;
use std::sync::Arc;

use smol_str::{SmolStr, ToSmolStr as _};

use super::token::Token;
use super::{Key, Store};
use crate::clock::Now;
use crate::event::Event;
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{ListOptions, Version};

/// A page of a list. It shares its events with the store, so that none is copied under the lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The events, ordered by namespace and name.
    pub items: Vec<Arc<Event>>,
    /// The version of the list, from which a watch can start.
    pub resource_version: SmolStr,
    /// The token for the next page; empty on the last one.
    pub continue_token: SmolStr,
    /// Number of events after this page; `None` on the last one and with a selector.
    pub remaining_item_count: Option<usize>,
}

impl Store {
    /// Lists the events of one namespace or of all, ordered by key.
    ///
    /// # Errors
    /// 400 for an invalid continue token, 410 for an exact version other than the newest and for a token from before
    /// the window of changes, 504 for a version that is not reached yet.
    pub fn list(&mut self, namespace: Option<&str>, options: &ListOptions, now: Now) -> Result<Page, Status> {
        self.expire(now);
        let token = match options.continue_token.as_str() {
            "" => None,
            text => Some(Token::parse(text)?),
        };
        let revision = match &token {
            None => self.check_version(options.version)?,
            // From a 410, which states that the rest may be inconsistent.
            Some(Token { revision: None, .. }) => self.revision,
            Some(token @ Token { revision: Some(revision), .. }) => {
                self.reached(*revision)?;
                // LIMIT: the window of changes; a watch from before it would miss some. Like etcd, this also refuses
                // the version right before the window.
                if *revision <= self.changes.compacted() {
                    return Err(cannot_continue(token));
                }
                *revision
            }
        };
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let end = namespace.map(|namespace| format!("{namespace}0")); // '0' follows '/'
        let start = token.as_ref().map_or_else(|| prefix.clone(), |token| format!("{prefix}{}", token.start));
        let range = (Bound::Included(start.as_str()), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        let events = self.events.range::<str, _>(range).map(|(key, stored)| (key, &stored.event));
        let carried = token.as_ref().and_then(|token| token.remaining);
        Ok(page(events, &prefix, revision, carried, options))
    }

    /// Returns the newest version if `version` accepts it.
    fn check_version(&self, version: Version) -> Result<u64, Status> {
        match version {
            Version::Newest => {}
            Version::NotOlderThan(wanted) | Version::AtLeast(wanted) => self.reached(wanted)?,
            Version::Exact(wanted) => {
                self.reached(wanted)?;
                if wanted < self.revision {
                    let text = "The resourceVersion for the provided list is too old.";
                    return Err(Status::new(410, "Expired", text));
                }
            }
        }
        Ok(self.revision)
    }

    /// Fails while the store has not reached this version.
    ///
    /// # Errors
    /// 504 `Timeout`, as the apiserver answers without waiting.
    pub fn reached(&self, version: u64) -> Result<(), Status> {
        if version <= self.revision {
            return Ok(());
        }
        let cause = StatusCause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        };
        let text = format!("Timeout: Too large resource version: {version}, current: {}", self.revision);
        let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
        Err(Status::new(504, "Timeout", text).with_details(details))
    }
}

fn page<'a, I>(mut events: I, prefix: &str, revision: u64, carried: Option<usize>, options: &ListOptions) -> Page
where
    I: Iterator<Item = (&'a Key, &'a Arc<Event>)>,
{
    let mut list = Page { resource_version: revision.to_smolstr(), ..Page::default() };
    let mut last = None;
    let selects = !(options.field_selector.is_empty() && options.label_selector.is_empty());
    while let Some((key, event)) = events.next() {
        if !(options.field_selector.matches(event) && options.label_selector.matches(event)) {
            continue;
        }
        if let (true, Some(last)) = (options.limit != 0 && list.items.len() == options.limit, last) {
            // Counted for the first page only; the token passes it on.
            list.remaining_item_count = match (selects, carried) {
                (true, _) => None,
                (false, Some(carried)) => Some(carried.saturating_sub(list.items.len())),
                (false, None) => Some(events.count() + 1),
            };
            let last: &str = last;
            let start = last.strip_prefix(prefix).unwrap_or(last).to_owned() + "\0";
            let token = Token { revision: Some(revision), remaining: list.remaining_item_count, start };
            list.continue_token = token.to_text().into();
            break;
        }
        list.items.push(Arc::clone(event));
        last = Some(&**key);
    }
    list
}

/// Returns the 410 with a token to continue with an inconsistent list.
fn cannot_continue(token: &Token) -> Status {
    let message = "the continue token is too old for a consistent list; list again without it, or continue with the token of \
                   this answer and accept that the list mixes two states";
    let fresh = Token { revision: None, remaining: None, start: token.start.clone() };
    Status { continue_token: fresh.to_text(), ..Status::new(410, "Expired", message) }
}
