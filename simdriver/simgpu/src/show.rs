//! A machine at a glance.

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};
use machine::{Counter, DeviceId, Machine, Presence};

/// Prints cards and processes.
pub(crate) fn show(machine: &'static Machine, out: &mut impl Write) -> anyhow::Result<()> {
    let description = machine.description();
    let profile = description.profile.as_deref().unwrap_or("machine");
    writeln!(
        out,
        "{profile} in {}, driver {}, CUDA {}{}",
        machine.folder().display(),
        description.driver,
        description.cuda,
        match machine.presence() {
            Presence::Ready => "",
            Presence::NoDriver => " (no driver)",
            Presence::Mismatch => " (driver and library do not match)",
        }
    )?;
    writeln!(out, "{}", cards(machine)?)?;
    let table = processes(machine)?;
    if table.is_empty() {
        writeln!(out, "no process uses a card")?;
    } else {
        writeln!(out, "{table}")?;
    }
    Ok(())
}

fn cards(machine: &'static Machine) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["card", "bus", "model", "memory", "busy", "state", "uuid"]);
    for (place, card) in machine.description().cards.iter().enumerate() {
        let Some(id) = DeviceId::new(place) else { continue };
        let memory = machine.memory(id).unwrap_or_default();
        let used = (memory.total - memory.free) >> 20;
        let samples = machine.samples(id)?;
        let over = samples.len().saturating_sub(2);
        let busy = samples.get(over).map_or(0, machine::Sample::percent);
        table.add_row([
            place.to_string(),
            card.bus.clone(),
            card.model.clone(),
            format!("{used} / {} MiB", card.memory_mib),
            format!("{busy} %"),
            state(machine, id),
            card.uuid.clone(),
        ]);
        for slice in machine.compute_instances(place) {
            let memory = machine.memory(slice.device).unwrap_or_default();
            table.add_row([
                format!("{place}:{}:{}", slice.of.id, slice.id),
                String::new(),
                format!("  MIG {}", slice.of.profile.name),
                format!("{} / {} MiB", memory.used >> 20, memory.total >> 20),
                String::new(),
                String::new(),
                machine.mig_uuid(slice.device),
            ]);
        }
    }
    align_right(&mut table, &[0, 3, 4]);
    Ok(table)
}

fn state(machine: &Machine, id: DeviceId) -> String {
    if machine.is_lost(id) {
        return "lost".to_owned();
    }
    let errors = machine.counter(id, Counter::UncorrectedVolatile);
    match (machine.mig(id.place()), errors) {
        (true, _) => "MIG".to_owned(),
        (false, 0) => "ok".to_owned(),
        (false, errors) => format!("{errors} ECC errors"),
    }
}

fn processes(machine: &'static Machine) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["card", "pid", "process", "memory", "queued", "gpu time", "tag"]);
    for process in machine.running()? {
        for holding in &process.holds {
            table.add_row([
                machine.card_of(holding.device).to_string(),
                process.pid.to_string(),
                process.command.clone(),
                format!("{} MiB", holding.memory >> 20),
                holding.pending.to_string(),
                crate::usage::time(holding.busy),
                process.tag.clone(),
            ]);
        }
    }
    align_right(&mut table, &[0, 1, 3, 4, 5]);
    Ok(table)
}

pub(crate) fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
