//! The bearer token in a file that is replaced before it expires, such as a pod's service account. kube reads such a
//! file once a minute. Here, a 401 also makes the next request read it, so that a rotation does not delay delivery.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use kube::config::AuthInfo;
use tokio::sync::Mutex;

use super::connect::Error;
use crate::clock::{Clock, Mono};

/// Interval between reads of the file; kube's and client-go's.
const AGE_MAX: Duration = Duration::from_secs(60);

/// A token file, and the token last read from it.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    clock: Clock,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// Marked as sensitive, so that no log shows it.
    header: HeaderValue,
    /// The time of the next read.
    due: Mono,
}

impl TokenFile {
    /// Takes the token file from kube's configuration, if kube would use it: kube prefers all other credentials.
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

    /// Returns the `Authorization` header of a request.
    pub(super) async fn header(&self) -> HeaderValue {
        let mut held = self.held.lock().await;
        let now = self.clock.now().mono;
        if held.due <= now {
            held.due = now.after(AGE_MAX);
            match read(&self.path).await {
                Ok(header) => held.header = header,
                // The known token may still be valid; if not, the next 401 causes another read.
                Err(error) => tracing::warn!(%error, path = %self.path.display(), "the token file cannot be read"),
            }
        }
        held.header.clone()
    }

    /// Records that the API server rejected this header. If it is the current one, the next request reads the file.
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
