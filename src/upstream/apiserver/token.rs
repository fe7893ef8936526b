//! The bearer token in a file, which somebody replaces before it expires: a pod's service account. kube reads such a file
//! once a minute; here a 401 has it read again before the next request, so that no rotation holds delivery up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use kube::config::AuthInfo;
use tokio::sync::Mutex;

use super::connect::Error;
use crate::clock::{Clock, Mono};

/// Oldest that a token may be without a look at its file; kube's and client-go's.
const AGE_MAX: Duration = Duration::from_secs(60);

/// A token file, and the token that was last read from it.
pub(super) struct TokenFile {
    path: PathBuf,
    clock: Clock,
    held: Mutex<Held>,
}

struct Held {
    header: HeaderValue,
    /// When the file is looked at again.
    due: Mono,
}

impl TokenFile {
    /// Takes the token file over from kube, if it is what would be used: kube prefers everything else.
    pub(super) async fn take(auth: &mut AuthInfo, clock: Clock) -> Result<Option<Self>, Error> {
        let has_password = auth.username.is_some() && auth.password.is_some();
        if auth.auth_provider.is_some() || has_password || auth.token.is_some() {
            return Ok(None);
        }
        let Some(path) = auth.token_file.take().map(PathBuf::from) else { return Ok(None) };
        match read(&path).await {
            Ok(header) => {
                let held = Mutex::new(Held { header, due: clock.now().mono.after(AGE_MAX) });
                Ok(Some(Self { path, clock, held }))
            }
            Err(source) => Err(Error::Token { path, source }),
        }
    }

    /// The `Authorization` of a request.
    pub(super) async fn header(&self) -> HeaderValue {
        let mut held = self.held.lock().await;
        let now = self.clock.now().mono;
        if held.due <= now {
            held.due = now.after(AGE_MAX);
            match read(&self.path).await {
                Ok(header) => held.header = header,
                // The one that is known may still do; if not, the next 401 leads here again.
                Err(error) => tracing::warn!(%error, path = %self.path.display(), "the token file cannot be read"),
            }
        }
        held.header.clone()
    }

    /// The apiserver does not accept this one. Where it is the newest known, the file is read before the next request.
    pub(super) async fn refused(&self, header: &HeaderValue) {
        let mut held = self.held.lock().await;
        if held.header == header {
            held.due = self.clock.now().mono;
        }
    }
}

async fn read(path: &Path) -> std::io::Result<HeaderValue> {
    let text = tokio::fs::read_to_string(path).await?;
    let mut header = HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(std::io::Error::other)?;
    header.set_sensitive(true);
    Ok(header)
}
