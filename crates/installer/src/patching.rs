//! `patch`: plans everything, asks nanogpu-scheduler, writes, and looks whether it works.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::faults::{Point, reached};
use crate::journal::{Digest, Journal, Phase, VERSION, Whose, whose};
use crate::manifest::Manifest;
use crate::options::Patch;
use crate::planning::{Plan, Sources, plan};
use crate::tree::{Tree, optional};
use crate::verifying::{self, CERTIFICATES, are_kept, kept, settle};
use crate::{Say, probe, settings, undoing, yaml};

/// The command.
pub fn patch(tree: &Tree, options: &Patch, say: Say) -> anyhow::Result<()> {
    let _lock = tree.lock()?;
    let mut journal = tree.journal()?;
    if journal.as_ref().is_some_and(|journal| journal.phase == Phase::Undoing) {
        say("A rollback was cut off; it is finished first.");
        undoing::finish(tree, say)?;
        journal = None;
    }
    let (text, about) = tree.read_manifest()?;
    let now = Digest::of(text.as_bytes());
    let stands = whose(journal.as_ref(), &now);
    let original = original(tree, &text, stands, journal.as_ref())?;
    let ours = ours(options)?;
    let certificates = certificates(tree, options)?;
    let plan = planned(tree, &original, &ours, &certificates)?;
    if !options.no_verify {
        // A kube-scheduler that asks somebody who does not answer lets no pod with a card start.
        probe::extender(&ours, &certificates, &options.checking, say)
            .context("nothing was changed")?;
    }
    let after = Digest::of(plan.manifest.as_bytes());
    let done = journal.as_ref().is_some_and(|journal| {
        journal.after == after && matches!(journal.phase, Phase::Patched | Phase::Verified)
    });
    if done && now == after && are_kept(tree, &plan)? {
        say("nanogpu is already in kube-scheduler's manifest; nothing to write.");
    } else {
        let served = match &journal {
            // It may have been started anew before we were cut off.
            Some(journal) if now == after => journal.served.clone(),
            _ if options.no_verify => None,
            _ => verifying::served(tree, &options.checking)?,
        };
        let replaces = (stands == Whose::Ours && now != after).then_some(now);
        let journal = Journal {
            version: VERSION,
            phase: Phase::Patching,
            before: Digest::of(original.as_bytes()),
            after,
            replaces,
            served,
        };
        write(tree, &original, &plan, journal, &about)?;
        say(&format!("{} names nanogpu's configuration now.", tree.manifest().display()));
        say(&format!("The manifest before is kept in {}.", tree.backup().display()));
    }
    if options.no_verify { Ok(()) } else { settle(tree, &options.checking, false, say) }
}

/// The manifest without us.
fn original(
    tree: &Tree,
    text: &str,
    stands: Whose,
    journal: Option<&Journal>,
) -> anyhow::Result<String> {
    match stands {
        Whose::Untouched | Whose::Before => Ok(text.to_owned()),
        Whose::Ours => undoing::backup(tree, journal.context("a journal")?),
        // kubeadm writes it anew when it upgrades: that is a manifest like any other.
        Whose::Others if !Manifest::read(text)?.is_ours() => Ok(text.to_owned()),
        Whose::Others => bail!("{}", undoing::changed(tree)),
    }
}

fn ours(options: &Patch) -> anyhow::Result<Value> {
    let text = match &options.settings {
        Some(path) => {
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => settings::SHIPPED.to_owned(),
    };
    let ours = yaml::read(&text).context("the settings of nanogpu cannot be read")?;
    let address = options.extender.as_deref();
    ensure!(
        address.is_some() || options.settings.is_some(),
        "say where kube-scheduler reaches nanogpu-scheduler: --extender https://ADDRESS:39443/scheduler; \
         `kubectl -n nanogpu-system get service nanogpu-scheduler-verbs -o jsonpath={{.spec.clusterIP}}` has the address"
    );
    Ok(settings::at(ours, address)?)
}

fn certificates(tree: &Tree, options: &Patch) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let Some(folder) = &options.certificates else {
        let mut kept = kept(tree)?;
        kept.retain(|name, _| CERTIFICATES.contains(&name.as_str()));
        return Ok(kept);
    };
    let read = |name: &str| {
        let path = folder.join(name);
        let bytes = optional(&path)?.with_context(|| format!("there is no {}", path.display()))?;
        Ok((name.to_owned(), bytes))
    };
    CERTIFICATES.into_iter().map(read).collect()
}

fn planned(
    tree: &Tree,
    original: &str,
    ours: &Value,
    certificates: &BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<Plan> {
    let manifest = Manifest::read(original)
        .with_context(|| format!("{} is left alone", tree.manifest().display()))?;
    let theirs = theirs(tree, &manifest)?;
    let folder = tree.settings_on_host();
    let sources = Sources {
        original: &manifest,
        ours,
        theirs: theirs.as_ref(),
        certificates,
        folder: &folder,
    };
    plan(&sources).with_context(|| format!("{} is left alone", tree.manifest().display()))
}

/// The operator's own configuration.
fn theirs(tree: &Tree, manifest: &Manifest) -> anyhow::Result<Option<Value>> {
    let Some(inside) = manifest.flag("config").filter(|_| !manifest.is_ours()) else {
        return Ok(None);
    };
    let on_host = manifest.on_host(&inside).with_context(|| {
        format!("kube-scheduler reads its configuration from {inside}, which is no file of the host; nanogpu cannot be put into it")
    })?;
    let path = tree.seen(&on_host).with_context(|| {
        format!("kube-scheduler's configuration is {on_host}, which cannot be seen from here; move it below /etc/kubernetes")
    })?;
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let theirs =
        yaml::read(&text).with_context(|| format!("{on_host}, kube-scheduler's configuration"))?;
    Ok(Some(theirs))
}

fn write(
    tree: &Tree,
    original: &str,
    plan: &Plan,
    mut journal: Journal,
    about: &fs::Metadata,
) -> anyhow::Result<()> {
    tree.write(&tree.backup(), original.as_bytes())?;
    reached(Point::BackedUp);
    tree.write_journal(&journal)?;
    reached(Point::Noted);
    for (name, bytes) in &plan.files {
        tree.write(&tree.settings().join(name), bytes)?;
    }
    reached(Point::Settled);
    tree.replace_manifest(plan.manifest.as_bytes(), about)?;
    reached(Point::Replaced);
    journal.phase = Phase::Patched;
    tree.write_journal(&journal)?;
    reached(Point::Patched);
    Ok(())
}
