//! kube-scheduler's configuration: ours, with what its flags said, or ours put into the operator's
//! own. Pure.

use serde_json::{Value, json};

/// The source of the extender's settings, as shipped.
pub const SHIPPED: &str = include_str!("../../../deploy/kube-scheduler/default-scheduler.yaml");
const VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// Why ours cannot be put into the operator's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Something else, or an older version.
    #[error(
        "it is no {KIND} of {VERSION} but `{kind}` of `{version}`; bring it to that version first"
    )]
    Version {
        /// Its kind.
        kind: String,
        /// Its version.
        version: String,
    },
    /// kube-scheduler takes one that binds.
    #[error(
        "its extender {0} binds pods, and kube-scheduler takes only one that does; take that one out first"
    )]
    Binder(String),
    /// Two systems for the same cards.
    #[error(
        "its extender {extender} manages {resource} too, and two systems cannot give out the same cards; take that one out first"
    )]
    SameResource {
        /// Whose.
        extender: String,
        /// Which.
        resource: String,
    },
    /// kube-scheduler wants one order of the queue in all profiles.
    #[error(
        "its profile {0} sorts the queue in its own way, which all profiles must share, and nanogpu adds profiles; add them by hand, with the same queueSort"
    )]
    QueueSort(String),
    /// Ours has no extender.
    #[error("the settings of nanogpu have no extender, or more than one")]
    NoExtender,
}

/// The address of the extender in our settings.
pub fn address(ours: &Value) -> Option<&str> {
    ours["extenders"][0]["urlPrefix"].as_str()
}

/// Our settings with another address.
pub fn at(mut ours: Value, address: Option<&str>) -> Result<Value, SettingsError> {
    if ours["extenders"].as_array().map_or(0, Vec::len) != 1 {
        return Err(SettingsError::NoExtender);
    }
    if let Some(address) = address {
        ours["extenders"][0]["urlPrefix"] = json!(address);
        ours["extenders"][0]["enableHTTPS"] = json!(address.starts_with("https:"));
    }
    Ok(ours)
}

/// Our settings where kube-scheduler had none of its own: with what its flags said.
pub fn with_flags(mut ours: Value, carried: &Value) -> Value {
    overlay(&mut ours, carried);
    ours
}

/// Ours put into a copy of the operator's. What the operator says stays; ours fills the gaps.
pub fn merged(theirs: &Value, ours: &Value) -> Result<Value, SettingsError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if theirs["kind"] != KIND || theirs["apiVersion"] != VERSION {
        let (kind, version) = (text(&theirs["kind"]), text(&theirs["apiVersion"]));
        return Err(SettingsError::Version { kind, version });
    }
    let mut all = theirs.clone();
    let extender = ours["extenders"][0].clone();
    let mut extenders = array(&theirs["extenders"]);
    for other in &extenders {
        check(other, &extender)?;
    }
    extenders.push(extender);
    all["extenders"] = json!(extenders);
    let mut profiles = array(&theirs["profiles"]);
    let own = array(&ours["profiles"]);
    for profile in &own {
        let same = |other: &&mut Value| name(other) == name(profile);
        match profiles.iter_mut().find(same) {
            Some(theirs) => fill(theirs, profile),
            None => profiles.push(profile.clone()),
        }
    }
    let sorts = |profile: &&Value| !array(&profile["plugins"]["queueSort"]["enabled"]).is_empty();
    if let Some(profile) = profiles.iter().find(sorts)
        && !profiles.iter().all(|other| sorts(&other))
    {
        return Err(SettingsError::QueueSort(name(profile).to_owned()));
    }
    all["profiles"] = json!(profiles);
    // Our rank decides only among nodes that are scored.
    all["percentageOfNodesToScore"] = ours["percentageOfNodesToScore"].clone();
    Ok(all)
}

