//! LIST of the embedded store: ranges in key order, selectors, pages, and versions that are still remembered. All pages of a
//! list show the store as it was at the first page, as etcd's do.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use smol_str::SmolStr;

use super::token::Token;
use super::{Key, Store, meta};
use crate::clock::Now;
use crate::event::Event;
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{ListOptions, Version};

/// A list of events, or a part of it. The events are shared with the store, so that a list copies none under its lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The events, ordered by namespace and name.
    pub items: Vec<Arc<Event>>,
    /// The version of the list; a watch can start there.
    pub resource_version: SmolStr,
    /// Where the next page begins; empty at the last one.
    pub continue_token: SmolStr,
    /// How many events follow this page; `None` at the last one and when a selector is used.
    pub remaining_item_count: Option<usize>,
}

impl Store {
    /// Events of one namespace or of all, ordered by key.
    ///
    /// # Errors
    /// 400 for a bad continue token, 410 when the wanted version is forgotten, 504 when it is not reached yet.
    pub fn list(&mut self, namespace: Option<&str>, options: &ListOptions, now: Now) -> Result<Page, Status> {
        self.expire(now);
        let prefix = namespace.map(|namespace| format!("{namespace}/"));
        let token = match options.continue_token.as_str() {
            "" => None,
            _ if options.version != Version::Newest => {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            text => Some(Token::parse(text)?),
        };
        let revision = match &token {
            // The client has been told that what it gets is not consistent.
            Some(Token { revision: None, .. }) => self.revision,
            Some(Token { revision: Some(revision), .. }) => {
                self.reached(*revision)?;
                *revision
            }
            None => self.version_to_list(options)?,
        };
        // LIMIT: versions from before the window of changes are forgotten; who asks for them hears 410.
        let past = self.changes.as_of(revision).ok_or_else(|| too_old(token.as_ref()))?;
        let end = namespace.map(|namespace| format!("{namespace}0")); // '0' follows '/'
        let prefix = prefix.unwrap_or_default();
        let start = token.as_ref().map_or_else(|| prefix.clone(), |token| format!("{prefix}{}", token.start));
        let range = (Bound::Included(start.as_str()), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
        let carried = token.as_ref().and_then(|token| token.remaining);
        Ok(page(merged(self, &past, range), &prefix, revision, carried, options))
    }

    /// The version that a list without a continue token shows.
    fn version_to_list(&self, options: &ListOptions) -> Result<u64, Status> {
        let (wanted, shown) = match options.version {
            Version::Newest => return Ok(self.revision),
            Version::NotOlderThan(wanted) => (wanted, self.revision),
            // Without a limit the newest list is as good; with one, the apiserver lists exactly that version.
            Version::AtLeast(wanted) if options.limit == 0 => (wanted, self.revision),
            Version::Exact(wanted) | Version::AtLeast(wanted) => (wanted, wanted),
        };
        self.reached(wanted)?;
        Ok(shown)
    }

    /// Fails while the store has not reached this version.
    ///
    /// # Errors
    /// 504 `Timeout`, as the apiserver answers without waiting.
    pub fn reached(&self, version: u64) -> Result<(), Status> {
        if version > self.revision { Err(too_new(version, self.revision)) } else { Ok(()) }
    }
}

/// One page of `events`.
fn page<'a, I>(mut events: I, prefix: &str, revision: u64, carried: Option<usize>, options: &ListOptions) -> Page
where
    I: Iterator<Item = (&'a Key, &'a Arc<Event>)>,
{
    let mut list = Page { resource_version: meta::version_text(revision), ..Page::default() };
    let mut last = None;
    let selects = !(options.field_selector.is_empty() && options.label_selector.is_empty());
    while let Some((key, event)) = events.next() {
        if !(options.field_selector.matches(event) && options.label_selector.matches(event)) {
            continue;
        }
        if let (true, Some(last)) = (options.limit != 0 && list.items.len() == options.limit, last) {
            // Counted once, at the first page; the following ones take it from the token.
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

/// The events in `range` as of the version that `past` leads back to, in key order.
fn merged<'a>(
    store: &'a Store,
    past: &'a BTreeMap<Key, Option<Arc<Event>>>,
    range: (Bound<&str>, Bound<&str>),
) -> impl Iterator<Item = (&'a Key, &'a Arc<Event>)> {
    let unchanged = store.events.range::<str, _>(range).filter(|(key, _)| !past.contains_key(*key));
    let unchanged = unchanged.map(|(key, stored)| (key, &stored.event));
    let past = past.range::<str, _>(range).filter_map(|(key, event)| Some((key, event.as_ref()?)));
    in_order(unchanged.peekable(), past.peekable())
}

fn in_order<'a>(
    mut left: Peekable<impl Iterator<Item = (&'a Key, &'a Arc<Event>)>>,
    mut right: Peekable<impl Iterator<Item = (&'a Key, &'a Arc<Event>)>>,
) -> impl Iterator<Item = (&'a Key, &'a Arc<Event>)> {
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some((left_key, _)), Some((right_key, _))) if left_key > right_key => right.next(),
        (Some(_), _) => left.next(),
        (None, _) => right.next(),
    })
}

fn too_old(token: Option<&Token>) -> Status {
    let Some(token) = token else {
        return Status::new(410, "Expired", "The resourceVersion for the provided list is too old.");
    };
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list \
                   without the continue parameter, or use the continue token in this response to retrieve the remainder of \
                   the results. Continuing with the provided token results in an inconsistent list - objects that were \
                   created, modified, or deleted between the time the first chunk was returned and now may show up in the \
                   list.";
    let fresh = Token { revision: None, remaining: None, start: token.start.clone() };
    Status { continue_token: fresh.to_text(), ..Status::new(410, "Expired", message) }
}

fn too_new(wanted: u64, newest: u64) -> Status {
    let cause = StatusCause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    };
    Status::new(504, "Timeout", format!("Timeout: Too large resource version: {wanted}, current: {newest}"))
        .with_details(StatusDetails { causes: vec![cause], ..StatusDetails::default() })
}
