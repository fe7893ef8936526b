//! Refuses requests that a web page makes a browser send: those that name another host, and those of another origin.
//!
//! On a loopback address only `Host` shows DNS rebinding, which lets a page of another site read every answer. A page
//! can also send a POST to any address without a preflight request; the browser then names the page's origin.

use std::sync::Arc;

use http::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use http::uri::Uri;
use regex::{RegexSet, RegexSetBuilder};

/// Hosts that a loopback listener accepts by default; those of `kubectl proxy`.
pub const ACCEPT_HOSTS: [&str; 3] = ["^localhost$", r"^127\.0\.0\.1$", r"^\[::1\]$"];

const FETCH_SITE: &str = "sec-fetch-site";

/// Hosts and origins that a listener accepts.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// Hosts that a request may name; `None` accepts all.
    // Shared, because a clone of an expression starts with an empty cache.
    hosts: Option<Arc<RegexSet>>,
}

impl Origins {
    /// Accepts any host, and the same origin: for an address that other machines reach.
    pub fn any_host() -> Self {
        Self::default()
    }

    /// Accepts hosts that match one of these expressions, and the same origin: for a loopback address.
    ///
    /// # Errors
    /// When one is not a regular expression.
    pub fn hosts<T: AsRef<str>>(expressions: &[T]) -> Result<Self, regex::Error> {
        Ok(Self { hosts: Some(Arc::new(RegexSetBuilder::new(expressions).case_insensitive(true).build()?)) })
    }

    /// Returns the reason for which a request is refused, if it is.
    #[must_use]
    pub fn refusal(&self, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
        if let Some(accepted) = &self.hosts {
            let is_accepted = |host: Option<&str>| host.is_some_and(|host| accepted.is_match(split(host).0));
            if named_hosts(uri, headers).next().is_none() || !named_hosts(uri, headers).all(is_accepted) {
                return Some("the host that the request names is not accepted; see --accept-hosts");
            }
        }
        let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
        let is_foreign = matches!(site, Some(b"cross-site" | b"same-site")) || has_foreign_origin(uri, headers);
        is_foreign.then_some("a request of another origin is refused")
    }
}

/// Returns the hosts of the target and of all `Host` headers; `None` for one that is not text.
fn named_hosts<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> impl Iterator<Item = Option<&'r str>> {
    let headers = headers.get_all(HOST).iter().map(|host| host.to_str().ok());
    uri.authority().map(|authority| Some(authority.as_str())).into_iter().chain(headers)
}

/// Splits a host into name and port. An IPv6 address keeps its brackets.
fn split(host: &str) -> (&str, Option<&str>) {
    let end = host.rfind(']').map_or(0, |end| end + 1);
    match host[end..].find(':') {
        Some(colon) => (&host[..end + colon], Some(&host[end + colon + 1..])),
        None => (host, None),
    }
}

/// Whether an `Origin` names another host than the request, or another port than the request's, if it has one.
fn has_foreign_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_foreign = |origin: &HeaderValue| {
        let origin = Uri::try_from(origin.as_bytes()).ok();
        let Some(origin) = origin.as_ref().filter(|origin| origin.scheme().is_some()) else { return true };
        let (Some(name), Some(Some(host))) = (origin.host(), named_hosts(uri, headers).next()) else { return true };
        let (asked_name, asked_port) = split(host);
        let default = if origin.scheme_str() == Some("https") { 443 } else { 80 };
        let port = origin.port_u16().unwrap_or(default);
        !name.eq_ignore_ascii_case(asked_name) || asked_port.is_some_and(|asked| asked.parse() != Ok(port))
    };
    headers.get_all(ORIGIN).iter().any(is_foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(origins: &Origins, uri: &str, headers: &[(&str, &str)]) -> bool {
        let request =
            headers.iter().fold(http::Request::get(uri), |request, (name, value)| request.header(*name, *value));
        let request = request.body(()).unwrap();
        origins.refusal(request.uri(), request.headers()).is_some()
    }

    #[test]
    fn a_loopback_listener_accepts_only_configured_hosts() {
        let origins = Origins::hosts(&ACCEPT_HOSTS).unwrap();
        for host in ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080"] {
            assert!(!is_refused(&origins, "/", &[("host", host)]), "{host}");
            assert!(!is_refused(&origins, &format!("http://{host}/"), &[]), "{host}");
            assert!(is_refused(&origins, &format!("http://{host}/"), &[("host", "evil.example")]), "{host}");
            assert!(is_refused(&origins, "/", &[("host", host), ("host", "evil.example")]), "{host}");
        }
        let foreign =
            "|evil.example|localhost.evil.example|127.0.0.1.evil.example|127.0.0.2|a b|::1|a@localhost|[::1].evil";
        for host in foreign.split('|') {
            assert!(is_refused(&origins, "/", &[("host", host)]), "{host}");
            assert!(!is_refused(&Origins::any_host(), "/", &[("host", host)]), "{host}");
        }
        assert!(is_refused(&origins, "/", &[]));
        assert!(is_refused(&origins, "http://evil.example/", &[("host", "localhost")]));
    }

    #[test]
    fn pages_of_another_origin_are_refused() {
        for origins in [Origins::any_host(), Origins::hosts(&ACCEPT_HOSTS).unwrap()] {
            let host = ("host", "localhost:8080");
            for origin in ["http://localhost:8080", "https://LOCALHOST:8080"] {
                assert!(!is_refused(&origins, "/", &[host, ("origin", origin)]), "{origin}");
            }
            for origin in ["http://evil.example", "null", "", "http://localhost", "http://localhost:3000", "file://"] {
                assert!(is_refused(&origins, "/", &[host, ("origin", origin)]), "{origin}");
            }
            // A proxy in front may have taken the port away.
            assert!(!is_refused(&origins, "/", &[("host", "localhost"), ("origin", "https://localhost:8443")]));
            let sites = [("cross-site", true), ("same-site", true), ("same-origin", false), ("none", false)];
            for (site, refused) in sites {
                assert_eq!(is_refused(&origins, "/", &[host, ("sec-fetch-site", site)]), refused, "{site}");
            }
        }
    }
}
