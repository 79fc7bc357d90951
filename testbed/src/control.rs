//! The control plane: etcd, API server, controller manager, kube-proxy.

use serde_json::json;

use crate::binaries::{Binaries, Program};
use crate::component::{Component, Place, Spec};
use crate::layout::{Layout, write};
use crate::options::Options;

/// The bridge of the cluster's network, where pods find the API server.
pub(crate) const API_ADDRESS: &str = "10.88.0.1";
/// The bridge with its network.
pub(crate) const BRIDGE: &str = "10.88.0.1/16";
/// The Service `kubernetes`.
pub(crate) const SERVICE_ADDRESS: &str = "10.96.0.1";
pub(crate) const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.88.0.0/16";

pub(crate) fn etcd(layout: &Layout, binaries: &Binaries) -> Spec {
    let client = "http://127.0.0.1:2379";
    let peer = "http://127.0.0.1:2380";
    Spec::new(&Component::Etcd, binaries.path(Program::Etcd), Place::Cluster)
        .flag("name", "default")
        .file("data-dir", &layout.etcd())
        .flag("listen-client-urls", client)
        .flag("advertise-client-urls", client)
        .flag("listen-peer-urls", peer)
        .flag("initial-advertise-peer-urls", peer)
        .flag("initial-cluster", format!("default={peer}"))
        // A crash of the machine may lose data; a crash of etcd does not.
        .arg("--unsafe-no-fsync")
        .flag("quota-backend-bytes", 4_u64 << 30)
        .flag("auto-compaction-retention", "5m")
        .flag("log-level", "warn")
}

pub(crate) fn api_server(
    layout: &Layout,
    binaries: &Binaries,
    options: &Options,
) -> anyhow::Result<Spec> {
    let pki = layout.pki();
    let file = |name: &str| pki.join(name);
    let spec = Spec::new(&Component::ApiServer, binaries.path(Program::ApiServer), Place::Cluster)
        .flag("etcd-servers", "http://127.0.0.1:2379")
        .flag("bind-address", "0.0.0.0")
        .flag("advertise-address", API_ADDRESS)
        .flag("secure-port", 6443)
        .file("tls-cert-file", &file("apiserver.crt"))
        .file("tls-private-key-file", &file("apiserver.key"))
        .file("client-ca-file", &file("ca.crt"))
        .file("kubelet-certificate-authority", &file("ca.crt"))
        .file("kubelet-client-certificate", &file("apiserver-kubelet-client.crt"))
        .file("kubelet-client-key", &file("apiserver-kubelet-client.key"))
        .flag("kubelet-preferred-address-types", "InternalIP")
        .flag("service-account-issuer", "https://kubernetes.default.svc")
        .file("service-account-key-file", &file("sa.pub"))
        .file("service-account-signing-key-file", &file("sa.key"))
        .file("requestheader-client-ca-file", &file("ca.crt"))
        .flag("requestheader-allowed-names", "front-proxy-client")
        .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-")
        .flag("requestheader-group-headers", "X-Remote-Group")
        .flag("requestheader-username-headers", "X-Remote-User")
        .file("proxy-client-cert-file", &file("front-proxy-client.crt"))
        .file("proxy-client-key-file", &file("front-proxy-client.key"))
        .flag("authorization-mode", "Node,RBAC")
        .flag("enable-admission-plugins", "NodeRestriction")
        .flag("service-cluster-ip-range", SERVICES)
        .flag("allow-privileged", true)
        .flag("max-requests-inflight", 800)
        .flag("max-mutating-requests-inflight", 400)
        .flag("profiling", false);
    Ok(gated(audited(spec, layout, options)?, options))
}

/// Adds the audit log, if one was asked for. Lines are written at once: whoever reads them after an
/// answer finds its line.
fn audited(spec: Spec, layout: &Layout, options: &Options) -> anyhow::Result<Spec> {
    if options.audit_policy.is_empty() {
        return Ok(spec);
    }
    let policy = layout.config().join("audit.yaml");
    write(&policy, options.audit_policy.as_bytes())?;
    Ok(spec
        .file("audit-policy-file", &policy)
        .file("audit-log-path", &layout.audit())
        .flag("audit-log-mode", "blocking"))
}

pub(crate) fn controller_manager(layout: &Layout, binaries: &Binaries, options: &Options) -> Spec {
    let pki = layout.pki();
    let kubeconfig = layout.kubeconfig_inside("controller-manager");
    let program = binaries.path(Program::ControllerManager);
    let spec = Spec::new(&Component::ControllerManager, program, Place::Cluster)
        .file("kubeconfig", &kubeconfig)
        .file("authentication-kubeconfig", &kubeconfig)
        .file("authorization-kubeconfig", &kubeconfig)
        .flag("bind-address", "127.0.0.1")
        .flag("leader-elect", false)
        .flag("use-service-account-credentials", true)
        .file("service-account-private-key-file", &pki.join("sa.key"))
        .file("root-ca-file", &pki.join("ca.crt"))
        .file("cluster-signing-cert-file", &pki.join("ca.crt"))
        .file("cluster-signing-key-file", &pki.join("ca.key"))
        .flag("allocate-node-cidrs", false)
        .flag("service-cluster-ip-range", SERVICES)
        .flag("kube-api-qps", 300)
        .flag("kube-api-burst", 300);
    gated(spec, options)
}

/// One for all nodes: they share the cluster's network.
pub(crate) fn kube_proxy(layout: &Layout, binaries: &Binaries) -> anyhow::Result<Spec> {
    let config = layout.config().join("kube-proxy.yaml");
    let text = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": layout.kubeconfig_inside("kube-proxy")},
        "mode": "iptables",
        "clusterCIDR": PODS,
        "hostnameOverride": "node1",
        "bindAddress": API_ADDRESS,
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
        // The limits of connection tracking are the host's.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "nodePortAddresses": ["127.0.0.0/8"],
    });
    write(&config, &serde_json::to_vec_pretty(&text)?)?;
    Ok(Spec::new(&Component::KubeProxy, binaries.path(Program::KubeProxy), Place::Cluster)
        .file("config", &config))
}

/// Adds the feature gates that were asked for.
pub(crate) fn gated(spec: Spec, options: &Options) -> Spec {
    match options.gates() {
        Some(gates) => spec.flag("feature-gates", gates),
        None => spec,
    }
}
