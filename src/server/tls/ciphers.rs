//! Cipher suites by Go's names, as in the apiserver's `--tls-cipher-suites`.

use rustls::crypto::{CryptoProvider, ring};
use rustls::sign::SigningKey;
use rustls::{SupportedCipherSuite, version};

/// A supported cipher suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherSuite(rustls::CipherSuite);

impl CipherSuite {
    /// Returns every suite.
    pub fn all() -> impl Iterator<Item = Self> {
        ring::ALL_CIPHER_SUITES.iter().map(|suite| Self(suite.suite()))
    }

    /// Returns Go's name.
    pub fn name(self) -> String {
        // rustls: TLS13_AES_128_GCM_SHA256; Go: TLS_AES_128_GCM_SHA256.
        format!("{:?}", self.0).replacen("TLS13_", "TLS_", 1)
    }

    /// Finds a suite by its name. Like Go, also accepts `CHACHA20_POLY1305` without the hash at the end.
    pub fn of(name: &str) -> Option<Self> {
        Self::all().find(|suite| {
            let known = suite.name();
            known == name || (name.ends_with("_POLY1305") && known.strip_suffix("_SHA256") == Some(name))
        })
    }
}

/// Returns the provider with only these suites of TLS 1.2; with all of them if none is chosen.
pub(super) fn provider(chosen: &[CipherSuite]) -> CryptoProvider {
    let mut provider = ring::default_provider();
    let is_chosen = |suite: &SupportedCipherSuite| {
        suite.version() == &version::TLS13 || chosen.is_empty() || chosen.contains(&CipherSuite(suite.suite()))
    };
    provider.cipher_suites.retain(is_chosen);
    provider
}

/// Whether a suite of TLS 1.2 can be used with a certificate of this key.
pub(super) fn fit(provider: &CryptoProvider, key: &dyn SigningKey) -> bool {
    let mut old = provider.cipher_suites.iter().filter(|suite| suite.version() == &version::TLS12);
    old.any(|suite| suite.usable_for_signature_algorithm(key.algorithm()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_gos_names() {
        let names: Vec<String> = CipherSuite::all().map(CipherSuite::name).collect();
        for name in ["TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"] {
            assert!(names.contains(&name.to_owned()), "{names:?}");
        }
        assert!(names.iter().all(|name| CipherSuite::of(name).is_some_and(|suite| suite.name() == *name)));
        let short = CipherSuite::of("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305").unwrap();
        assert_eq!(short.name(), "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256");
        assert_eq!(CipherSuite::of("TLS_RSA_WITH_AES_128_CBC_SHA"), None);
    }

    #[test]
    fn a_choice_keeps_all_suites_of_tls_1_3() {
        let chosen = CipherSuite::of("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256").unwrap();
        let left = provider(&[chosen]).cipher_suites;
        let of = |wanted| left.iter().filter(|suite| suite.version() == wanted).count();
        assert_eq!((of(&version::TLS12), of(&version::TLS13)), (1, 3));
        assert_eq!(provider(&[]).cipher_suites.len(), ring::default_provider().cipher_suites.len());
    }
}