fn check(other: &Value, ours: &Value) -> Result<(), SettingsError> {
    let extender = other["urlPrefix"].as_str().unwrap_or_default().to_owned();
    if other["bindVerb"].as_str().is_some_and(|verb| !verb.is_empty()) {
        return Err(SettingsError::Binder(extender));
    }
    let managed = |extender: &Value| {
        let resources = array(&extender["managedResources"]);
        resources.iter().filter_map(|it| it["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let mine = managed(ours);
    match managed(other).into_iter().find(|resource| mine.contains(resource)) {
        Some(resource) => Err(SettingsError::SameResource { extender, resource }),
        None => Ok(()),
    }
}

/// Adds to the operator's profile what it does not speak of.
fn fill(theirs: &mut Value, ours: &Value) {
    let mut disabled = array(&theirs["plugins"]["score"]["disabled"]);
    let enabled = array(&theirs["plugins"]["score"]["enabled"]);
    let named = |list: &[Value], one: &Value| list.iter().any(|it| it["name"] == one["name"]);
    for plugin in array(&ours["plugins"]["score"]["disabled"]) {
        // One that was enabled by name was wanted.
        if !named(&disabled, &plugin) && !named(&enabled, &plugin) {
            disabled.push(plugin);
        }
    }
    theirs["plugins"]["score"]["disabled"] = json!(disabled);
    let mut config = array(&theirs["pluginConfig"]);
    for plugin in array(&ours["pluginConfig"]) {
        if !named(&config, &plugin) {
            config.push(plugin);
        }
    }
    theirs["pluginConfig"] = json!(config);
}

/// kube-scheduler's own name for a profile without one.
fn name(profile: &Value) -> &str {
    profile["schedulerName"].as_str().unwrap_or("default-scheduler")
}

fn array(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn overlay(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Value {
        at(crate::yaml::read(SHIPPED).unwrap(), Some("https://10.96.0.9:39443/scheduler")).unwrap()
    }

    fn operators(rest: &Value) -> Value {
        let mut config = json!({"apiVersion": VERSION, "kind": KIND});
        overlay(&mut config, rest);
        config
    }

    #[test]
    fn ours_say_what_the_flags_said() {
        let carried = json!({"clientConnection": {"kubeconfig": "/k"}, "enableProfiling": false});
        let config = with_flags(shipped(), &carried);
        assert_eq!(config["clientConnection"]["kubeconfig"], "/k");
        assert_eq!(config["enableProfiling"], false);
        assert_eq!(address(&config), Some("https://10.96.0.9:39443/scheduler"));
        assert_eq!(
            config["extenders"][0]["tlsConfig"]["certFile"],
            "/etc/kubernetes/nanogpu/client.crt"
        );
        assert!(
            config.get("leaderElection").is_none(),
            "its flags outrank the file: nothing to say"
        );
    }

    #[test]
    fn ours_are_put_into_the_operators_own() {
        let theirs = operators(&json!({
            "clientConnection": {"kubeconfig": "/theirs", "qps": 9},
            "percentageOfNodesToScore": 10,
            "profiles": [
                {"schedulerName": "default-scheduler",
                 "plugins": {"score": {"enabled": [{"name": "ImageLocality", "weight": 5}],
                                       "disabled": [{"name": "TaintToleration"}]}},
                 "pluginConfig": [{"name": "NodeResourcesFit", "args": {"theirs": true}}]},
                {"schedulerName": "batch"},
            ],
            "extenders": [{"urlPrefix": "http://disks", "filterVerb": "filter"}],
        }));
        let all = merged(&theirs, &shipped()).unwrap();
        assert_eq!(all["clientConnection"], theirs["clientConnection"]);
        assert_eq!(all["percentageOfNodesToScore"], 100);
        let default = &all["profiles"][0];
        assert_eq!(
            default["plugins"]["score"]["disabled"],
            json!([{"name": "TaintToleration"}, {"name": "NodeResourcesBalancedAllocation"}])
        );
        assert_eq!(default["plugins"]["score"]["enabled"][0]["name"], "ImageLocality");
        assert_eq!(default["pluginConfig"], theirs["profiles"][0]["pluginConfig"]);
        assert_eq!(all["profiles"][1], theirs["profiles"][1], "another's profile is left alone");
        let names: Vec<&str> = all["profiles"].as_array().unwrap().iter().map(name).collect();
        assert_eq!(
            names,
            [
                "default-scheduler",
                "batch",
                "nanogpu",
                "gpu-scheduler",
                "vgpu-scheduler",
                "hami-scheduler"
            ]
        );
        assert_eq!(all["extenders"].as_array().unwrap().len(), 2);
        assert_eq!(all["extenders"][0], theirs["extenders"][0]);
    }

    #[test]
    fn one_without_profiles_gets_all_of_ours() {
        let all = merged(&operators(&json!({})), &shipped()).unwrap();
        assert_eq!(all["profiles"], shipped()["profiles"]);
    }

    #[track_caller]
    fn refused(rest: &Value, because: &str) {
        let said = merged(&operators(rest), &shipped()).unwrap_err().to_string();
        assert!(said.contains(because), "{said}");
    }

    #[test]
    fn what_cannot_be_put_together_is_refused() {
        refused(
            &json!({"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}),
            "`KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1beta3`",
        );
        refused(
            &json!({"extenders": [{"urlPrefix": "http://gpushare", "bindVerb": "bind"}]}),
            "its extender http://gpushare binds pods",
        );
        refused(
            &json!({"extenders": [{"urlPrefix": "http://admission", "filterVerb": "predicates",
                                   "managedResources": [{"name": "tencent.com/vcuda-core"}]}]}),
            "manages tencent.com/vcuda-core too",
        );
        refused(
            &json!({"profiles": [{"schedulerName": "batch",
                                  "plugins": {"queueSort": {"enabled": [{"name": "Coscheduling"}]}}}]}),
            "its profile batch sorts the queue",
        );
    }

    #[test]
    fn settings_without_an_extender_are_refused() {
        assert_eq!(at(json!({}), None), Err(SettingsError::NoExtender));
    }
}
