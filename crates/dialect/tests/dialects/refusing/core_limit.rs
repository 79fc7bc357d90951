//! `vcuda-core-limit`, which may raise a share and never lower it.

use crate::common::pod;

fn refusal(domain: &str, limit: &str) -> String {
    let (core, memory) = (format!("{domain}/vcuda-core"), format!("{domain}/vcuda-memory"));
    let share = [(core.as_str(), "50"), (memory.as_str(), "30")];
    let key = format!("{domain}/vcuda-core-limit");
    pod()
        .app("small", &[(core.as_str(), "10"), (memory.as_str(), "1")])
        .app("main", &share)
        .annotate(&key, limit)
        .refusal()
}

#[test]
fn a_limit_below_a_share_is_refused() {
    for domain in ["tencent.com", "inspur.com", "nvidia.com"] {
        assert_eq!(
            refusal(domain, "49"),
            format!(
                "annotation {domain}/vcuda-core-limit is \"49\"; \
                 it must be at least 50, which container main asks for"
            )
        );
    }
}

#[test]
fn a_limit_that_is_no_percentage_is_refused() {
    for text in ["0", "-1", "", "all", "80%", "1e2", "50.5", "99999999999"] {
        assert_eq!(
            refusal("tencent.com", text),
            format!(
                "annotation tencent.com/vcuda-core-limit is {text:?}; \
                 it must be a whole percentage, 1 to 100"
            )
        );
    }
}
