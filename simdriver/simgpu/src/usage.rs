//! The GPU time that processes really had.

use std::io::Write;

use comfy_table::{Table, presets};
use machine::{Machine, Usage};
use serde::Serialize;

use crate::show::align_right;

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    process: u64,
    pid: u32,
    command: &'a str,
    tag: &'a str,
    alive: bool,
    card: usize,
    /// Time with a kernel of its own running.
    busy_ns: u64,
    /// Multiprocessors times nanoseconds.
    sm_ns: u64,
    peak_bytes: u64,
    joined_ns: u64,
    until_ns: u64,
}

/// Prints it.
pub(crate) fn print(
    machine: &'static Machine,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let usage = machine.usage()?;
    if json {
        for usage in &usage {
            writeln!(out, "{}", serde_json::to_string(&line(usage))?)?;
        }
        return Ok(());
    }
    if usage.is_empty() {
        writeln!(out, "no process has used a card yet")?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "card",
        "pid",
        "process",
        "tag",
        "gpu time",
        "share",
        "most memory",
        "state",
    ]);
    for usage in &usage {
        let time_here = usage.until.saturating_sub(usage.joined).max(1);
        table.add_row([
            usage.card.to_string(),
            usage.pid.to_string(),
            usage.command.clone(),
            usage.tag.clone(),
            time(usage.busy),
            format!("{} %", usage.busy.saturating_mul(100) / time_here),
            format!("{} MiB", usage.peak >> 20),
            if usage.alive { "running" } else { "ended" }.to_owned(),
        ]);
    }
    align_right(&mut table, &[0, 1, 4, 5, 6]);
    writeln!(out, "{table}")?;
    Ok(())
}

fn line(usage: &Usage) -> Line<'_> {
    Line {
        process: usage.number,
        pid: usage.pid,
        command: &usage.command,
        tag: &usage.tag,
        alive: usage.alive,
        card: usage.card,
        busy_ns: usage.busy,
        sm_ns: usage.sm_time,
        peak_bytes: usage.peak,
        joined_ns: usage.joined,
        until_ns: usage.until,
    }
}

/// Nanoseconds as milliseconds.
pub(crate) fn time(nanoseconds: u64) -> String {
    format!("{} ms", nanoseconds / 1_000_000)
}
