//! The wall clock of nanogpu-scheduler's machine is set back, and far forward, while it works.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::bed::{Bed, NAMESPACE, NODES, Scheduler, names, percent};

/// A clock that is wrong by as much as we say.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    fn new(folder: &Path) -> Result<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scheduling/clock.c");
        let library = folder.join("clock.so");
        let compile = ["-O1", "-Wall", "-shared", "-fPIC", "-o"];
        let done = Command::new("cc").args(compile).arg(&library).arg(source).status()?;
        ensure!(done.success(), "cc {source}");
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// In place: the program has the file mapped.
    fn set(&self, seconds: i64) -> Result<()> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.file)?;
        Ok(file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}

/// Waits until the leader's Lease was renewed by a clock that is wrong by so much.
async fn lives_by(bed: &Bed, seconds: i64) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(bed.session.client(), NAMESPACE);
    let started = Instant::now();
    loop {
        let lease = leases.get("nanogpu-scheduler").await?;
        let renewed = lease.spec.and_then(|spec| spec.renew_time).context("never renewed")?.0;
        let wrong = renewed.as_second() - Timestamp::now().as_second();
        if wrong.abs_diff(seconds) < 60 {
            return Ok(());
        }
        ensure!(
            started.elapsed() < Duration::from_secs(20),
            "the clock is {wrong} s off, not {seconds}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn answers(scheduler: &Scheduler, path: &str, text: &str) -> Result<String> {
    let (status, body) = scheduler.get(path).await?;
    ensure!(status == 200 && body.contains(text), "{path}: {status} {body}");
    Ok(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_changes_nothing() -> Result<()> {
    let bed = Bed::new().await?;
    let folder = tempfile::tempdir()?;
    let clock = Clock::new(folder.path())?;
    let env = [("LD_PRELOAD", clock.library.as_path()), ("STORY_CLOCK", &clock.file)];
    let scheduler = Scheduler::start_in(bed.cluster, &env)?;
    bed.point_at(&scheduler);
    scheduler.ready().await?;
    let hour = 3600;
    for (turn, wrong) in [0, -hour, 30 * hour, 0].into_iter().enumerate() {
        clock.set(wrong)?;
        lives_by(&bed, wrong).await.with_context(|| format!("a clock that is {wrong} s off"))?;
        let namespace = bed.session.namespace(&format!("clock-{turn}")).await?;
        // Who waits is woken, and bound.
        for node in names() {
            bed.inventory(&node, "sick").await?;
        }
        bed.create(&namespace, &percent("waits", 50)).await?;
        bed.told(&namespace, "waits", "no card in service").await?;
        let why = scheduler.why(&namespace, "waits").await?.to_string();
        ensure!(why.contains("no card in service"), "{why}");
        bed.inventory(&names()[turn], "healthy").await?;
        bed.bound(&namespace, "waits").await?;
        // It leads still, agents are heard still, and nothing it shows is broken by the time.
        answers(&scheduler, "/metrics", "nanogpu_scheduler_leader 1").await?;
        let nodes = answers(&scheduler, "/api/v1/nodes", "fresh").await?;
        ensure!(nodes.matches("\"fresh\"").count() == NODES, "{nodes}");
        for path in ["/readyz", "/api/v1/history", "/api/v1/decisions", "/dashboard/"] {
            answers(&scheduler, path, "").await?;
        }
        ensure!(bed.nothing_sold_twice().await? == 1, "one pod is bound");
        bed.delete(&namespace, "waits").await?;
    }
    Ok(())
}
