//! The manifests we ship, in parts: whoever tests one part applies that part as it ships.

/// nanogpu beside a kube-scheduler of its own.
pub const SECOND: &str = include_str!("../../deploy/manifests/second-scheduler.yaml");
/// nanogpu for the cluster's own kube-scheduler.
pub const DEFAULT: &str = include_str!("../../deploy/manifests/default-scheduler.yaml");

/// Our namespace, which most other parts need.
pub const NAMESPACE: &str = "namespace.yaml";

/// What these templates of the chart became in `manifest`, as one text of several documents.
///
/// # Panics
/// If a template gave nothing.
pub fn parts(manifest: &str, templates: &[&str]) -> String {
    let mut text = String::new();
    for template in templates {
        let source = format!("# Source: nanogpu/templates/{template}\n");
        let before = text.len();
        for document in manifest.split("---\n").filter_map(|part| part.strip_prefix(&source)) {
            text.push_str("---\n");
            text.push_str(document);
        }
        assert!(text.len() > before, "nothing of {template} is shipped");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_all_documents_of_its_template_and_no_other() {
        let text = parts(SECOND, &["agent/rbac.yaml"]);
        assert_eq!(text.matches("kind: ServiceAccount\n").count(), 1);
        assert!(text.contains("name: nanogpu-agent-unhealthy"));
        assert!(!text.contains("nanogpu-scheduler") && !text.contains("kind: DaemonSet"));
    }

    #[test]
    fn the_two_differ_in_kube_scheduler_only() {
        assert!(SECOND.contains("name: nanogpu-kube-scheduler\n"));
        assert!(!DEFAULT.contains("name: nanogpu-kube-scheduler\n"));
        for part in ["agent/daemonset.yaml", "agent/policy.yaml", "scheduler/rbac.yaml"] {
            assert_eq!(parts(SECOND, &[part]), parts(DEFAULT, &[part]), "{part}");
        }
    }
}
