//! `metav1.DeleteOptions`, the body of a DELETE, in protobuf.

use smol_str::SmolStr;

use super::Envelope;
use super::reader::fields;
use crate::status::Status;

/// The options of a DELETE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Seconds of grace.
    pub grace_period_seconds: Option<i64>,
    /// The uid the object must have.
    pub uid: Option<SmolStr>,
    /// The resource version the object must have.
    pub resource_version: Option<SmolStr>,
    /// Whether dependents are orphaned; the old form of `propagation_policy`.
    pub orphan_dependents: Option<bool>,
    /// Deletion of dependents: `Orphan`, `Background` or `Foreground`.
    pub propagation_policy: Option<SmolStr>,
    /// `All` or empty.
    pub dry_run: Vec<SmolStr>,
}

/// Decodes the body of a DELETE. Ignores the version: clients send that of the resource, `v1` or
/// `meta.k8s.io/v1`.
///
/// # Errors
/// 400 for a body that is not protobuf of Kubernetes, is of another kind, or is truncated.
pub fn decode_delete_options(body: &[u8]) -> Result<DeleteOptions, Box<Status>> {
    let mut options = DeleteOptions::default();
    let envelope = Envelope::read(body).map_err(|fault| Status::bad_request(fault.to_string()))?;
    if !matches!(envelope.kind.as_str(), "" | "DeleteOptions") {
        let text = format!("the body is of the kind {:?}; allowed is DeleteOptions", envelope.kind);
        return Err(Status::bad_request(text).into());
    }
    let read = fields(envelope.raw, |field| match field.number {
        1 => field.long().map(|seconds| options.grace_period_seconds = Some(seconds)),
        2 => fields(field.bytes()?, |field| match field.number {
            1 => field.text().map(|uid| options.uid = Some(uid.into())),
            2 => field.text().map(|version| options.resource_version = Some(version.into())),
            _ => field.skip(),
        }),
        3 => field.boolean().map(|flag| options.orphan_dependents = Some(flag)),
        4 => field.text().map(|policy| options.propagation_policy = Some(policy.into())),
        5 => field.text().map(|scope| options.dry_run.push(scope.into())),
        _ => field.skip(),
    });
    read.map_err(|fault| Status::bad_request(fault.to_string()))?;
    Ok(options)
}
