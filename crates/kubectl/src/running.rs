//! The commands: what is asked of whom, and what is printed.

use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::CommandFactory as _;
use dialect::{MemoryUnit, Settings};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::{Cluster, said};
use crate::cordon::{self, Act};
use crate::doctor::{self, Level};
use crate::observed::Objects;
use crate::options::{Command, Form, Options};
use crate::output::structured;
use crate::reach::{AskError, Scheduler};
use crate::view::View;
use crate::why::{Around, Asker};
use crate::wire::Why;
use crate::{dashboard, gpushare, inspect, simulate, top, why};

/// A time that never comes: annotations of all systems are believed. What is shown is what they
/// say; nothing is decided by it.
const FOR_EVER: &str = "9999-12-31T23:59:59Z";

/// Does what was asked.
pub async fn run(options: Options, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    if let Command::Completion { shell } = &options.command {
        let mut script = Vec::new();
        let mut command = Options::command();
        clap_complete::generate(*shell, &mut command, "kubectl-nanogpu", &mut script);
        out.write_all(&script)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = Cluster::find(&options.place).await?;
    let asked = Asked { cluster, options };
    match &asked.options.command {
        Command::Top { plain, once, every } => {
            asked.top(*plain, *once, Duration::from_secs(*every), out).await?;
        }
        Command::Inspect { node, gpushare: true, details } => {
            out.write_all(asked.gpushare(node.as_deref(), *details).await?.as_bytes())?;
        }
        Command::Inspect { node, .. } => {
            out.write_all(asked.inspect(node.as_deref()).await?.as_bytes())?;
        }
        Command::Why { pod } => out.write_all(asked.why(pod).await?.as_bytes())?,
        Command::Simulate { filename } => {
            out.write_all(asked.simulate(filename).await?.as_bytes())?;
        }
        Command::Dashboard { port } => {
            dashboard::serve(&asked.cluster, &asked.options.place, *port, out).await?;
        }
        Command::Doctor => return asked.doctor(out).await,
        Command::Cordon { card } => {
            let done = cordon::change(&asked.cluster, card, Act::Cordon).await?;
            out.write_all(done.as_bytes())?;
        }
        Command::Uncordon { card } => {
            let done = cordon::change(&asked.cluster, card, Act::Uncordon).await?;
            out.write_all(done.as_bytes())?;
        }
        Command::Completion { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What was asked, and of which cluster.
struct Asked {
    cluster: Cluster,
    options: Options,
}

impl Asked {
    fn form(&self) -> Option<Form> {
        self.options.output
    }

    fn wide(&self) -> bool {
        self.form() == Some(Form::Wide)
    }

    async fn scheduler(&self) -> Result<Scheduler, AskError> {
        Scheduler::find(&self.cluster, &self.options.place).await
    }

    async fn top(
        &self,
        plain: bool,
        once: bool,
        every: Duration,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let drawn = !plain && !once && self.form().is_none() && std::io::stdout().is_terminal();
        let mut scheduler = None;
        if drawn {
            let (tell, seen) = watch::channel(None);
            let screen = tokio::task::spawn_blocking(move || top::run(&seen));
            let looking = async {
                loop {
                    let view =
                        self.view(&mut scheduler).await.map_err(|error| format!("{error:#}"));
                    if tell.send(Some(view)).is_err() {
                        break;
                    }
                    tokio::time::sleep(every).await;
                }
            };
            tokio::select! {
                outcome = screen => return outcome?,
                () = looking => return Ok(()),
            }
        }
        loop {
            let view = self.view(&mut scheduler).await?;
            let text = match structured(&view, self.form())? {
                Some(text) => text,
                None => top::page(&view),
            };
            out.write_all(text.as_bytes())?;
            if once || !plain {
                return Ok(());
            }
            out.write_all(b"\n")?;
            out.flush()?;
            tokio::time::sleep(every).await;
        }
    }

    async fn inspect(&self, node: Option<&str>) -> anyhow::Result<String> {
        let view = self.view(&mut None).await?;
        let view = match node {
            Some(name) => view.only(name).with_context(|| {
                format!("there is no node {name} with a card that nanogpu knows of")
            })?,
            None => view,
        };
        Ok(match structured(&view, self.form())? {
            Some(text) => text,
            None => inspect::page(&view, self.wide()),
        })
    }

    /// What the scheduler says; where it cannot be asked, what annotations say. It is remembered in
    /// `known`, and looked for anew when it is gone or our token is.
    async fn view(&self, known: &mut Option<Scheduler>) -> anyhow::Result<View> {
        let found = match known.take() {
            Some(scheduler) => Ok(scheduler),
            None => self.scheduler().await,
        };
        let because = match found {
            Ok(scheduler) => match scheduler_view(&scheduler).await {
                Ok(view) => {
                    *known = Some(scheduler);
                    return Ok(view);
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        let system = &self.options.place.system_namespace;
        let objects = Objects::list(&self.cluster, system)
            .await
            .map_err(|error| anyhow::anyhow!("{}", said(&error)))
            .with_context(|| {
                format!("the scheduler was not asked ({because}), nor can the cluster be")
            })?;
        let settings = believing(MemoryUnit::Gibibytes);
        let snapshot = objects.snapshot(&settings, jiff::Timestamp::now());
        Ok(View::of_snapshot(&snapshot, objects.waiting(&settings), because))
    }

    async fn gpushare(&self, node: Option<&str>, details: bool) -> anyhow::Result<String> {
        let system = &self.options.place.system_namespace;
        let objects = Objects::list(&self.cluster, system)
            .await
            .map_err(|error| anyhow::anyhow!("{}", said(&error)))?;
        let settings = believing(gpushare::unit(&objects));
        let snapshot = objects.snapshot(&settings, jiff::Timestamp::now());
        let mut nodes = gpushare::nodes(&objects, &settings, &snapshot);
        if let Some(name) = node {
            nodes.retain(|known| known.name == name);
            if nodes.is_empty() {
                bail!("there is no node {name} that offers gpushare's resource");
            }
        }
        Ok(if details { gpushare::details(&nodes) } else { gpushare::summary(&nodes) })
    }

    async fn why(&self, name: &str) -> anyhow::Result<String> {
        let namespace = &self.cluster.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod: Option<Value> = self
            .cluster
            .find_one(&path)
            .await
            .map_err(|error| anyhow::anyhow!("{}", said(&error)))?;
        let pod = pod.with_context(|| format!("there is no pod {namespace}/{name}"))?;
        let asker = Asker::new(&pod)?;
        let scheduler = match self.scheduler().await {
            Ok(scheduler) => scheduler,
            Err(error) => return self.told_by_pod(&asker, &error.to_string()),
        };
        let answer = match scheduler.get(&format!("/api/v1/why/{namespace}/{name}")).await {
            Ok(answer) => answer,
            Err(AskError::Refused { status: 404, error }) => {
                return Ok(format!("{}\n", why::not_ours(&asker, &error)));
            }
            Err(AskError::Refused { status: 403, error }) => bail!("{error}"),
            Err(error) => return self.told_by_pod(&asker, &error.to_string()),
        };
        if let Some(text) = structured(&answer, self.form())? {
            return Ok(text);
        }
        let answer: Why = serde_json::from_value(answer).context("the scheduler's answer")?;
        // Not everyone may see these; the story is told without them.
        let (cards, quotas) =
            futures::join!(list(&scheduler, "devices"), list(&scheduler, "quotas"));
        let around =
            Around { cards: cards.unwrap_or_default(), quotas: quotas.unwrap_or_default() };
        Ok(why::page(&asker, &answer, &around, self.wide()))
    }

    fn told_by_pod(&self, asker: &Asker, because: &str) -> anyhow::Result<String> {
        if matches!(self.form(), Some(Form::Json | Form::Yaml)) {
            bail!("the scheduler was not asked: {because}");
        }
        Ok(why::without_scheduler(asker, because))
    }

    async fn simulate(&self, filename: &Path) -> anyhow::Result<String> {
        let text = if filename == Path::new("-") {
            std::io::read_to_string(std::io::stdin())?
        } else {
            std::fs::read_to_string(filename)
                .with_context(|| format!("read {}", filename.display()))?
        };
        let pod = simulate::pod(&text, &self.cluster.namespace)?;
        let scheduler = self.scheduler().await.context("only the scheduler can tell")?;
        let answer = scheduler.post("/api/v1/simulate", pod.to_string()).await?;
        if let Some(text) = structured(&answer, self.form())? {
            return Ok(text);
        }
        let answer = serde_json::from_value(answer).context("the scheduler's answer")?;
        Ok(simulate::page(&pod, &answer))
    }

    async fn doctor(&self, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
        let now = jiff::Timestamp::now();
        let found = doctor::gather(&self.cluster, &self.options.place, now).await;
        let verdicts = doctor::judge(&found);
        let text = match structured(&verdicts, self.form())? {
            Some(text) => text,
            None => doctor::page(&verdicts),
        };
        out.write_all(text.as_bytes())?;
        let fails = verdicts.iter().any(|verdict| verdict.level == Level::Fail);
        Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn believing(gpushare_unit: MemoryUnit) -> Settings {
    Settings { took_over_at: Some(FOR_EVER.to_owned()), gpushare_unit, ..Settings::default() }
}

async fn scheduler_view(scheduler: &Scheduler) -> Result<View, AskError> {
    let (nodes, devices, shares, pods) = futures::join!(
        list(scheduler, "nodes"),
        list(scheduler, "devices"),
        list(scheduler, "shares"),
        list(scheduler, "pods"),
    );
    let mut hidden = Vec::new();
    let shares = unless_forbidden(shares, &mut hidden)?;
    let pods = unless_forbidden(pods, &mut Vec::new())?;
    let mut view = View::of_scheduler(nodes?, devices?, shares, pods);
    view.hidden = hidden;
    Ok(view)
}

/// Who may see cards but not pods sees cards.
fn unless_forbidden<T>(
    list: Result<Vec<T>, AskError>,
    hidden: &mut Vec<String>,
) -> Result<Vec<T>, AskError> {
    match list {
        Err(AskError::Refused { status: 403, error }) => {
            hidden.push(format!("Who holds the cards is not shown: {error}."));
            Ok(Vec::new())
        }
        other => other,
    }
}

async fn list<T: DeserializeOwned>(scheduler: &Scheduler, what: &str) -> Result<Vec<T>, AskError> {
    let answer = scheduler.get(&format!("/api/v1/{what}")).await?;
    serde_json::from_value(answer)
        .with_context(|| format!("the scheduler's list of {what}"))
        .map_err(AskError::Unreachable)
}
