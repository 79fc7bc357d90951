//! Which cards a pod accepts, and what no card can satisfy.

use model::arb::{card, device_id};
use model::{CardModel, Device, Selector};

use crate::common::{Amounts, Draft, pod};

fn draft(annotations: Amounts) -> Draft {
    pod().app("main", &[("tencent.com/vcuda-core", "100")]).annotate_all(annotations)
}

fn selector(annotations: Amounts) -> Selector {
    draft(annotations).read().request.selector
}

fn model(name: &str) -> Device {
    Device { model: CardModel::new(name), ..card(0) }
}

fn admitted<'a>(annotations: Amounts, models: &[&'a str]) -> Vec<&'a str> {
    let selector = selector(annotations);
    models.iter().copied().filter(|name| selector.admits(&model(name))).collect()
}

const MODELS: [&str; 5] = ["A100", "4090", "3080", "H100", "4080"];

#[test]
fn the_original_s_own_table_of_device_types_holds() {
    // H100 is wanted and unwanted, so A100 is what remains.
    let annotations =
        [("nvidia.com/use-gputype", "A100,H100"), ("nvidia.com/nouse-gputype", "4090,4080,H100")];
    assert_eq!(admitted(&annotations, &MODELS), ["A100"]);
    let annotations =
        [("nvidia.com/use-gputype", "A100,H100"), ("nvidia.com/nouse-gputype", "H100")];
    assert_eq!(admitted(&annotations, &MODELS), ["A100"]);
}

#[test]
fn tokens_are_found_anywhere_in_the_name_and_letter_case_is_nothing() {
    let models = ["NVIDIA A100-SXM4-40GB", "NVIDIA A10", "Tesla T4", "NVIDIA GeForce RTX 4090"];
    assert_eq!(admitted(&[("nano-gpu/use-gputype", "a100")], &models), [models[0]]);
    assert_eq!(admitted(&[("nano-gpu/use-gputype", "A10")], &models), models[..2]);
    assert_eq!(admitted(&[("nano-gpu/use-gputype", "geforce rtx,tesla")], &models), models[2..]);
    assert_eq!(admitted(&[("nano-gpu/nouse-gputype", "nvidia")], &models), [models[2]]);
}

#[test]
fn defect_18_tokens_are_trimmed_and_blanks_are_nothing() {
    let models = ["NVIDIA A10", "Tesla T4"];
    for text in ["A10,", ",A10", " A10 , ", "A10,,A10"] {
        assert_eq!(admitted(&[("nvidia.com/use-gputype", text)], &models), ["NVIDIA A10"]);
        assert_eq!(admitted(&[("nvidia.com/nouse-gputype", text)], &models), ["Tesla T4"]);
    }
    for text in [",", "", " , "] {
        assert!(selector(&[("nvidia.com/use-gputype", text)]).is_empty());
        assert!(selector(&[("nvidia.com/nouse-gputype", text)]).is_empty());
    }
}

#[test]
fn every_prefix_and_both_spellings_are_understood_in_every_dialect() {
    let prefixes = [
        "nano-gpu",
        "nano-gpu.io",
        "elasticgpu.io",
        "elasticgpu.com",
        "tencent.com",
        "inspur.com",
        "nvidia.com",
        "aliyun.com",
    ];
    for prefix in prefixes {
        for (use_type, nouse_type) in
            [("use-gputype", "nouse-gputype"), ("include-gpu-type", "exclude-gpu-type")]
        {
            let key = format!("{prefix}/{use_type}");
            assert_eq!(admitted(&[(&key, "A100")], &MODELS), ["A100"], "{key}");
            let key = format!("{prefix}/{nouse_type}");
            assert_eq!(admitted(&[(&key, "A100")], &MODELS), MODELS[1..], "{key}");
        }
    }
}

#[test]
fn several_lists_must_all_agree() {
    let annotations = [
        ("nvidia.com/use-gputype", "A100,H100"),
        ("nano-gpu/include-gpu-type", "H100,4090"),
        ("tencent.com/nouse-gputype", "3080"),
        ("nano-gpu/exclude-gpu-type", "4080"),
    ];
    assert_eq!(admitted(&annotations, &MODELS), ["H100"]);
    let read = selector(&annotations);
    assert_eq!((read.models.len(), read.not_models.len()), (2, 2));
}

#[test]
fn cards_are_chosen_by_uuid() {
    let named = |id: &str| Device { id: device_id(id), ..card(0) };
    for (wanted, unwanted) in
        [("use-gpuuuid", "nouse-gpuuuid"), ("include-gpu-uuid", "exclude-gpu-uuid")]
    {
        let (wanted, unwanted) = (format!("nvidia.com/{wanted}"), format!("nano-gpu/{unwanted}"));
        let chosen = selector(&[(&wanted, "GPU-1, gpu-2,"), (&unwanted, "GPU-2")]);
        assert!(chosen.admits(&named("GPU-1")));
        assert!(!chosen.admits(&named("GPU-2")));
        // A UUID is the whole of it, not a part.
        assert!(!chosen.admits(&named("GPU-11")));
    }
}

#[test]
fn to_want_and_exclude_the_same_is_refused() {
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[("nvidia.com/use-gputype", "A100"), ("nvidia.com/nouse-gputype", "A100")], "A100"),
        // A100 is found in every name in which A100-SXM4 is.
        (&[("nano-gpu/use-gputype", "A100-SXM4"), ("nano-gpu/nouse-gputype", "a100")], "A100-SXM4"),
        (
            &[
                ("nano-gpu/include-gpu-type", "A100,H100"),
                ("nvidia.com/nouse-gputype", "H100,A100"),
            ],
            "A100 or H100",
        ),
        (
            &[
                ("nano-gpu/use-gputype", "T4"),
                ("nvidia.com/use-gputype", "A10"),
                ("nvidia.com/nouse-gputype", "A10"),
            ],
            "A10",
        ),
        (&[("nano-gpu/use-gpuuuid", "GPU-1"), ("nano-gpu/nouse-gpuuuid", "gpu-1")], "GPU-1"),
    ];
    for (annotations, what) in table {
        assert_eq!(
            draft(annotations).refusal(),
            format!(
                "the pod's annotations ask for {what:?} and exclude it too; no card can satisfy both"
            )
        );
    }
}

#[test]
fn a_long_wish_cannot_flood_the_sentence() {
    let wish = format!("A\n{}", "x".repeat(100_000));
    let annotations = [("nano-gpu/use-gputype", &*wish), ("nano-gpu/nouse-gputype", &*wish)];
    let shown = "x".repeat(62);
    assert_eq!(
        draft(&annotations).refusal(),
        format!(
            "the pod's annotations ask for \"A\\n{shown}…\" and exclude it too; \
             no card can satisfy both"
        )
    );
}

#[test]
fn to_exclude_a_part_of_what_is_wanted_is_no_contradiction() {
    let annotations = [("nano-gpu/use-gputype", "A100"), ("nano-gpu/nouse-gputype", "A100-SXM4")];
    let models = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"];
    assert_eq!(admitted(&annotations, &models), [models[1]]);
}
