//! What was found, judged.

use ledger::STALE_AFTER_MILLIS;
use model::names;

use super::{Cards, Found, Level, Node, Quota, Verdict};
use crate::numbers::counted;

/// The oldest kubelet with all guarantees.
const KUBELET: (u32, u32) = (1, 31);
/// Runtimes that read CDI, and since when.
const RUNTIMES: [(&str, (u32, u32)); 2] = [("containerd", (1, 7)), ("cri-o", (1, 28))];
/// How long a Lease of a leader may be silent, in milliseconds: the longest `--lease-seconds` in use.
const LEADER: u64 = 60_000;

/// Verdicts in the order in which one would mend things.
pub fn judge(found: &Found) -> Vec<Verdict> {
    let version = match &found.version {
        Ok(version) => ok("API server", version),
        Err(why) => {
            return vec![fail("API server", why, "check the kubeconfig and the context")];
        }
    };
    let mut verdicts = vec![version];
    verdicts.push(schedulers(found));
    verdicts.push(leader(found));
    verdicts.push(ready(found));
    verdicts.push(webhook(found));
    verdicts.push(policy(found));
    match &found.nodes {
        Ok(all) => verdicts.extend(nodes(all)),
        Err(why) => verdicts.push(fail("nodes", why, "you need the right to list nodes")),
    }
    verdicts.extend(found.quotas.iter().map(|(name, quota)| match quota {
        Quota::None => ok("quota", &format!("{name}: none, so there are no limits by it")),
        Quota::Sound => ok("quota", &format!("{name} can be read")),
        Quota::Broken(why) => fail(
            "quota",
            &format!("{name} cannot be read: {why}"),
            "mend the text; until then the last good one counts, and after a restart none",
        ),
        Quota::Unseen(why) => {
            warn("quota", &format!("{name}: {why}"), "you need the right to read it")
        }
    }));
    verdicts
}

fn schedulers(found: &Found) -> Verdict {
    let what = "scheduler pods";
    let space = &found.namespace;
    match &found.schedulers {
        Err(why) => warn(what, why, &format!("you need the right to list pods in {space}")),
        Ok(pods) if pods.is_empty() => warn(
            what,
            &format!("none labelled app.kubernetes.io/name=nanogpu-scheduler in {space}"),
            "install nanogpu, or say where it is with --system-namespace",
        ),
        Ok(pods) => {
            let down: Vec<&str> =
                pods.iter().filter(|(_, ready)| !ready).map(|(name, _)| name.as_str()).collect();
            let ready = pods.len() - down.len();
            let said = format!("{ready} of {} ready", pods.len());
            if down.is_empty() && ready > 1 {
                return ok(what, &said);
            }
            if down.is_empty() {
                return warn(
                    what,
                    &said,
                    "run two: with one, pods with cards wait while it restarts",
                );
            }
            let todo = format!("kubectl -n {space} describe pod {}", down.join(" "));
            if ready == 0 { fail(what, &said, &todo) } else { warn(what, &said, &todo) }
        }
    }
}

fn leader(found: &Found) -> Verdict {
    let what = "scheduler lease";
    match &found.leader {
        Err(why) => warn(what, why, "you need the right to read Leases there"),
        Ok(None) => fail(
            what,
            &format!("no Lease {}/nanogpu-scheduler", found.namespace),
            "no scheduler has led yet: see its log, and its right to write Leases",
        ),
        Ok(Some((holder, silence))) if *silence > LEADER => fail(
            what,
            &format!("held by {holder}, silent for {} s", silence / 1000),
            "no scheduler leads: pods with cards are not bound; see its log",
        ),
        Ok(Some((holder, _))) => ok(what, &format!("held by {holder}")),
    }
}

