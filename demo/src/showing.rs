//! What nanogpu does, act by act. Each act shows something and checks that it was so.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use comfy_table::{Table, presets};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use model::codec::{decode_inventory, decode_placement};
use model::{Inventory, Portion};
use testbed::{Cluster, Session};
use tokio::runtime::Runtime;

use crate::installing::{Tools, until};
use crate::nodes::{Machines, SHARED};
use crate::pods::{ENDED, SAMPLES, WRONG, greedy, tenant};
use crate::telling::{Teller, bar};

/// Where the pods are.
pub(crate) const NAMESPACE: &str = "demo";
/// The two that want all of a card's compute, and what they may have.
const TENANTS: [(&str, u32); 2] = [("thirty", 30), ("fifty", 50)];
/// The one that wants more memory than it may have.
const HUNGRY: (&str, u32, &str) = ("hungry", 10, "--memory 4GiB");
/// How long the card is watched.
const WATCHED: Duration = Duration::from_secs(8);

/// The stage.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) session: Session,
    pub(crate) runtime: Runtime,
    pub(crate) tools: Tools,
    pub(crate) machines: Machines<'a>,
}

impl Stage<'_> {
    /// Pods of every dialect, each on cards of its own.
    pub(crate) fn dialects(&self, teller: &mut Teller) -> anyhow::Result<()> {
        teller.act("Pods written for other systems, as they are");
        teller.step("creating the namespace demo", || self.namespace())?;
        teller.step("starting three tenants of one card, for later", || self.tenants())?;
        let doing = format!("starting {} pods", SAMPLES.len());
        teller.step(&doing, || {
            for sample in &SAMPLES {
                self.tools.apply(NAMESPACE, &sample.pod()?)?;
            }
            for sample in &SAMPLES {
                self.runtime.block_on(self.session.running(NAMESPACE, sample.name))?;
            }
            Ok(())
        })?;
        println!();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["POD", "WRITTEN FOR", "ASKS FOR", "SITS ON"]);
        for sample in &SAMPLES {
            let seat = self.seat(sample.name)?;
            table.add_row([
                sample.name.to_owned(),
                sample.written_for.to_owned(),
                sample.asks()?,
                seat,
            ]);
        }
        // Without the table's own margin.
        let lines = table
            .to_string()
            .lines()
            .map(|line| line.trim_start().to_owned() + "\n")
            .collect::<String>();
        teller.shown(&lines);
        // Without --once it is a live page.
        teller.command("kubectl nanogpu top --once");
        let top = self.tools.kubectl(&["nanogpu", "top", "--once"])?;
        teller.shown(&top);
        for name in SAMPLES.iter().map(|sample| sample.name) {
            ensure!(
                top.contains(&format!("{NAMESPACE}/{name}")),
                "top does not show {name}:\n{top}"
            );
        }
        Ok(())
    }

    /// A pod that waits, and why.
    pub(crate) fn waiting(&self, teller: &mut Teller) -> anyhow::Result<()> {
        teller.act("A pod that waits, and why");
        teller.say("It wants four whole T4. There are four, but others sit on them.");
        self.tools.apply(NAMESPACE, &greedy())?;
        let why = ["nanogpu", "why", "-n", NAMESPACE, "four-t4"];
        let mut told = String::new();
        until("the pod four-t4 does not wait", || {
            told = self.tools.kubectl(&why)?;
            Ok(told.contains("waits"))
        })?;
        teller.command("kubectl nanogpu why -n demo four-t4");
        teller.shown(&told);
        for part in [SHARED, "T4"] {
            ensure!(told.contains(part), "why does not say {part}:\n{told}");
        }
        Ok(())
    }

    /// A pod that can never run is refused when it is created.
    pub(crate) fn refused(&self, teller: &mut Teller) -> anyhow::Result<()> {
        teller.act("A pod that can never run is refused at once");
        teller.command(&format!("kubectl apply -n demo -f {WRONG}"));
        let told = self.tools.refusal(&["apply", "-n", NAMESPACE, "-f", WRONG])?;
        teller.wrapped(&told);
        let sentence = "tencent.com/vcuda-core is 150";
        ensure!(told.contains(sentence), "it was refused for another reason: {told}");
        Ok(())
    }

    /// A tenant that wants more memory than it was given.
    pub(crate) fn memory(&self, teller: &mut Teller) -> anyhow::Result<()> {
        teller.act("A tenant at its memory limit");
        let (name, ..) = HUNGRY;
        let limit = self.held(name)?;
        let said = self.says(name, ENDED)?;
        teller.say(&format!("It was given {limit} MiB of the card, and its program wants 4 GiB."));
        teller.command("kubectl logs -n demo hungry");
        teller.shown(&said);
        let stopped = "cannot hold the memory: out of memory";
        ensure!(said.contains(stopped), "it was not stopped at its limit: {said}");
        Ok(())
    }

    /// Two tenants that want everything get what they were promised.
    pub(crate) fn compute(&self, teller: &mut Teller) -> anyhow::Result<()> {
        teller.act("Two tenants of one card, 30 and 50 percent");
        teller.say("Both keep the card busy without a pause. What the card itself counts:");
        let mut pids = Vec::new();
        for (name, _) in TENANTS {
            let pod = self.runtime.block_on(self.session.running(NAMESPACE, name))?;
            pids.push(self.cluster.processes_of(&container(&pod)?)?);
        }
        let doing = format!("watching the card for {} s", WATCHED.as_secs());
        let look = || -> anyhow::Result<Vec<(u64, u64)>> {
            pids.iter().map(|pids| self.machines.busy(SHARED, pids)).collect()
        };
        let (before, after) = teller.step(&doing, || {
            let before = look()?;
            std::thread::sleep(WATCHED);
            Ok((before, look()?))
        })?;
        println!();
        for (((name, share), (busy, then)), (busy_now, now)) in
            TENANTS.into_iter().zip(before).zip(after)
        {
            let got = 100.0 * float(busy_now - busy) / float(now - then);
            let share = f64::from(share);
            teller.say(&format!("{name:<7} promised {share:>2} %   {} {got:>5.1} %", bar(got)));
            // Wide below, for a machine that is slow to launch. Without limits each would have half.
            ensure!(
                got <= share + 3.0 && got >= share * 0.7,
                "{name} was promised {share} percent and had {got:.1}"
            );
        }
        Ok(())
    }

    /// The two that share a card's compute; when they are at work, the one that meets its limit of
    /// memory. One after the other, so that what each finds is the same every time.
    fn tenants(&self) -> anyhow::Result<()> {
        let card = self.shared_card()?;
        for (name, percent) in TENANTS {
            let pod = tenant(name, percent, &card, "--memory 1GiB --busy 100%");
            self.tools.apply(NAMESPACE, &pod)?;
        }
        for (name, _) in TENANTS {
            self.says(name, "through libcuda.so.1")?;
        }
        let (name, percent, wants) = HUNGRY;
        self.tools.apply(NAMESPACE, &tenant(name, percent, &card, wants))?;
        self.says(name, ENDED).map(drop)
    }

    /// What a pod said, once it has said `words`.
    fn says(&self, pod: &str, words: &str) -> anyhow::Result<String> {
        self.runtime.block_on(self.session.running(NAMESPACE, pod))?;
        let enough = |said: &str| said.contains(words);
        self.runtime.block_on(self.session.says(NAMESPACE, pod, "main", enough))
    }

    fn namespace(&self) -> anyhow::Result<()> {
        let namespace = serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
        });
        self.tools.apply(NAMESPACE, &namespace)?;
        until("the namespace demo has no account for pods", || {
            Ok(self.tools.kubectl(&["-n", NAMESPACE, "get", "serviceaccount", "default"]).is_ok())
        })
    }

    fn inventory(&self, node: &str) -> anyhow::Result<Inventory> {
        let path = "jsonpath={.metadata.annotations.nano-gpu/inventory}";
        let text = self.tools.kubectl(&["get", "node", node, "-o", path])?;
        decode_inventory(&text).with_context(|| format!("the inventory of {node}"))
    }

    /// The last card of the node that the tenants share.
    fn shared_card(&self) -> anyhow::Result<String> {
        let inventory = self.inventory(SHARED)?;
        Ok(inventory.devices.last().context("a card")?.id.to_string())
    }

    fn placement(&self, pod: &str) -> anyhow::Result<model::Placement> {
        let path = "jsonpath={.metadata.annotations.nano-gpu/placement}";
        let text = self.tools.kubectl(&["-n", NAMESPACE, "get", "pod", pod, "-o", path])?;
        decode_placement(&text).with_context(|| format!("the placement of {pod}"))
    }

    /// The cards of a pod, as `kubectl nanogpu cordon` calls them.
    fn seat(&self, pod: &str) -> anyhow::Result<String> {
        let placement = self.placement(pod)?;
        let node = placement.node().as_str();
        let inventory = self.inventory(node)?;
        let mut seats: Vec<String> = Vec::new();
        for grant in placement.containers().iter().flat_map(|container| &container.grants) {
            let device = inventory.devices.iter().find(|device| device.id == grant.device);
            let index =
                device.with_context(|| format!("{pod} has a card that {node} has not"))?.index;
            seats.push(format!("{node}/{index}"));
        }
        seats.sort();
        seats.dedup();
        Ok(seats.join(" "))
    }

    /// How much memory a pod was given, in MiB.
    fn held(&self, pod: &str) -> anyhow::Result<u64> {
        let placement = self.placement(pod)?;
        let mut grants = placement.containers().iter().flat_map(|container| &container.grants);
        match grants.next().context("a card")?.portion {
            Portion::Share(share) => Ok(share.memory.0),
            Portion::Whole => anyhow::bail!("{pod} has a whole card"),
        }
    }
}

fn container(pod: &Pod) -> anyhow::Result<String> {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let id = status.and_then(|all| all.first()?.container_id.as_ref());
    let id = id.with_context(|| format!("{} has no container", pod.name_any()))?;
    Ok(id.replace("containerd://", ""))
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn float(nanoseconds: u64) -> f64 {
    nanoseconds as f64
}
