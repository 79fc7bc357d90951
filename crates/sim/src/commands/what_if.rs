//! `what-if`: a snapshot of a cluster, and a change to think through.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use model::{NodeName, PolicyName, Request};
use placement::Policy;

use crate::exported::Exported;
use crate::table::{Table, grouped_u64};
use crate::trace;
use crate::what_if::{Answer, Change, Outcome, State, answer};

#[derive(Debug, clap::Args)]
#[command(after_long_help = FORMAT)]
pub(super) struct WhatIf {
    /// The snapshot, as JSON (--help shows its form)
    #[arg(long, value_name = "FILE")]
    snapshot: PathBuf,
    /// By which policies pods are placed, with commas between them
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "stranding",
        value_parser = policy
    )]
    policy: Vec<PolicyName>,
    /// What if there were so many nodes more
    #[arg(
        long,
        value_name = "N",
        requires = "like",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    add_nodes: Option<u32>,
    /// Like which node
    #[arg(long, value_name = "NODE", requires = "add_nodes", value_parser = node)]
    like: Option<NodeName>,
    /// What if this node were drained
    #[arg(long, value_name = "NODE", value_parser = node)]
    drain: Option<NodeName>,
    /// What if these pods came too, as CSV like that of replay
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const FORMAT: &str = r#"A snapshot:
  {"version": 1,
   "nodes": [{"name": "gpu-1", "cpuMilli": 96000, "memoryMiB": 393216,
              "inventory": "<the text of nano-gpu/inventory>",
              "pods": [{"namespace": "a", "name": "p", "uid": "u", "cpuMilli": 4000,
                        "memoryMiB": 8192, "placement": "<the text of nano-gpu/placement>"}]}],
   "pending": [{"namespace": "a", "name": "q", "uid": "v", "cpuMilli": 1000, "memoryMiB": 2048,
                "requests": [{"container": "main", "cards": 1, "cores": 30, "memoryMiB": 4096}],
                "models": ["A100", "H100"]}]}
A request without cores and memory is for whole cards. A pod on a node may have requests and models
too; else, if its node is drained, it asks for what its placement says, of any model."#;

/// Of a long list of pods, how many are shown.
const SHOWN: usize = 20;

impl WhatIf {
    pub(super) fn run(&self, out: &mut impl Write) -> Result<()> {
        let file = self.snapshot.display();
        let text = std::fs::read_to_string(&self.snapshot)
            .with_context(|| format!("cannot read the snapshot in {file}"))?;
        let mut exported =
            Exported::parse(&text).with_context(|| format!("{file} is not a snapshot"))?;
        if let Some(path) = &self.pods {
            exported.pending.extend(trace::pods(path)?.into_iter().map(|pod| pod.request));
        }
        let change =
            Change { add: self.add_nodes.zip(self.like.clone()), drain: self.drain.clone() };
        let answer = |policy: &PolicyName| answer(&exported, &change, Policy::both(*policy));
        let answers: Vec<Answer> = self.policy.iter().map(answer).collect::<Result<_>>()?;
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &answers)?;
            writeln!(out)?;
            return Ok(());
        }
        let pods: usize = exported.running.values().map(Vec::len).sum();
        let (pods, waiting) =
            (grouped_u64(pods as u64), grouped_u64(exported.pending.len() as u64));
        writeln!(out, "{file}: {pods} pods on nodes, {waiting} pending")?;
        for node in &exported.nodes {
            if let Some(problem) = &node.problem {
                writeln!(out, "node {} takes nothing new: {}", node.name, said(problem))?;
            }
        }
        for answer in &answers {
            write!(out, "\n{}", self.tell(answer, &exported.pending))?;
        }
        Ok(())
    }

    fn tell(&self, answer: &Answer, pending: &[Request]) -> String {
        let mut table = Table::default();
        let headings = ["nodes", "cards", "compute", "memory", "fragmented", "pending that fit"];
        let headings = headings.map(str::to_owned);
        table.row([format!("policy {}", answer.policy)].into_iter().chain(headings));
        table.row(row("now", &answer.now, pending.len()));
        if let Some(changed) = &answer.changed {
            table.row(row(&self.wish(), changed, pending.len()));
        }
        let mut text = table.render();
        if let Some(name) = &self.drain {
            let (fit, all) = (placed(&answer.drained), answer.drained.len());
            let _ = writeln!(text, "\nOf the pods on {name}, {fit} of {all} find another place.");
            text.push_str(&list(&answer.drained));
        }
        let refused: Vec<Outcome> =
            answer.pending.iter().filter(|o| o.refused.is_some()).cloned().collect();
        if !refused.is_empty() {
            let then = if answer.changed.is_some() { ", even so" } else { "" };
            let _ = writeln!(text, "\n{} pending{then}.", pods_stay(refused.len()));
            text.push_str(&list(&refused));
        }
        text
    }

    /// The change in a few words.
    fn wish(&self) -> String {
        let added = self.add_nodes.zip(self.like.as_ref());
        let added = added.map(|(count, like)| format!("{count} more like {like}"));
        let drained = self.drain.as_ref().map(|name| format!("without {name}"));
        added.into_iter().chain(drained).collect::<Vec<_>>().join(", ")
    }
}

fn row(name: &str, state: &State, pending: usize) -> Vec<String> {
    vec![
        name.to_owned(),
        grouped_u64(state.nodes as u64),
        grouped_u64(state.cards as u64),
        format!("{:.1} %", state.allocated),
        format!("{:.1} %", state.memory),
        format!("{:.1} %", state.fragmented),
        format!("{} of {pending}", state.fit),
    ]
}

fn pods_stay(count: usize) -> String {
    if count == 1 { "1 pod stays".to_owned() } else { format!("{count} pods stay") }
}

fn placed(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.node.is_some()).count()
}

fn list(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().take(SHOWN).map(|o| o.pod.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for outcome in outcomes.iter().take(SHOWN) {
        let fate = match (&outcome.node, &outcome.refused) {
            (Some(node), _) => format!("to {node}"),
            (None, why) => format!("nowhere: {}", why.as_deref().unwrap_or("no reason")),
        };
        let _ = writeln!(text, "  {:<width$}  {fate}", outcome.pod);
    }
    if outcomes.len() > SHOWN {
        let _ = writeln!(text, "  and {} more", outcomes.len() - SHOWN);
    }
    text
}

fn said(problem: &model::Problem) -> &str {
    match problem {
        model::Problem::Inventory(why) | model::Problem::Holder(why) => why,
    }
}

fn node(text: &str) -> Result<NodeName> {
    Ok(NodeName::parse(text)?)
}

fn policy(text: &str) -> Result<PolicyName> {
    PolicyName::parse(text.trim()).with_context(|| {
        let known: Vec<&str> = PolicyName::ALL.map(PolicyName::as_str).to_vec();
        format!("there is no such policy; known are {}", known.join(", "))
    })
}