fn ready(found: &Found) -> Verdict {
    let what = "scheduler answers";
    match &found.ready {
        Ok((way, Ok(()))) => ok(what, &format!("ready, by {way}")),
        Ok((way, Err(why))) => fail(
            what,
            &format!("by {way}: {why}"),
            "it is starting or cannot see the cluster; see its log",
        ),
        Err(why) => fail(what, why, "see docs/kubectl.md, \"How the scheduler is reached\""),
    }
}

fn webhook(found: &Found) -> Verdict {
    let what = "webhook";
    match &found.webhook {
        Err(why) => warn(what, why, "you need the right to read webhook configurations"),
        Ok(None) => warn(
            what,
            "none",
            "install it (webhook.enabled of the chart), so that pods that can never run are refused at once",
        ),
        Ok(Some(false)) => fail(
            what,
            "no caBundle: the API server cannot call it",
            "start the scheduler with --api-address, and see its right to patch the webhook",
        ),
        Ok(Some(true)) => ok(what, "there, with a caBundle"),
    }
}

fn policy(found: &Found) -> Verdict {
    let what = "placement policy";
    let todo =
        "install it (policies.placement of the chart): without it tenants can write placements";
    match &found.policy {
        Err(why) => warn(what, why, "you need the right to read admission policies"),
        Ok((true, true)) => ok(what, "there, and bound"),
        Ok((true, false)) => fail(what, "there, but not bound", todo),
        Ok((false, _)) => fail(what, "none", todo),
    }
}

fn nodes(all: &[Node]) -> Vec<Verdict> {
    let ours: Vec<&Node> = all.iter().filter(|node| node.inventory.is_some()).collect();
    if ours.is_empty() {
        let todo = "run the agent on nodes with cards";
        let mut verdicts = vec![fail("agents", "no node has an inventory", todo)];
        verdicts.extend(strangers(all));
        return verdicts;
    }
    let mut verdicts = vec![agents(&ours)];
    verdicts.extend(strangers(all));
    verdicts.push(cards(&ours));
    verdicts.extend(processes(&ours));
    verdicts.push(kubelets(&ours));
    verdicts.push(runtimes(&ours));
    verdicts
}

fn agents(ours: &[&Node]) -> Verdict {
    let what = "agents";
    let is_silent = |node: &&&Node| node.silence.is_none_or(|ms| ms > STALE_AFTER_MILLIS);
    let silent: Vec<String> = ours
        .iter()
        .filter(is_silent)
        .map(|node| match node.silence {
            Some(silence) => format!("{} for {}", node.name, time(silence)),
            None => format!("{} (no Lease)", node.name),
        })
        .collect();
    if silent.is_empty() {
        return ok(what, &format!("{} heard within 40 s", counted(ours.len(), "node")));
    }
    let said = format!("{} of {} silent: {}", silent.len(), ours.len(), listed(&silent));
    let todo = "these nodes take nothing new; see the agent's pod there and its log";
    if silent.len() == ours.len() { fail(what, &said, todo) } else { warn(what, &said, todo) }
}

fn strangers(all: &[Node]) -> Option<Verdict> {
    let signs: Vec<String> = all
        .iter()
        .filter(|node| node.inventory.is_none())
        .filter_map(|node| Some(format!("{} ({})", node.name, node.sign.as_ref()?)))
        .collect();
    let todo = "run the agent there, or leave them to the other plugin";
    let said =
        format!("{} with cards but no agent: {}", counted(signs.len(), "node"), listed(&signs));
    (!signs.is_empty()).then(|| warn("nodes without agent", &said, todo))
}

