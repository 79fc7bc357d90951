//! kube-schedulers: their configuration with what only the testbed knows filled in.

use anyhow::Context;
use serde_json::{Value, json};

use crate::binaries::{Binaries, Program};
use crate::component::{Component, Place, Spec};
use crate::control::gated;
use crate::layout::{Layout, write};
use crate::options::{Options, SchedulerSpec};

/// The port of the first scheduler; each further one has the next.
const PORT: usize = 10259;

/// The process of a scheduler, its configuration written.
pub(crate) fn spec(
    layout: &Layout,
    binaries: &Binaries,
    options: &Options,
    index: usize,
    scheduler: &SchedulerSpec,
) -> anyhow::Result<Spec> {
    let file = layout.config().join(format!("{}.yaml", scheduler.name));
    write_config(layout, scheduler)?;
    let kubeconfig = layout.kubeconfig_inside("scheduler");
    let component = Component::Scheduler(scheduler.name.clone());
    let spec = Spec::new(&component, binaries.path(Program::Scheduler), Place::Cluster)
        .file("config", &file)
        .flag("bind-address", "127.0.0.1")
        .flag("secure-port", PORT + index)
        .file("authentication-kubeconfig", &kubeconfig)
        .file("authorization-kubeconfig", &kubeconfig);
    Ok(gated(spec, options))
}

pub(crate) fn write_config(layout: &Layout, scheduler: &SchedulerSpec) -> anyhow::Result<()> {
    let config =
        completed(&scheduler.config, &layout.kubeconfig_inside("scheduler").display().to_string())
            .with_context(|| format!("the configuration of `{}`", scheduler.name))?;
    let file = layout.config().join(format!("{}.yaml", scheduler.name));
    write(&file, &serde_json::to_vec_pretty(&config)?)
}

/// Fills in how to reach the API server. There is one scheduler of a kind here, so none elects a
/// leader.
fn completed(config: &str, kubeconfig: &str) -> anyhow::Result<Value> {
    let mut value: Value = if config.trim().is_empty() {
        json!({})
    } else {
        serde_saphyr::from_str(config).context("is no YAML")?
    };
    let map = value.as_object_mut().context("is no KubeSchedulerConfiguration")?;
    map.entry("apiVersion").or_insert_with(|| json!("kubescheduler.config.k8s.io/v1"));
    map.entry("kind").or_insert_with(|| json!("KubeSchedulerConfiguration"));
    map.insert("leaderElection".to_owned(), json!({"leaderElect": false}));
    let connection = map.entry("clientConnection").or_insert_with(|| json!({}));
    let connection = connection.as_object_mut().context("`clientConnection` is no map")?;
    connection.insert("kubeconfig".to_owned(), json!(kubeconfig));
    connection.entry("qps").or_insert_with(|| json!(1000));
    connection.entry("burst").or_insert_with(|| json!(1000));
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_keeps_what_it_says() {
        let text =
            "profiles:\n- schedulerName: ours\nextenders:\n- urlPrefix: http://127.0.0.1:1\n";
        let value = completed(text, "/k").unwrap();
        assert_eq!(value["profiles"][0]["schedulerName"], "ours");
        assert_eq!(value["extenders"][0]["urlPrefix"], "http://127.0.0.1:1");
        assert_eq!(value["clientConnection"]["kubeconfig"], "/k");
        assert_eq!(value["leaderElection"]["leaderElect"], false);
        assert_eq!(value["kind"], "KubeSchedulerConfiguration");
    }

    #[test]
    fn nothing_is_the_stock_scheduler() {
        assert_eq!(completed(" \n", "/k").unwrap()["clientConnection"]["qps"], 1000);
    }

    #[test]
    fn text_that_is_no_configuration_is_refused() {
        assert!(completed("- a", "/k").is_err());
        assert!(completed("a: [", "/k").is_err());
    }
}
