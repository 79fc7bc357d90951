//! Which cards a pod will accept: by model and by UUID, wanted and unwanted.
//!
//! Both families of names are understood in every dialect, under every prefix users have
//! written them with. Tokens are trimmed and blanks ignored, so `"A10,"` means A10.

use model::ids::Quoted;
use model::{Pod, Selector};

use crate::refusal::Refusal;

const PREFIXES: [&str; 8] = [
    "nano-gpu",
    "nvidia.com",
    "tencent.com",
    "inspur.com",
    "aliyun.com",
    "elasticgpu.io",
    "elasticgpu.com",
    "nano-gpu.io",
];
const MODELS: [&str; 2] = ["use-gputype", "include-gpu-type"];
const NOT_MODELS: [&str; 2] = ["nouse-gputype", "exclude-gpu-type"];
const IDS: [&str; 2] = ["use-gpuuuid", "include-gpu-uuid"];
const NOT_IDS: [&str; 2] = ["nouse-gpuuuid", "exclude-gpu-uuid"];

/// Reads the selectors of `pod`. Several lists must all be satisfied.
pub(crate) fn selector(pod: &Pod) -> Result<Selector, Refusal> {
    let selector = Selector {
        models: lists(pod, MODELS).collect(),
        not_models: lists(pod, NOT_MODELS).flatten().collect(),
        ids: lists(pod, IDS).collect(),
        not_ids: lists(pod, NOT_IDS).flatten().collect(),
    };
    contradiction(&selector).map_or(Ok(selector), |what| Err(Refusal::SelectsNothing(what)))
}

fn lists(pod: &Pod, names: [&'static str; 2]) -> impl Iterator<Item = Vec<String>> {
    let keys = PREFIXES.iter().flat_map(move |prefix| names.map(|name| format!("{prefix}/{name}")));
    keys.filter_map(|key| pod.annotations.get(&key)).filter_map(|text| {
        let tokens = text.split(',').map(str::trim).filter(|token| !token.is_empty());
        let list: Vec<String> = tokens.map(str::to_owned).collect();
        (!list.is_empty()).then_some(list)
    })
}

/// A wanted list whose every token is unwanted too can match no card, whatever its name.
fn contradiction(selector: &Selector) -> Option<Quoted> {
    let lower = |text: &String| text.to_ascii_lowercase();
    let barred = |token: &String| {
        selector.not_models.iter().any(|unwanted| lower(token).contains(&lower(unwanted)))
    };
    let no_model = selector.models.iter().find(|any| any.iter().all(barred));
    let barred_id = |id: &String| selector.not_ids.iter().any(|not| not.eq_ignore_ascii_case(id));
    let no_id = selector.ids.iter().find(|any| any.iter().all(barred_id));
    no_model.or(no_id).map(|any| Quoted::new(&any.join(" or ")))
}