fn cards(ours: &[&Node]) -> Verdict {
    let what = "cards";
    let broken: Vec<String> = ours
        .iter()
        .filter_map(|node| match &node.inventory {
            Some(Err(why)) => Some(format!("{}: {why}", node.name)),
            _ => None,
        })
        .collect();
    if !broken.is_empty() {
        let todo =
            "agent and scheduler are of different versions, or somebody edited the annotation";
        return fail(what, &format!("inventory cannot be read: {}", listed(&broken)), todo);
    }
    let counts = ours.iter().filter_map(|node| node.inventory.as_ref()?.as_ref().ok());
    let sum = counts.fold(Cards::default(), |sum, cards| Cards {
        all: sum.all + cards.all,
        sick: sum.sick + cards.sick,
        cordoned: sum.cordoned + cards.cordoned,
    });
    let said = format!("{} on {}", counted(sum.all, "card"), counted(ours.len(), "node"));
    if sum.sick + sum.cordoned == 0 {
        return ok(what, &format!("{said}, all in service"));
    }
    let said = format!("{said}; {} sick, {} cordoned", sum.sick, sum.cordoned);
    warn(what, &said, "kubectl nanogpu inspect shows which; events of the node say why")
}

/// Said only where something is wrong: agents that see have nothing to tell.
fn processes(ours: &[&Node]) -> Option<Verdict> {
    let is_blind = |node: &&&Node| node.lacks.iter().any(|lack| lack == names::PROCESSES);
    let blind: Vec<String> = ours.iter().filter(is_blind).map(|node| node.name.clone()).collect();
    let todo = "run it with hostPID (agent.hostPID of the chart) and the host's /proc; until then nobody is found who takes too much";
    let said = format!("the agent cannot see whose they are: {}", listed(&blind));
    (!blind.is_empty()).then(|| warn("processes on cards", &said, todo))
}

fn kubelets(ours: &[&Node]) -> Verdict {
    let what = "kubelets";
    let old = named(ours, |node| {
        numbers(&node.kubelet).is_some_and(|version| version < KUBELET).then_some(&node.kubelet)
    });
    if old.is_empty() {
        let unclear = named(ours, |node| numbers(&node.kubelet).is_none().then_some(&node.kubelet));
        if unclear.is_empty() {
            return ok(what, "all 1.31 or newer");
        }
        let said = format!("of no version that can be told: {}", listed(&unclear));
        return warn(what, &said, "see whether they are 1.31 or newer");
    }
    let todo = "upgrade them: before 1.31 nanogpu is tried by nobody and promises nothing";
    warn(what, &format!("older than 1.31: {}", listed(&old)), todo)
}

/// By what runtimes do, as agents see it; where none has done anything yet, by their versions.
fn runtimes(ours: &[&Node]) -> Verdict {
    let what = "container runtime";
    let told = |way: &str| {
        named(ours, |node| (node.devices_by.as_deref() == Some(way)).then_some(&node.runtime))
    };
    let (ignored, missed, folders) = (told("cdi-ignored"), told("cdi-missed"), told("folders"));
    if !ignored.is_empty() {
        let todo = "set enable_cdi = true in containerd's configuration and restart it, or agent.devicesBy=folders of the chart; no container with a GPU starts there";
        return fail(what, &format!("CDI is ignored: {}", listed(&ignored)), todo);
    }
    if !missed.is_empty() {
        let todo = "agent.cdiRoot of the chart must be one of the runtime's cdi_spec_dirs";
        let said = format!("specs are not found: {}", listed(&missed));
        return fail(what, &said, todo);
    }
    let ours: Vec<&Node> = ours
        .iter()
        .copied()
        .filter(|node| !matches!(node.devices_by.as_deref(), Some("cdi" | "folders")))
        .collect();
    let ours = ours.as_slice();
    let without =
        named(ours, |node| (reads_cdi(&node.runtime) == Some(false)).then_some(&node.runtime));
    if without.is_empty() && !folders.is_empty() {
        let said = format!("by folders and not by CDI: {}", listed(&folders));
        return warn(
            what,
            &said,
            "it works, but variables that depend on the pod are not set; enable CDI",
        );
    }
    if without.is_empty() {
        let unclear =
            named(ours, |node| reads_cdi(&node.runtime).is_none().then_some(&node.runtime));
        if unclear.is_empty() {
            let said = if ours.is_empty() {
                "all resolve CDI devices"
            } else {
                "all resolve CDI devices, or are of a version that can"
            };
            return ok(what, said);
        }
        let said = format!("not known to read CDI or not: {}", listed(&unclear));
        return warn(what, &said, "see whether they do: cards are handed out by CDI");
    }
    let todo = "containerd 1.7 or CRI-O 1.28 and newer hand out cards by CDI; for others set agent.devicesBy=folders of the chart";
    fail(what, &format!("no CDI: {}", listed(&without)), todo)
}

