//! Where records live: the kube-apiserver, or the embedded store that speaks the same API.
