//! `verify`: does kube-scheduler run with what we wrote, and does nanogpu-scheduler answer it?

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};

use crate::Say;
use crate::journal::{Digest, Phase, Whose, whose};
use crate::manifest::{CONFIG, Manifest};
use crate::options::{Checking, Verify};
use crate::planning::Plan;
use crate::tree::{Tree, optional};
use crate::watching::{Seen, Verdict, Watch};
use crate::{probe, undoing, yaml};

/// How often kube-scheduler is looked at: more often than it can be started anew.
const PAUSE: Duration = Duration::from_millis(250);
/// kube-scheduler's certificates among its files.
pub const CERTIFICATES: [&str; 3] = ["ca.crt", "client.crt", "client.key"];

/// The command.
pub fn verify(tree: &Tree, options: &Verify, say: Say) -> anyhow::Result<()> {
    let _lock = tree.lock()?;
    let (text, _) = tree.read_manifest()?;
    let journal = tree.journal()?;
    let undone = journal.as_ref().is_some_and(|journal| journal.phase == Phase::Undoing);
    match whose(journal.as_ref(), &Digest::of(text.as_bytes())) {
        Whose::Ours if !undone => settle(tree, &options.checking, options.keep, say),
        Whose::Ours | Whose::Before => {
            bail!("a run was cut off; `patch` finishes it, `rollback` undoes it")
        }
        Whose::Untouched => {
            bail!("nanogpu is not in kube-scheduler's manifest; `patch` puts it there")
        }
        Whose::Others => bail!("{}", undoing::changed(tree)),
    }
}

/// Waits until kube-scheduler runs with our manifest; if it does not, everything is undone.
pub fn settle(tree: &Tree, checking: &Checking, keep: bool, say: Say) -> anyhow::Result<()> {
    let mut journal = tree.journal()?.context("the journal is gone")?;
    match looked(tree, checking, journal.served.clone(), say) {
        Ok(()) => {
            journal.phase = Phase::Verified;
            journal.served = None;
            tree.write_journal(&journal)?;
            say("kube-scheduler runs with nanogpu, and nanogpu-scheduler answers.");
            Ok(())
        }
        Err(why) if keep => Err(why),
        Err(why) => {
            say(&format!("It does not work: {why:#}. Rolling back."));
            let back = match undoing::undo(tree, Some(checking), say)? {
                None => "kube-scheduler runs as before".to_owned(),
                Some(ill) => format!("but kube-scheduler is still ill: {ill:#}"),
            };
            Err(anyhow!("rolled back, {back}; nanogpu was not put in because {why:#}"))
        }
    }
}

fn looked(tree: &Tree, checking: &Checking, old: Option<Digest>, say: Say) -> anyhow::Result<()> {
    waited(tree, checking, old)?;
    asked(tree, checking, say)
}

/// Waits until kube-scheduler is well, and is not the one with the certificate `old`.
pub fn waited(tree: &Tree, checking: &Checking, old: Option<Digest>) -> anyhow::Result<()> {
    let url = url(tree, checking)?;
    let started = Instant::now();
    let mut watch = Watch::new(old, Duration::from_secs(checking.steady));
    loop {
        let seen = probe::health(&url)?;
        let Verdict::Waiting(why) = watch.see(started.elapsed(), seen) else { return Ok(()) };
        ensure!(
            started.elapsed() < Duration::from_secs(checking.within),
            "{why} ({url}, after {} seconds)",
            checking.within
        );
        thread::sleep(PAUSE);
    }
}

/// The certificate that kube-scheduler serves with now, if it is well.
pub fn served(tree: &Tree, checking: &Checking) -> anyhow::Result<Option<Digest>> {
    match probe::health(&url(tree, checking)?)? {
        Seen::Well(certificate) => Ok(certificate),
        Seen::Ill(_) | Seen::Nothing(_) => Ok(None),
    }
}

/// Where kube-scheduler says how it is.
pub fn url(tree: &Tree, checking: &Checking) -> anyhow::Result<String> {
    match &checking.url {
        Some(url) => Ok(url.clone()),
        None => Ok(Manifest::read(&tree.read_manifest()?.0)?.health()),
    }
}

/// Asks nanogpu-scheduler with the files kube-scheduler has.
fn asked(tree: &Tree, checking: &Checking, say: Say) -> anyhow::Result<()> {
    let files = kept(tree)?;
    let config = files.get(CONFIG).context("kube-scheduler's configuration is gone")?;
    // In the operator's own configuration ours is the last extender.
    let mut config = yaml::read(&String::from_utf8_lossy(config))?;
    let ours = config["extenders"].as_array().and_then(|all| all.last().cloned());
    config["extenders"] = serde_json::json!([ours]);
    probe::extender(&config, &files, checking, say)
}

/// kube-scheduler's files as they are.
pub fn kept(tree: &Tree) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in CERTIFICATES.into_iter().chain([CONFIG]) {
        if let Some(bytes) = optional(&tree.settings().join(name))? {
            files.insert(name.to_owned(), bytes);
        }
    }
    Ok(files)
}

/// Whether all files are as planned.
pub fn are_kept(tree: &Tree, plan: &Plan) -> anyhow::Result<bool> {
    Ok(kept(tree)? == plan.files)
}
