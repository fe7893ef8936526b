//! Impersonation: requests of clients that have only a certificate are sent with eventweir's own credentials, in the name
//! of the certificate's user. A certificate itself cannot be forwarded.

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::access::{AUTHENTICATED, Access, Caller, Purpose, SERVICE_ACCOUNT};
use crate::server::Peer;
use crate::status::Status;
use crate::upstream::apiserver::{Forwarder, is_impersonation};

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// How callers are known to eventweir and to the apiserver.
#[derive(Debug)]
pub struct Callers {
    /// Identifies the callers of events, and the users of certificates.
    pub access: Access,
    /// Sends the caller's token.
    pub forwarder: Forwarder,
    /// Sends eventweir's own credentials, to impersonate callers. Without it, requests of clients that have only a
    /// certificate are refused.
    pub impersonator: Option<Forwarder>,
}

impl Callers {
    /// Returns the headers that name the user of a request's certificate.
    ///
    /// # Errors
    /// 401 if the certificate has expired; 403 if a header cannot carry its names, or if the request has impersonation
    /// headers itself: the apiserver would ask whether eventweir may impersonate that user, and not whether the caller may.
    pub(super) async fn name(&self, parts: &Parts) -> Result<HeaderMap, Status> {
        let caller = self.access.identify(parts.extensions.get(), &parts.headers, Purpose::Other).await?;
        if parts.headers.keys().any(is_impersonation) {
            return Err(forbidden("a request with a client certificate cannot impersonate another user as well"));
        }
        naming(&caller).ok_or_else(|| forbidden("a name in the client certificate cannot be sent in a header"))
    }
}

/// Whether a client certificate is the client's only credential.
pub(super) fn has_certificate_alone(parts: &Parts) -> bool {
    let peer = parts.extensions.get::<Peer>();
    !parts.headers.contains_key(AUTHORIZATION) && peer.is_some_and(|peer| peer.certificate.is_some())
}

/// Returns the headers that name a user; `None` if headers cannot carry its names. A server trims headers, so a name with
/// spaces around it would become another user's. The apiserver adds the group of authenticated users itself, and also
/// the groups of a service account that names none.
fn naming(caller: &Caller) -> Option<HeaderMap> {
    let value =
        |name: &str| HeaderValue::from_bytes(name.as_bytes()).ok().filter(|_| !name.is_empty() && name.trim() == name);
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(&caller.name)?);
    for group in caller.groups.iter().filter(|group| *group != AUTHENTICATED) {
        headers.append(GROUP, value(group)?);
    }
    let gains_groups = caller.name.starts_with(SERVICE_ACCOUNT) && !headers.contains_key(GROUP);
    (!gains_groups).then_some(headers)
}

fn forbidden(reason: &str) -> Status {
    Status::new(403, "Forbidden", format!("forbidden: eventweir impersonates its callers, and {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user_and_its_groups_or_are_refused() {
        let named = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).into()).collect();
            let headers = naming(&Caller { name: name.into(), groups, ..Caller::default() })?;
            let lines =
                headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
            Some(lines.collect::<Vec<_>>())
        };
        let expected = |lines: &[&str]| Some(lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            named("system:node:a", &["system:nodes", "ops", "system:authenticated"]),
            expected(&["impersonate-user: system:node:a", "impersonate-group: system:nodes", "impersonate-group: ops"])
        );
        assert_eq!(named("Jürgen a", &[]), expected(&["impersonate-user: Jürgen a"]));
        let account = "system:serviceaccount:a:b";
        assert!(named(account, &["a"]).is_some());
        // Guards against: the apiserver adds the groups of service accounts.
        assert_eq!((named(account, &[]), named(account, &["system:authenticated"])), (None, None));
        for (name, group) in
            [("", "a"), (" admin", "a"), ("admin\t", "a"), ("a\r\nb", "a"), ("a", ""), ("a", "system:masters ")]
        {
            assert_eq!(named(name, &[group]), None, "{name:?} {group:?}");
        }
    }
}