/// Nodes of which something is to be said, with it.
fn named<'a>(ours: &[&'a Node], what: impl Fn(&'a Node) -> Option<&'a String>) -> Vec<String> {
    let one =
        |node: &&'a Node| Some(format!("{} {}", node.name, what(node)?).trim_end().to_owned());
    ours.iter().filter_map(one).collect()
}

/// Whether a runtime reads CDI, as far as that is known.
fn reads_cdi(runtime: &str) -> Option<bool> {
    let (name, version) = runtime.split_once("://")?;
    if name == "docker" {
        return Some(false);
    }
    let (_, since) = RUNTIMES.iter().find(|(known, _)| *known == name)?;
    Some(numbers(version)? >= *since)
}

/// The first two numbers of `v1.31.2` or `1.7.0-rc1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let number = |part: &str| {
        let digits = part.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    Some((number(parts.next()?)?, number(parts.next()?)?))
}

/// The first few, and how many more.
fn listed(all: &[String]) -> String {
    const MOST: usize = 5;
    let shown = all.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if all.len() > MOST { format!("{shown} and {} more", all.len() - MOST) } else { shown }
}

fn time(millis: u64) -> String {
    match millis / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn ok(what: &'static str, found: &str) -> Verdict {
    Verdict { level: Level::Ok, what, found: found.to_owned(), todo: None }
}

fn warn(what: &'static str, found: &str, todo: &str) -> Verdict {
    let todo = Some(todo.to_owned());
    Verdict { level: Level::Warn, what, found: found.to_owned(), todo }
}

fn fail(what: &'static str, found: &str, todo: &str) -> Verdict {
    Verdict { level: Level::Fail, ..warn(what, found, todo) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(runtime: &str, devices_by: Option<&str>) -> Node {
        Node {
            name: "n".into(),
            kubelet: "v1.36.3".into(),
            runtime: runtime.into(),
            devices_by: devices_by.map(str::to_owned),
            lacks: Vec::new(),
            inventory: None,
            silence: Some(0),
            sign: None,
        }
    }

    #[test]
    fn what_a_runtime_does_counts_more_than_its_version() {
        let old = "containerd://1.6.33";
        let new = "containerd://2.1.9";
        for (runtime, told, level) in [
            (old, None, Level::Fail),
            (old, Some("untried"), Level::Fail),
            (old, Some("cdi"), Level::Ok),
            (old, Some("folders"), Level::Warn),
            (new, None, Level::Ok),
            (new, Some("cdi-ignored"), Level::Fail),
            (new, Some("cdi-missed"), Level::Fail),
        ] {
            let found = runtimes(&[&node(runtime, told)]);
            assert_eq!(found.level, level, "{runtime} {told:?}: {found:?}");
        }
    }

    #[test]
    fn versions_are_told_apart() {
        assert_eq!(numbers("v1.31.2"), Some((1, 31)));
        assert_eq!(numbers("1.28+k3s1"), Some((1, 28)));
        assert_eq!(numbers("unknown"), None);
        let reads: Vec<Option<bool>> =
            ["containerd://2.1.9", "cri-o://1.28.0", "containerd://1.6.33", "docker://26.1.0", ""]
                .map(reads_cdi)
                .into();
        assert_eq!(reads, [Some(true), Some(true), Some(false), Some(false), None]);
    }
}
