//! `healthcheck`: is the program at this admin port ready?

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::{Error, print, runtime};
use crate::cli::Healthcheck;

const DEADLINE: Duration = Duration::from_secs(5);

/// `healthcheck`
///
/// # Errors
/// When it is not ready, or does not answer within five seconds.
pub fn healthcheck(check: &Healthcheck) -> Result<(), Error> {
    let uri = format!("{}/readyz", check.admin.trim_end_matches('/'));
    let answer = runtime()?.block_on(async { tokio::time::timeout(DEADLINE, ask(&uri)).await });
    match answer {
        Ok(Ok((true, body))) => print(&body),
        Ok(Ok((false, body))) => Err(Error::NotReady(body.trim_end().to_owned())),
        Ok(Err(error)) => Err(Error::NotReady(format!("{uri}: {error}"))),
        Err(_elapsed) => Err(Error::NotReady(format!("{uri}: no answer within {} s", DEADLINE.as_secs()))),
    }
}

/// Whether the answer is a success, and what it says.
async fn ask(uri: &str) -> Result<(bool, String), Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(uri.parse()?).await?;
    let ready = answer.status().is_success();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((ready, String::from_utf8_lossy(&body).into_owned()))
}
