//! Caller of a request: user, groups, and the credentials they are read from.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde_json::{Map, Value};
use smol_str::SmolStr;

use crate::server::PeerCertificate;

/// Group of every authenticated caller.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Decodes the parts of a JWT, whatever their unused last bits, like the apiserver.
pub(crate) const JWT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Caller of a request, as the apiserver names callers. Each authenticated request has it among its extensions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Caller {
    /// Name of the user.
    pub name: SmolStr,
    /// Uid of the user; may be empty.
    pub uid: SmolStr,
    /// Groups of the user.
    pub groups: Vec<SmolStr>,
    /// Further attributes from the authenticator.
    // LIMIT: the answer of a TokenReview, whose bytes are limited when it is read.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl From<UserInfo> for Caller {
    fn from(UserInfo { username, uid, groups, extra }: UserInfo) -> Self {
        let text = |text: Option<String>| text.unwrap_or_default().into();
        // LIMIT: groups and extra are as long as the review, whose bytes are limited when it is read.
        let groups = groups.unwrap_or_default().into_iter().map(SmolStr::from).collect();
        Self { name: text(username), uid: text(uid), groups, extra: extra.unwrap_or_default() }
    }
}

impl Caller {
    /// Returns the caller of requests without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: SmolStr::new_static(ANONYMOUS),
            groups: vec![SmolStr::new_static(UNAUTHENTICATED)],
            ..Self::default()
        }
    }

    /// Reads the caller from a certificate; `None` without a common name (`x509.CommonNameUserConversion`).
    pub(super) fn of_certificate(certificate: &PeerCertificate) -> Option<Self> {
        let PeerCertificate { common_name, organizations, expires: _ } = certificate;
        let groups = organizations.iter().map(SmolStr::new).collect();
        let caller = Self { name: common_name.into(), groups, ..Self::default() };
        (!common_name.is_empty()).then(|| caller.authenticated())
    }

    /// Adds the group of authenticated callers (`group.AuthenticatedGroupAdder`).
    #[must_use]
    pub(super) fn authenticated(mut self) -> Self {
        let is_marked = self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if self.name != ANONYMOUS && !is_marked {
            self.groups.push(SmolStr::new_static(AUTHENTICATED));
        }
        self
    }
}

/// Returns the bearer token of a request, read as the apiserver reads it (`bearertoken.AuthenticateRequest`). Any other
/// scheme, and an empty token, count as none.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = value.splitn(3, ' ');
    let (scheme, token) = (parts.next()?, parts.next()?);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns the seconds at which a JWT expires by its own words, 0 if they cannot be read; `None` for another token. Only
/// for one that the apiserver has accepted: nothing is verified.
pub(super) fn expiry(token: &str) -> Option<i64> {
    let payload = JWT.decode(token.split('.').nth(1)?).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(&payload).ok()?;
    let expiry = claims.get("exp").filter(|expiry| !expiry.is_null())?;
    // A number of JSON, which some issuers write as 1700000000.0 or 1.7e9.
    let seconds = expiry.as_f64().unwrap_or_default().max(0.0);
    Some(Duration::try_from_secs_f64(seconds).map_or(i64::MAX, |time| time.as_secs().try_into().unwrap_or(i64::MAX)))
}

/// Whether a token has other than printable ASCII characters. The apiserver ignores whitespace in a JWT, so that one
/// token would have any number of spellings, each of them a caller of its own.
pub(crate) fn is_garbled(token: &str) -> bool {
    token.bytes().any(|byte| !byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::access::cache::key;
    use crate::correlator::KeySecret;

    #[test]
    fn the_group_of_authenticated_callers_is_added_once() {
        let caller = Caller { name: "a".into(), ..Caller::default() }.authenticated();
        assert_eq!(caller.groups, [AUTHENTICATED]);
        assert_eq!(caller.clone().authenticated(), caller);
        assert_eq!(Caller::anonymous().authenticated(), Caller::anonymous());
    }

    #[test]
    fn callers_that_differ_share_no_decision() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).into()).collect();
        let caller = |[name, uid]: [&str; 2], groups: &[&str], extra: &[(&str, &[&str])]| Caller {
            name: name.into(),
            uid: uid.into(),
            groups: groups.iter().map(SmolStr::new).collect(),
            extra: extra.iter().map(|(name, values)| ((*name).to_owned(), texts(values))).collect(),
        };
        let callers = [
            caller(["a", ""], &[], &[]),
            caller(["", "a"], &[], &[]),
            caller(["a", "a"], &[], &[]),
            caller(["b", ""], &[], &[]),
            caller(["a", ""], &["x"], &[]),
            caller(["a", ""], &["y"], &[]),
            caller(["a", ""], &["x", "y"], &[]),
            caller(["a", ""], &[], &[("x", &[])]),
            caller(["a", ""], &[], &[("y", &[])]),
            caller(["a", ""], &[], &[("x", &["y"])]),
            caller(["a", ""], &[], &[("x", &["z"])]),
            caller(["a", ""], &[], &[("x", &["y", "z"])]),
        ];
        let keys: std::collections::HashSet<u128> = callers.iter().map(|caller| key(KeySecret(1, 2), caller)).collect();
        assert_eq!(keys.len(), callers.len());
    }

    #[test]
    fn a_bearer_token_is_read_as_by_the_apiserver() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" Bearer abc ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Basic YTpi", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            assert_eq!(bearer(&headers), expected, "{value}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
        assert_eq!(["a\tb", "a\u{7f}b", "a.b-c_d~e+f/g=="].map(is_garbled), [true, true, false]);
    }

    #[test]
    fn a_jwt_names_its_expiry() {
        let token = |claims: &str| format!("e30.{}.c2ln", JWT.encode(claims).trim_end_matches('='));
        // Fault: a number with a point or an exponent was none, so that such a token never expired in an outage.
        for (expires, expected) in [
            ("1700000000", 1_700_000_000),
            ("1700000000.9", 1_700_000_000),
            ("1.7e9", 1_700_000_000),
            ("-5", 0),
            ("1e300", i64::MAX),
            (r#""1700000000""#, 0),
            ("[1]", 0),
        ] {
            assert_eq!(expiry(&token(&format!(r#"{{"iss":"x","exp":{expires}}}"#))), Some(expected), "{expires}");
        }
        for other in [
            token(r#"{"iss":"x"}"#),
            token(r#"{"exp":null}"#),
            token("[1]"),
            token("no"),
            "abcdef.0123456789abcdef".to_owned(),
            "x".to_owned(),
        ] {
            assert_eq!(expiry(&other), None, "{other}");
        }
    }
}
