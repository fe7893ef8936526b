//! Selects the headers to forward: all, in their order, except hop-by-hop headers (RFC 9110, 7.6.1).
//!
//! A client may list any header as hop-by-hop, its token included. So these are removed before anything is read from
//! the headers that remain: who the apiserver takes the caller for depends on those alone.

use http::header::{CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::upstream::apiserver::is_impersonation;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Hop-by-hop headers beside `Connection`.
const HOP_BY_HOP: [HeaderName; 7] =
    [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];

/// The name of this process in `Via` headers (RFC 9110, 7.6.3). A request that has it already was forwarded to this
/// process itself, as the supposed apiserver.
#[derive(Debug)]
pub(super) struct Via(HeaderValue);

impl Via {
    pub(super) fn random() -> Self {
        let name = format!("1.1 eventweir-{:016x}", fastrand::u64(..));
        Self(name.try_into().expect("it is ASCII"))
    }

    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        // A proxy may join the values of several.
        let names_us = |value: &HeaderValue| memchr::memmem::find(value.as_bytes(), self.0.as_bytes()).is_some();
        headers.get_all(VIA).iter().any(names_us)
    }

    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        headers.append(VIA, self.0.clone());
    }
}

/// Returns a request's headers without those that are hop-by-hop. Impersonation headers stay even if they are listed:
/// without them, the request would run in the name and with the rights of the user that impersonates.
pub(super) fn end_to_end(headers: HeaderMap) -> HeaderMap {
    let is_kept = |name: &HeaderName| !is_impersonation(name);
    let listed: Vec<HeaderName> = headers.get_all(CONNECTION).iter().flat_map(listed).filter(is_kept).collect();
    without(headers, |name| is_hop_by_hop(name, &listed))
}

/// Returns the headers of a request for the apiserver, whose own name replaces `Host`, from its [`end_to_end`] headers.
/// `named` names an impersonated user. `X-Remote-*` would name another user, if eventweir's certificate is of the
/// authority of authenticating proxies.
pub(super) fn of_request(headers: HeaderMap, named: HeaderMap) -> HeaderMap {
    let is_impersonated = !named.is_empty();
    let is_remote = |name: &HeaderName| is_impersonated && name.as_str().starts_with("x-remote-");
    let mut kept = without(headers, |name| *name == HOST || is_remote(name));
    kept.extend(named);
    kept
}

/// Returns the headers of an answer for the client.
pub(super) fn of_answer(headers: HeaderMap) -> HeaderMap {
    let listed: Vec<HeaderName> = headers.get_all(CONNECTION).iter().flat_map(listed).collect();
    without(headers, |name| is_hop_by_hop(name, &listed))
}

/// Whether a header is hop-by-hop: always, or because `Connection` lists it.
fn is_hop_by_hop(name: &HeaderName, listed: &[HeaderName]) -> bool {
    *name == CONNECTION || HOP_BY_HOP.contains(name) || listed.contains(name)
}

fn without(headers: HeaderMap, is_dropped: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    if !headers.keys().any(&is_dropped) {
        return headers;
    }
    // A new map, because a removal would change the order.
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut current = None;
    for (name, value) in headers {
        // Only the first of several values comes with the name.
        current = name.or(current);
        if let Some(name) = current.as_ref().filter(|name| !is_dropped(name)) {
            kept.append(name, value);
        }
    }
    kept
}

/// Returns the names that a `Connection` header lists.
fn listed(value: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let names = value.to_str().unwrap_or_default().split(',');
    names.filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
}

pub(super) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE) && headers.get_all(CONNECTION).iter().flat_map(listed).any(|name| name == UPGRADE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert!(asks_for_upgrade(&map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")])));
        assert!(!asks_for_upgrade(&map(&[("connection", "keep-alive"), ("upgrade", "SPDY/3.1")])));
        assert!(!asks_for_upgrade(&map(&[("connection", "upgrade")])));
    }
}
