//! Volumes that a claim adds to its Sandbox, as far as the template allows.

use std::collections::HashSet;

use agent_sandbox_api::template::{InjectionPolicy, VolumeClaimTemplate};

use super::cold_start::Refusal;

/// The claim's volumes merged into the template's.
pub(super) fn merge(
    template: &[VolumeClaimTemplate],
    claim: &[VolumeClaimTemplate],
    policy: InjectionPolicy,
) -> Result<Vec<VolumeClaimTemplate>, Refusal> {
    if claim.is_empty() {
        check_names(template)
            .map_err(|why| Refusal::Volumes(format!("invalid volume claim templates in template: {why}")))?;
        return Ok(template.to_vec());
    }
    let failed = |why: String| Refusal::Volumes(format!("failed to merge volume claim templates: {why}"));
    if policy == InjectionPolicy::Disallowed {
        return Err(failed("volume claim templates are disallowed by the template".to_owned()));
    }
    check_names(template).map_err(|why| failed(format!("template: {why}")))?;
    check_names(claim).map_err(|why| failed(format!("claim: {why}")))?;
    let mut merged = template.to_vec();
    for volume in claim {
        match merged.iter_mut().find(|known| known.name() == volume.name()) {
            None => merged.push(volume.clone()),
            Some(known) if policy == InjectionPolicy::Overrides => *known = volume.clone(),
            Some(_) => {
                return Err(failed(format!(
                    "overriding volume claim templates is forbidden by the template: cannot override template volume \"{}\"",
                    volume.name()
                )));
            }
        }
    }
    Ok(merged)
}

fn check_names(volumes: &[VolumeClaimTemplate]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        if volume.name().is_empty() {
            return Err(format!("name at index {index} is empty"));
        }
        if !seen.insert(volume.name()) {
            return Err(format!("duplicate name \"{}\"", volume.name()));
        }
    }
    Ok(())
}
