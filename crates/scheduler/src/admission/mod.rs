//! The webhook: what can never run is refused when it is created, in one sentence.
//!
//! The webhook is a courtesy to people. What must never happen, such as a tenant writing its own
//! placement, is kept from happening by the policy inside the API server (`deploy/`).

mod copied;
mod reach;

use std::sync::Arc;

use base64::Engine as _;
use dialect::{Asked, Settings, read};
use model::{Part, Pod, names};
use serde::Deserialize;
use serde_json::{Value, json};

use self::reach::sees_all_cards;
use crate::metrics::{Outcome, Shared};
use crate::service::Answer;

/// What the administrator decided about new pods.
#[derive(Debug, Clone, Default)]
pub struct AdmissionOptions {
    /// Set on pods that ask for a card and name no scheduler of their own.
    pub scheduler_name: Option<String>,
    /// Whether privileged containers, and pods with the host's `/dev`, may have a share.
    pub allow_privileged: bool,
}

/// Reviews new pods.
#[derive(Debug)]
pub struct Admission {
    /// Which dialects are spoken, and how.
    pub settings: Arc<Settings>,
    /// What the administrator decided.
    pub options: AdmissionOptions,
    /// What is counted.
    pub metrics: Shared,
}

#[derive(Deserialize)]
struct Review {
    request: Option<ReviewRequest>,
}

#[derive(Deserialize)]
struct ReviewRequest {
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    object: Value,
}

/// What is said to a new pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it may not be created, if it may not.
    pub refused: Option<String>,
    /// What its author should know.
    pub warnings: Vec<String>,
    /// What is changed on it, as a JSON patch.
    pub patch: Vec<Value>,
}

impl Verdict {
    /// Takes an annotation off that only a scheduler writes.
    fn drop_copied(&mut self, pod: &Pod, key: &str) {
        if pod.annotations.contains_key(key) {
            let path =
                format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
            self.patch.push(json!({"op": "remove", "path": path}));
            let why = "only nanogpu says where a pod goes";
            self.warnings.push(format!("annotation {key} is left out: {why}"));
        }
    }
}

impl Admission {
    /// Answers an `AdmissionReview`.
    pub fn review(&self, body: &[u8]) -> Answer {
        let review: Review = match serde_json::from_slice(body) {
            Ok(review) => review,
            Err(error) => return bad(&format!("the review is not what it should be: {error}")),
        };
        let Some(request) = review.request else { return bad("the review has no request") };
        let verdict = self.judge(&request.object, &request.namespace);
        let outcome = match (&verdict.refused, verdict.patch.is_empty()) {
            (Some(_), _) => "refused",
            (None, true) => "allowed",
            (None, false) => "changed",
        };
        self.metrics.reviews.get_or_create(&Outcome { outcome }).inc();
        let mut response = json!({
            "uid": request.uid,
            "allowed": verdict.refused.is_none(),
        });
        if let Some(why) = &verdict.refused {
            response["status"] = json!({"code": 422, "reason": "Invalid", "message": why});
        }
        if !verdict.warnings.is_empty() {
            response["warnings"] = json!(verdict.warnings);
        }
        if !verdict.patch.is_empty() && verdict.refused.is_none() {
            let patch = Value::from(verdict.patch).to_string();
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(base64::engine::general_purpose::STANDARD.encode(patch));
        }
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        });
        Answer { status: 200, body: answer.to_string().into_bytes() }
    }

    /// Judges a new pod.
    pub fn judge(&self, object: &Value, namespace: &str) -> Verdict {
        let mut verdict = Verdict::default();
        let pod = match named(object, namespace) {
            Ok(pod) => pod,
            Err(error) => {
                verdict.refused = Some(error);
                return verdict;
            }
        };
        for key in [names::PLACEMENT, names::RETRY] {
            verdict.drop_copied(&pod, key);
        }
        let pod = self.fill_in(pod, &mut verdict);
        let asked = match read(&pod, &self.settings) {
            Ok(Some(asked)) => asked,
            Ok(None) => return verdict,
            Err(refusal) => {
                verdict.refused = Some(refusal.to_string());
                return verdict;
            }
        };
        for key in copied::keys(&asked, &pod, &self.settings) {
            verdict.drop_copied(&pod, &key);
        }
        if !self.options.allow_privileged
            && asks_for_a_share(&asked)
            && let Some(why) = sees_all_cards(object, &asked)
        {
            verdict.refused = Some(why);
            return verdict;
        }
        verdict.warnings.extend(asked.notes);
        if let Some(name) = &self.options.scheduler_name
            && pod.scheduler == "default-scheduler"
        {
            let path = "/spec/schedulerName";
            verdict.patch.push(json!({"op": "add", "path": path, "value": name}));
        }
        verdict
    }

    /// Adds what the pod's dialect takes for granted.
    fn fill_in(&self, mut pod: Pod, verdict: &mut Verdict) -> Pod {
        for missing in dialect::missing(&pod, &self.settings) {
            let Some(container) = pod.containers.get_mut(missing.container) else { continue };
            let list =
                if container.role == model::Role::App { "containers" } else { "initContainers" };
            let resource = missing.resource.replace('/', "~1");
            let base = format!("/spec/{list}/{}/resources", container.position);
            if container.limits.is_empty() {
                let value = json!({missing.resource: missing.value});
                verdict
                    .patch
                    .push(json!({"op": "add", "path": format!("{base}/limits"), "value": value}));
            } else {
                let path = format!("{base}/limits/{resource}");
                verdict.patch.push(json!({"op": "add", "path": path, "value": missing.value}));
            }
            verdict.warnings.push(format!(
                "container {}: {} {} was added, which its other resources need",
                container.name, missing.value, missing.resource
            ));
            container.limits.insert(missing.resource.to_owned(), missing.value.to_owned());
        }
        pod
    }
}

