//! The chart before anybody installs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::{Binaries, Program, Progress};

use crate::bed::{Bed, SYSTEM, helm, told};
use crate::schemas;

/// Everything that can be turned on.
const ALL: &str = "namespace.create=true,dialects={nano-gpu,aliyun.com,hami,vgpu-manager},\
    image.registry=localhost,image.pullSecrets[0].name=x,tookOverAt=2026-01-02T03:04:05Z,\
    quotas.team-a.models.A100.cards=8,quotas.team-a.others=refused,certManager.enabled=true,\
    scheduler.devicePolicy=binpack,scheduler.allowPrivileged=true,scheduler.verbsClusterIP=10.96.0.50,\
    scheduler.extraEnv[0].name=A,scheduler.extraEnv[0].value=b,scheduler.nodeSelector.a=b,\
    agent.evict=true,agent.originalMetrics=true,agent.hostPID=true,agent.vcudaRoot=/etc/gpu-manager/vm,agent.devRoot=/dev,\
    agent.runtimeClassName=nvidia,agent.podAnnotations.a=b,agent.podLabels.a=b,\
    webhook.excludedNamespaces={other},monitoring.serviceMonitor.enabled=true,\
    monitoring.serviceMonitor.labels.release=prometheus,monitoring.rules.enabled=true,\
    monitoring.dashboards.enabled=true,networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b";

/// Each way to render it, by name.
fn ways() -> [(&'static str, Vec<String>); 4] {
    let set = |values: &str| vec!["--set".to_owned(), values.replace(' ', "")];
    [
        ("second", vec![]),
        ("default", set("scheduler.mode=default")),
        ("second, all on", set(ALL)),
        ("default, all on", set(&format!("{ALL},scheduler.mode=default"))),
    ]
}

fn rendered(words: &[String]) -> Result<String> {
    testbed::rendered(&helm()?, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn helm_finds_nothing_to_complain_of() -> Result<()> {
    let chart = testbed::chart();
    for (_, words) in ways() {
        let mut command = Command::new(helm()?);
        command.arg("lint").arg("--strict").arg(&chart).args(words);
        let said = told(&format!("{command:?}"), &command.output()?)?;
        ensure!(!said.contains("[WARNING]") && !said.contains("[ERROR]"), "{said}");
    }
    Ok(())
}

#[test]
fn values_that_mean_nothing_are_refused() -> Result<()> {
    for (wrong, why) in [
        ("scheduler.mode=third", "/scheduler/mode"),
        ("agent.driverRoot=relative", "/agent/driverRoot"),
        ("agnet.evict=true", "agnet"),
        ("dialects={nvidia}", "/dialects/0"),
        ("memoryUnit=MB", "/memoryUnit"),
        ("quotas.team.models.A100.crads=8", "crads"),
    ] {
        let error = rendered(&["--set".to_owned(), wrong.to_owned()]).unwrap_err().to_string();
        ensure!(error.contains(why), "{wrong}: {error}");
    }
    Ok(())
}

#[test]
fn rendering_twice_gives_the_same() -> Result<()> {
    for (way, words) in ways() {
        ensure!(rendered(&words)? == rendered(&words)?, "{way}");
    }
    Ok(())
}

#[test]
fn the_plain_manifests_are_what_the_chart_gives() -> Result<()> {
    for (file, text) in testbed::manifests(&mut Progress::new())? {
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        ensure!(there == text, "{} is stale; run `cargo xtask cluster manifests`", file.display());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_and_kubeconform_take_every_object_and_no_unknown_field() -> Result<()> {
    let bed = Bed::new().await?;
    for crd in crds()? {
        bed.kubectl(&["apply", "--server-side", "-f", &crd.display().to_string()]).await?;
    }
    bed.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await?;
    let _ = bed.kubectl(&["create", "namespace", SYSTEM]).await;
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for (way, words) in ways() {
        let file = folder.path().join(format!("{}.yaml", way.replace([' ', ','], "-")));
        std::fs::write(&file, rendered(&words)?)?;
        files.push(file.display().to_string());
    }
    for file in &files {
        let dry = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file];
        let said = bed.kubectl(&dry).await?;
        ensure!(said.lines().count() > 30, "only {said}");
    }
    let wrong = folder.path().join("wrong.yaml");
    let text = std::fs::read_to_string(&files[0])?;
    std::fs::write(&wrong, text.replacen("terminationGracePeriodSeconds", "terminationGrace", 1))?;
    let wrong = wrong.display().to_string();
    let dry = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", &wrong];
    ensure!(bed.kubectl(&dry).await.is_err(), "the API server takes anything");

    let request = http::Request::get("/openapi/v2").body(Vec::new())?;
    let openapi: Value = bed.session.client().request(request).await?;
    let texts: Vec<String> = files.iter().map(std::fs::read_to_string).collect::<Result<_, _>>()?;
    schemas::write(&openapi, &texts, folder.path())?;
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let said = conforms(folder.path(), &files)?;
    ensure!(said.contains("Invalid: 0, Errors: 0, Skipped: 0"), "{said}");
    ensure!(conforms(folder.path(), &[&wrong]).is_err(), "kubeconform takes anything");
    Ok(())
}

fn conforms(schemas: &Path, files: &[&str]) -> Result<String> {
    let program = Binaries::apart(Program::Kubeconform, &mut Progress::new())?;
    let place = schemas.join("{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json");
    let mut command = Command::new(program);
    command.args(["-strict", "-summary", "-schema-location"]).arg(place).args(files);
    told(&format!("{command:?}"), &command.output()?)
}

/// Definitions of kinds that others bring, from their own Go modules: what they are is known by
/// their sums.
const MODULES: [(&str, &str, &[&str]); 2] = [
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        &[
            "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        ],
    ),
    (
        "github.com/cert-manager/cert-manager@v1.21.2",
        "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        &[
            "deploy/crds/cert-manager.io_certificates.yaml",
            "deploy/crds/cert-manager.io_issuers.yaml",
        ],
    ),
];

fn crds() -> Result<Vec<PathBuf>> {
    let folder = tempfile::tempdir()?;
    let mut files = Vec::new();
    for (module, sum, paths) in MODULES {
        let mut command = Command::new("go");
        command.args(["mod", "download", "-json", module]).current_dir(folder.path());
        let said = told(&format!("{command:?}"), &command.output()?)?;
        let said: Value = serde_json::from_str(&said)?;
        ensure!(said["Sum"] == sum, "{module} is not what it was: {said}");
        let root = PathBuf::from(said["Dir"].as_str().context("a folder")?);
        files.extend(paths.iter().map(|path| root.join(path)));
    }
    Ok(files)
}
