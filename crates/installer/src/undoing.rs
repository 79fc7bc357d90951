//! `rollback`: the manifest as it was, to the byte, and nothing of ours left. `status`: how things
//! stand.

use anyhow::{Context as _, bail, ensure};

use crate::Say;
use crate::faults::{Point, reached};
use crate::journal::{Digest, Journal, Phase, Whose, whose};
use crate::manifest::Manifest;
use crate::options::{Checking, Rollback};
use crate::tree::{Tree, optional};
use crate::verifying::{served, waited};

/// The command.
pub fn rollback(tree: &Tree, options: &Rollback, say: Say) -> anyhow::Result<()> {
    let _lock = tree.lock()?;
    let (text, _) = tree.read_manifest()?;
    let journal = tree.journal()?;
    let ours = || Manifest::read(&text).is_ok_and(|manifest| manifest.is_ours());
    let look = (!options.no_verify).then_some(&options.checking);
    let ill = match whose(journal.as_ref(), &Digest::of(text.as_bytes())) {
        Whose::Untouched if ours() => bail!(
            "the manifest names nanogpu's configuration, but what it was before is not kept; take `--config` and the volume out of it by hand"
        ),
        Whose::Untouched => {
            tree.remove_settings()?;
            tree.forget()?;
            say("nanogpu is not in kube-scheduler's manifest; nothing to undo.");
            return Ok(());
        }
        Whose::Others if !ours() => {
            say("Somebody has written the manifest anew, without nanogpu; it is left as it is.");
            clean(tree)?;
            return Ok(());
        }
        Whose::Others if !options.force => bail!("{}", changed(tree)),
        Whose::Others => {
            tree.write(&tree.given_up(), text.as_bytes())?;
            say(&format!("The changed manifest is kept in {}.", tree.given_up().display()));
            undo(tree, look, say)?
        }
        Whose::Ours => undo(tree, look, say)?,
        Whose::Before => {
            clean(tree)?;
            say("The manifest was as it had been before nanogpu; the rest is gone now too.");
            return Ok(());
        }
    };
    match ill {
        Some(ill) => Err(ill.context("the manifest is as it was, but kube-scheduler is not well")),
        None if look.is_some() => {
            say("kube-scheduler runs as before.");
            Ok(())
        }
        None => Ok(()),
    }
}

/// Why nothing is done to a manifest that somebody changed.
pub(crate) fn changed(tree: &Tree) -> String {
    format!(
        "{0} was changed by somebody since nanogpu was put in, and their change would be lost. \
         `nanogpu-install rollback --force` restores {1} and keeps the changed one beside it; \
         make the change again there, then `patch`",
        tree.manifest().display(),
        tree.backup().display()
    )
}

/// The manifest before, if it is what it was.
pub(crate) fn backup(tree: &Tree, journal: &Journal) -> anyhow::Result<String> {
    let path = tree.backup();
    let bytes = optional(&path)?.with_context(|| format!("{} is gone", path.display()))?;
    ensure!(
        Digest::of(&bytes) == journal.before,
        "{} is not what was kept there; the manifest is left alone",
        path.display()
    );
    String::from_utf8(bytes).with_context(|| format!("{} is damaged", path.display()))
}

/// Puts the manifest back, whatever it is now, and removes all of ours. What is said back is why
/// kube-scheduler is not well afterwards, if somebody is to look.
pub(crate) fn undo(
    tree: &Tree,
    look: Option<&Checking>,
    say: Say,
) -> anyhow::Result<Option<anyhow::Error>> {
    let mut journal = tree.journal()?.context("the journal is gone")?;
    let before = backup(tree, &journal)?;
    let (_, about) = tree.read_manifest()?;
    let old = look.map(|checking| served(tree, checking)).transpose()?.flatten();
    journal.phase = Phase::Undoing;
    tree.write_journal(&journal)?;
    reached(Point::Undoing);
    tree.replace_manifest(before.as_bytes(), &about)?;
    reached(Point::Restored);
    say(&format!("{} is as it was before nanogpu.", tree.manifest().display()));
    // Its files go last: until the kubelet has seen the manifest it may start the old one once more, and
    // containerd makes the folder anew for that.
    let ill = look.and_then(|checking| waited(tree, checking, old).err());
    clean(tree)?;
    Ok(ill)
}

/// Goes on with a rollback that was cut off.
pub(crate) fn finish(tree: &Tree, say: Say) -> anyhow::Result<()> {
    let (text, _) = tree.read_manifest()?;
    match whose(tree.journal()?.as_ref(), &Digest::of(text.as_bytes())) {
        Whose::Ours => undo(tree, None, say).map(drop),
        Whose::Others if Manifest::read(&text)?.is_ours() => bail!("{}", changed(tree)),
        Whose::Untouched | Whose::Before | Whose::Others => clean(tree),
    }
}

fn clean(tree: &Tree) -> anyhow::Result<()> {
    tree.remove_settings()?;
    reached(Point::Cleaned);
    tree.forget()
}

/// How things stand, in a sentence or two.
pub fn status(tree: &Tree) -> anyhow::Result<String> {
    let (text, _) = tree.read_manifest()?;
    let journal = tree.journal()?;
    let ours = Manifest::read(&text).is_ok_and(|manifest| manifest.is_ours());
    let stands = whose(journal.as_ref(), &Digest::of(text.as_bytes()));
    let Some(journal) = journal else {
        return Ok(if ours {
            "patched, but not by a run whose journal is here: what the manifest was before is not known.".into()
        } else {
            "not patched: kube-scheduler runs as kubeadm set it up.".into()
        });
    };
    let backup = tree.backup();
    let backup = backup.display();
    Ok(match (stands, journal.phase) {
        (Whose::Others, _) if ours => changed(tree),
        (Whose::Others, _) => {
            "not patched: somebody has written the manifest anew since, as kubeadm does when it upgrades; `patch` puts nanogpu in again.".into()
        }
        (Whose::Before, _) => {
            "not patched: a run was cut off; `patch` finishes it, `rollback` undoes it.".into()
        }
        (_, Phase::Verified) => {
            format!("patched: kube-scheduler ran with nanogpu when it was last looked at. The manifest before is in {backup}.")
        }
        (_, Phase::Patched) => {
            format!("patched, not verified: `verify` looks whether kube-scheduler runs with it. The manifest before is in {backup}.")
        }
        (_, Phase::Patching | Phase::Undoing) => {
            format!("patched: a run was cut off; `patch` finishes it, `rollback` undoes it. The manifest before is in {backup}.")
        }
    })
}