fn bad(why: &str) -> Answer {
    Answer { status: 400, body: json!({"error": why}).to_string().into_bytes() }
}

/// The pod of a review, which may not have a name yet.
fn named(object: &Value, namespace: &str) -> Result<Pod, String> {
    let mut object = object.clone();
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err("the review has no pod".to_owned());
    };
    if metadata.get("name").is_none_or(Value::is_null) {
        let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or("pod-");
        let name = format!("{prefix}x");
        metadata.insert("name".to_owned(), name.into());
    }
    metadata.entry("namespace").or_insert_with(|| namespace.into());
    Pod::from_json(&object.to_string()).map_err(|error| {
        let cause = std::error::Error::source(&error);
        cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
    })
}

fn asks_for_a_share(asked: &Asked) -> bool {
    asked.request.containers.iter().any(|c| matches!(c.part, Part::Share { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::Numbers;

    fn admission(options: AdmissionOptions) -> Admission {
        let metrics = Arc::new(crate::metrics::Metrics::new(&Numbers::new()));
        Admission { settings: Arc::new(Settings::all_dialects()), options, metrics }
    }

    fn pod(limits: &Value) -> Value {
        json!({"metadata": {"generateName": "a-"},
               "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}})
    }

    #[test]
    fn what_can_never_run_is_refused_in_one_sentence() {
        let admission = admission(AdmissionOptions::default());
        let refused = |limits: Value| admission.judge(&pod(&limits), "team").refused;
        assert_eq!(
            refused(json!({"nano-gpu/gpu-percent": "150"})).unwrap(),
            "container c: nano-gpu/gpu-percent is 150; it must be 1 to 99 for a part of a card, or a multiple of 100 for whole cards"
        );
        assert!(refused(json!({"aliyun.com/gpu-mem": "10G"})).unwrap().contains("10G"));
        let two = json!({"aliyun.com/gpu-mem": "2", "nano-gpu/gpu-percent": "20"});
        assert!(refused(two).unwrap().contains("names of one system"));
        assert_eq!(refused(json!({"nano-gpu/gpu-percent": "20"})), None);
        assert_eq!(refused(json!({"cpu": "1"})), None);
    }

    #[test]
    fn a_copied_placement_is_dropped_with_a_warning() {
        let mut copied = pod(&json!({"nano-gpu/gpu-percent": "20"}));
        copied["metadata"]["annotations"] = json!({"nano-gpu/placement": "v1;n;c=GPU-1:whole"});
        let verdict = admission(AdmissionOptions::default()).judge(&copied, "team");
        let remove = json!({"op": "remove", "path": "/metadata/annotations/nano-gpu~1placement"});
        assert_eq!(verdict.patch, [remove]);
        assert_eq!(verdict.warnings.len(), 1);
    }

    #[test]
    fn placements_of_the_dialects_are_dropped_too_and_choices_stay() {
        let table = [
            ("aliyun.com/gpu-mem", "2", "ALIYUN_COM_GPU_MEM_IDX"),
            ("nano-gpu/gpu-percent", "20", "nano-gpu/container-c"),
            ("nvidia.com/vcuda-core", "20", "nvidia.com/predicate-gpu-idx-0"),
            ("tencent.com/vcuda-core", "20", "tencent.com/predicate-time"),
            ("nvidia.com/gpu", "1", "hami.io/vgpu-devices-to-allocate"),
        ];
        for (resource, value, key) in table {
            let mut limits = json!({resource: value});
            if let Some(vcuda) = resource.strip_suffix("core") {
                limits[format!("{vcuda}memory")] = json!("4");
            }
            if resource == "nvidia.com/gpu" {
                limits["nvidia.com/gpumem"] = json!("3000");
            }
            let mut copied = pod(&limits);
            copied["metadata"]["annotations"] =
                json!({key: "1", "nvidia.com/use-gputype": "T4", "team/owner": "x"});
            let verdict = admission(AdmissionOptions::default()).judge(&copied, "team");
            assert_eq!(verdict.refused, None, "{resource}");
            let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
            assert_eq!(verdict.patch, [json!({"op": "remove", "path": path})], "{resource}");
        }
    }

    #[test]
    fn whoever_sees_every_card_gets_no_share_but_may_get_whole_cards() {
        let strict = admission(AdmissionOptions::default());
        for (percent, refused) in [("20", true), ("100", false)] {
            let mut privileged = pod(&json!({"nano-gpu/gpu-percent": percent}));
            privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
            assert_eq!(strict.judge(&privileged, "team").refused.is_some(), refused);
            let every_spelling =
                ["//dev", "/./dev", "/dev/../dev", "/dev//nvidia0", "/data/../dev/", "/.."];
            let those = ["/dev", "/dev/", "/", "", "/dev/nvidia0", "/dev/char", "/dev/dri/card0"];
            for path in those.into_iter().chain(every_spelling) {
                let mut mounts = pod(&json!({"nano-gpu/gpu-percent": percent}));
                mounts["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
                assert_eq!(strict.judge(&mounts, "team").refused.is_some(), refused, "{path}");
            }
        }
        let mut other = pod(&json!({"nano-gpu/gpu-percent": "20"}));
        for path in ["/data", "/dev/shm", "/devices", "/dev/infiniband", "/data/dev"] {
            other["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
            assert_eq!(strict.judge(&other, "team").refused, None, "{path}");
        }
        let lenient = admission(AdmissionOptions { allow_privileged: true, ..Default::default() });
        other["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/dev"}}]);
        assert_eq!(lenient.judge(&other, "team").refused, None);
    }

    #[test]
    fn a_scheduler_is_set_only_where_none_was_chosen() {
        let options =
            AdmissionOptions { scheduler_name: Some("nanogpu".into()), ..Default::default() };
        let admission = admission(options);
        let mut asks = pod(&json!({"nano-gpu/gpu-percent": "20"}));
        assert_eq!(admission.judge(&asks, "team").patch.len(), 1);
        asks["spec"]["schedulerName"] = json!("gpu-scheduler");
        assert_eq!(admission.judge(&asks, "team").patch.len(), 0);
        assert_eq!(admission.judge(&pod(&json!({"cpu": "1"})), "team").patch.len(), 0);
    }

    #[test]
    fn hami_s_pods_get_the_card_they_take_for_granted() {
        let verdict = admission(AdmissionOptions::default())
            .judge(&pod(&json!({"nvidia.com/gpumem": "3000"})), "team");
        let path = "/spec/containers/0/resources/limits/nvidia.com~1gpu";
        assert_eq!(verdict.patch, [json!({"op": "add", "path": path, "value": "1"})]);
        assert_eq!(verdict.refused, None);
    }

    #[test]
    fn reviews_are_answered_whatever_they_hold() {
        let admission = admission(AdmissionOptions::default());
        for body in ["", "{}", "[]", r#"{"request":{}}"#] {
            assert_eq!(admission.review(body.as_bytes()).status, 400, "{body}");
        }
        let review = json!({"request": {"uid": "u", "namespace": "n", "object": {}}}).to_string();
        let answer: Value =
            serde_json::from_slice(&admission.review(review.as_bytes()).body).unwrap();
        assert_eq!(answer["response"]["allowed"], json!(false));
        assert_eq!(answer["response"]["uid"], json!("u"));
    }
}
