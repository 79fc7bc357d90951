//! Cards cut into slices, as `nvidia-smi mig` cuts them.

use std::io::Write;

use anyhow::{Context, bail};
use machine::{Machine, compute_slices, profiles_of};

use crate::args::Mig;
use crate::fault::card;

/// Does it and says what was done.
pub(crate) fn cut(
    machine: &'static Machine,
    place: usize,
    act: &Mig,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    card(machine, place)?;
    match act {
        Mig::On | Mig::Off => {
            let on = matches!(act, Mig::On);
            machine.set_mig(place, on)?;
            writeln!(out, "card {place}: MIG is {}", if on { "on" } else { "off" })?;
        }
        Mig::Cut { profile } => {
            let all = profiles_of(&machine.description().cards[place].model);
            let Some(size) = all.iter().find(|size| size.name == profile) else {
                let names: Vec<&str> = all.iter().map(|size| size.name).collect();
                bail!("card {place} has no slices of {profile}; it has {}", names.join(", "))
            };
            let instance = machine.create_gpu_instance(place, size.id, None)?;
            // One compute instance over all of it.
            let kind = (0..8).find(|kind| compute_slices(*kind) == Some(size.slices));
            let kind =
                kind.with_context(|| format!("no compute instance is as large as {profile}"))?;
            let slice = machine.create_compute_instance(&instance, kind)?;
            writeln!(out, "card {place}: {} of {profile}", machine.mig_uuid(slice.device))?;
        }
        Mig::Clear => {
            for slice in machine.compute_instances(place) {
                machine.destroy_compute_instance(&slice)?;
            }
            for instance in machine.gpu_instances(place) {
                machine.destroy_gpu_instance(&instance)?;
            }
            writeln!(out, "card {place}: no slices")?;
        }
    }
    Ok(())
}
