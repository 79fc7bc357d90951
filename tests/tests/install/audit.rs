//! Rights are minimal: the API server's own account of what our programs asked, compared with what
//! their roles grant, both ways.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef,
};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::bed::{Bed, SYSTEM};

/// Rights that this story is not sure to use, and why they are granted.
const UNUSED: &[(&str, &str)] = &[
    (
        "nanogpu-agent: create coordination.k8s.io/leases in nanogpu-system",
        "a Lease that is not there yet is made by a patch; the API server then asks for this right itself",
    ),
    (
        "nanogpu-scheduler: get pods",
        "a pod that changed under a bind is read again; the stories of `scheduling` have the same rights",
    ),
    (
        "nanogpu-scheduler: patch pods",
        "pods are woken that kube-scheduler does not try again by itself; likewise",
    ),
    ("nanogpu-scheduler: create pods/eviction", "preemption; likewise"),
    ("nanogpu-scheduler: patch pods/status", "preemption names the node it made room on; likewise"),
    (
        "nanogpu-scheduler: create events.k8s.io/events",
        "told to people when something is worth it, which is not sure to be here",
    ),
    ("nanogpu-scheduler: patch events.k8s.io/events", "an event that comes again is counted"),
    ("nanogpu-agent: create events.k8s.io/events", "refusals, health, strangers"),
    ("nanogpu-agent: patch events.k8s.io/events", "an event that comes again is counted"),
    (
        "nanogpu-scheduler: update secrets nanogpu-scheduler-tls in nanogpu-system",
        "certificates are renewed after sixty days",
    ),
];

/// One verb on one resource, for one account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    verb: String,
    /// With the group before it and the subresource behind it.
    resource: String,
    /// Everywhere if there is none.
    namespace: Option<String>,
    /// Any if there is none.
    name: Option<String>,
}

impl Right {
    /// Whether it covers what was asked.
    fn covers(&self, asked: &Self) -> bool {
        let within = |granted: &Option<String>, asked: &Option<String>| {
            granted.is_none() || granted == asked
        };
        (&self.account, &self.verb, &self.resource)
            == (&asked.account, &asked.verb, &asked.resource)
            && within(&self.namespace, &asked.namespace)
            && within(&self.name, &asked.name)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, verb, resource, namespace, name } = self;
        write!(f, "{account}: {verb} {resource}")?;
        if let Some(name) = name {
            write!(f, " {name}")?;
        }
        if let Some(namespace) = namespace {
            write!(f, " in {namespace}")?;
        }
        Ok(())
    }
}

pub(crate) async fn rights_are_as_they_are_used(bed: &Bed) -> Result<()> {
    let granted = granted(bed).await?;
    let asked = asked(bed)?;
    for account in ["nanogpu-agent", "nanogpu-scheduler"] {
        ensure!(asked.iter().any(|right| right.account == account), "{account} asked nothing");
    }
    let beyond: Vec<String> = asked
        .iter()
        .filter(|asked| !granted.iter().any(|right| right.covers(asked)))
        .map(ToString::to_string)
        .collect();
    ensure!(beyond.is_empty(), "asked for without a right of its own role: {beyond:#?}");
    let granted: BTreeSet<(String, bool)> = granted
        .iter()
        .map(|right| (right.to_string(), asked.iter().any(|asked| right.covers(asked))))
        .collect();
    let unused: Vec<&str> = granted
        .iter()
        .filter(|(right, used)| !used && !UNUSED.iter().any(|(known, _)| known == right))
        .map(|(right, _)| right.as_str())
        .collect();
    ensure!(unused.is_empty(), "granted, never used, and without a reason: {unused:#?}");
    for (known, _) in UNUSED {
        ensure!(granted.iter().any(|(right, _)| right == known), "{known} is not granted at all");
    }
    Ok(())
}

