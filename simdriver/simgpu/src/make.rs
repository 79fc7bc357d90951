//! Making machines.

use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use comfy_table::{Table, presets};
use machine::{
    Choices, Clock, CudaVersion, Description, FromProfileError, Machine, PidView, WithoutNodes,
};
use model::profiles::{self, Profile};

use crate::args::Create;

/// Lists what there is.
pub(crate) fn profiles(out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["profile", "cards", "model", "memory"]);
    for name in profiles::names() {
        let profile = Profile::named(name)?;
        table.add_row([
            name.to_owned(),
            profile.matrix.count().to_string(),
            profile.model.to_string(),
            format!("{} MiB", profile.memory.0),
        ]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

/// Makes one.
pub(crate) fn create(choices: &Create, out: &mut impl Write) -> anyhow::Result<()> {
    let cuda = choices.cuda.clone().map(CudaVersion::try_from).transpose()?;
    let wanted = Choices {
        driver: choices.driver.clone(),
        cuda,
        clock: if choices.virtual_time { Clock::Virtual } else { Clock::Real },
        name: choices.name.clone(),
        cards: choices.cards,
        mig: choices.mig,
        mps: choices.mps,
        pids: if choices.host_pids { PidView::Host } else { PidView::Namespace },
    };
    let description = Description::from_profile(&choices.profile, &wanted);
    let mut description = description.map_err(|error| match error {
        FromProfileError::Profile(error) => {
            anyhow!("{error}; `nanogpu-simgpu profiles` lists those there are")
        }
        error => anyhow!(error),
    })?;
    description.dev_root.clone_from(&choices.dev_root);
    if choices.need_nodes {
        description.without_device_nodes = WithoutNodes::None;
    }
    let machine = Machine::create(&choices.folder, &description)?;
    let folder = std::path::absolute(machine.folder())?;
    let folder = folder.display();
    let cards = description.cards.len();
    let model = description.cards.first().map_or("", |card| card.model.as_str());
    writeln!(out, "made {folder}: {cards} x {model}, driver {}", description.driver)?;
    writeln!(out, "use it with NANOGPU_SIMGPU={folder}")?;
    Ok(())
}

/// Moves the clock.
pub(crate) fn advance(
    machine: &'static Machine,
    milliseconds: u64,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if machine.description().clock == Clock::Real {
        bail!("the time of this machine is real; make one with --virtual-time to move its clock");
    }
    machine.advance(milliseconds.saturating_mul(1_000_000))?;
    writeln!(out, "it is now {:?}", Duration::from_nanos(machine.now()))?;
    Ok(())
}