/// What the roles of our own give to accounts of programs.
async fn granted(bed: &Bed) -> Result<Vec<Right>> {
    let client = bed.session.client();
    let mine = ListParams::default().labels("app.kubernetes.io/part-of=nanogpu");
    let everywhere: Api<ClusterRole> = Api::all(client.clone());
    let roles: Api<Role> = Api::all(client.clone());
    let (everywhere, roles) = (everywhere.list(&mine).await?, roles.list(&mine).await?);
    let rules_of = |reference: &RoleRef, namespace: Option<&str>| -> Vec<PolicyRule> {
        let given = if reference.kind == "ClusterRole" {
            let role = everywhere.iter().find(|role| role.name_any() == reference.name);
            role.and_then(|role| role.rules.clone())
        } else {
            let is = |role: &&Role| {
                role.name_any() == reference.name && role.namespace().as_deref() == namespace
            };
            roles.iter().find(is).and_then(|role| role.rules.clone())
        };
        // kube-scheduler's own roles are not ours to judge.
        given.unwrap_or_default()
    };
    let mut rights = Vec::new();
    let cluster: Api<ClusterRoleBinding> = Api::all(client.clone());
    for binding in cluster.list(&mine).await? {
        for subject in binding.subjects.iter().flatten() {
            for rule in rules_of(&binding.role_ref, None) {
                flatten(&subject.name, None, &rule, &mut rights);
            }
        }
    }
    let local: Api<RoleBinding> = Api::all(client);
    for binding in local.list(&mine).await? {
        let namespace = binding.namespace();
        for subject in binding.subjects.iter().flatten() {
            for rule in rules_of(&binding.role_ref, namespace.as_deref()) {
                flatten(&subject.name, namespace.as_deref(), &rule, &mut rights);
            }
        }
    }
    // People's, not a program's.
    rights.retain(|right| right.account != "nanogpu-viewer");
    Ok(rights)
}

fn flatten(account: &str, namespace: Option<&str>, rule: &PolicyRule, into: &mut Vec<Right>) {
    let names = rule.resource_names.clone().unwrap_or_default();
    let names: Vec<Option<String>> =
        if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                for name in &names {
                    into.push(Right {
                        account: account.to_owned(),
                        verb: verb.clone(),
                        resource: qualified(group, resource),
                        namespace: namespace.map(str::to_owned),
                        name: name.clone(),
                    });
                }
            }
        }
    }
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{group}/{resource}") }
}

/// What our programs asked of the API server so far. Nothing of it was forbidden.
fn asked(bed: &Bed) -> Result<BTreeSet<Right>> {
    let text = std::fs::read_to_string(bed.cluster.layout().audit())?;
    let mut asked = BTreeSet::new();
    let mut forbidden = BTreeSet::new();
    // The last line may be half written.
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |pointer: &str| {
            event.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
        };
        let prefix = format!("system:serviceaccount:{SYSTEM}:");
        let account = text("/user/username").and_then(|name| name.strip_prefix(&prefix));
        // kube-scheduler is in our pod and has our account, and a role of its own.
        let is_ours = !text("/userAgent").unwrap_or_default().starts_with("kube-scheduler/");
        let (Some(account), Some(resource), true) = (account, text("/objectRef/resource"), is_ours)
        else {
            continue;
        };
        let sub = text("/objectRef/subresource").map(|sub| format!("/{sub}")).unwrap_or_default();
        let group = text("/objectRef/apiGroup").unwrap_or_default();
        let right = Right {
            account: account.to_owned(),
            verb: text("/verb").unwrap_or_default().to_owned(),
            resource: qualified(group, &format!("{resource}{sub}")),
            namespace: text("/objectRef/namespace").map(str::to_owned),
            name: text("/objectRef/name").map(str::to_owned),
        };
        if event.pointer("/responseStatus/code").and_then(Value::as_u64) == Some(403) {
            forbidden.insert(right.to_string());
        }
        asked.insert(right);
    }
    ensure!(forbidden.is_empty(), "forbidden to our own accounts: {forbidden:#?}");
    Ok(asked)
}
