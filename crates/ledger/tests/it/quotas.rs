//! How much of which cards a namespace may hold.

use std::sync::Arc;

use ledger::{Event, Ledger, Quota};
use model::{CardModel, Cores, Mebibytes, Moment, Portion, Role};

use crate::build::{facts, ledger, pod, share, simple};

/// One node of four M40 and one of two P100.
fn world(quota: Quota) -> Ledger {
    let of = |name: &str, model: &str, cards| {
        let mut facts = facts(name, cards);
        let Some(Ok(inventory)) = &mut facts.inventory else { unreachable!() };
        for device in &mut inventory.devices {
            Arc::make_mut(device).model = CardModel::new(model);
        }
        facts
    };
    let mut ledger = ledger(vec![of("m", "Tesla M40", 4), of("p", "Tesla P100-PCIE-16GB", 2)]);
    ledger.apply(Event::Quota(quota));
    ledger
}

fn over(ledger: &mut Ledger, holder: model::Holder) -> bool {
    match ledger.reserve(holder, Moment(1000)) {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.to_string(), "namespace team-a has used up its quota");
            true
        }
    }
}

#[test]
fn gpu_admission_s_config_map_as_it_is() {
    let text = r#"{"team-a":{"quota":{"M40":2},"pool":[]},"team-b":{"quota":{"P100":1}}}"#;
    let mut ledger = world(Quota::from_gpu_admission(text).unwrap());
    assert!(!over(&mut ledger, pod("a", "m", &[(Role::App, &[(0, Portion::Whole)])])));
    assert!(!over(&mut ledger, simple("b", "m", 1, 60, 1)));
    // 160 of 200 are used: 41 are too many, 40 are not.
    assert!(over(&mut ledger, simple("c", "m", 2, 41, 1)));
    assert!(!over(&mut ledger, simple("c", "m", 2, 40, 1)));
    // A model the quota does not name may not be used.
    assert!(over(&mut ledger, simple("d", "p", 0, 1, 1)));
    let allowance = ledger.snapshot().allowance("team-a").clone();
    let rule = &allowance.rules[0];
    assert_eq!(rule.to_string(), "M40: 200% of 200% compute used");
    assert_eq!(rule.cap.left(&rule.used).cores, Some(Cores(0)));
    assert!(ledger.snapshot().allowance("team-c").is_unlimited());
}

#[test]
fn several_cards_count_each() {
    let text =
        r#"{"version":1,"namespaces":{"team-a":{"models":{"*":{"cards":3,"memoryMiB":900}}}}}"#;
    let mut ledger = world(Quota::from_json(text).unwrap());
    let two = |name| {
        let cards: [(u32, Portion); 2] = [(0, share(10, 200)), (1, share(10, 200))];
        pod(name, "m", &[(Role::App, &cards)])
    };
    assert!(!over(&mut ledger, two("a")));
    assert!(over(&mut ledger, two("b")), "4 of 3 cards");
    assert!(over(&mut ledger, simple("c", "p", 0, 1, 501)), "901 of 900 MiB");
    assert!(!over(&mut ledger, simple("c", "p", 0, 1, 500)));
    let rule = ledger.snapshot().allowance("team-a").rules[0].clone();
    assert_eq!(rule.to_string(), "all models: 3 of 3 cards, 900 MiB of 900 MiB used");
    assert_eq!(rule.cap.left(&rule.used).memory, Some(Mebibytes(0)));
}

#[test]
fn quota_comes_back_and_other_namespaces_do_not_count() {
    let text = r#"{"team-a":{"quota":{"M40":1}}}"#;
    let mut ledger = world(Quota::from_gpu_admission(text).unwrap());
    let mut other = pod("x", "m", &[(Role::App, &[(3, Portion::Whole)])]);
    other.pod.namespace = "team-b".into();
    ledger.apply(Event::Pod(other));
    let whole = || pod("a", "m", &[(Role::App, &[(0, Portion::Whole)])]);
    assert!(!over(&mut ledger, whole()));
    ledger.apply(Event::Pod(whole()));
    assert!(over(&mut ledger, simple("b", "m", 1, 1, 1)));
    ledger.apply(Event::PodGone(whole().pod.uid));
    assert!(!over(&mut ledger, simple("b", "m", 1, 1, 1)));
}

#[test]
fn pools_bound_the_nodes() {
    let text = r#"{"team-a":{"pool":["public"]}}"#;
    let mut ledger = world(Quota::from_gpu_admission(text).unwrap());
    let error = ledger.reserve(simple("a", "m", 0, 1, 1), Moment(1000)).unwrap_err();
    assert_eq!(error.to_string(), "namespace team-a may not use the pool of node m");
    let mut public = facts("n", 1);
    public.pool = Some("public".into());
    ledger.apply(Event::Heartbeat { node: public.name.clone(), at: Moment(0) });
    ledger.apply(Event::Node(public));
    assert!(!over(&mut ledger, simple("a", "n", 0, 1, 1)));
}

#[test]
fn a_broken_quota_says_what_is_wrong() {
    let chain = |error: &dyn std::error::Error| {
        error.source().map_or(error.to_string(), |source| format!("{error}: {source}"))
    };
    let ours = |text: &str| chain(&Quota::from_json(text).unwrap_err());
    assert!(ours("{").starts_with("quota is not the JSON it should be: EOF"));
    assert_eq!(
        ours(r#"{"version":2,"namespaces":{}}"#),
        "quota has version 2; this build reads version 1"
    );
    let typo = ours(r#"{"version":1,"namespaces":{"a":{"models":{"A100":{"card":1}}}}}"#);
    assert!(
        typo.contains("unknown field `card`, expected one of `cards`, `cores`, `memoryMiB`"),
        "{typo}"
    );
    let negative = Quota::from_gpu_admission(r#"{"a":{"quota":{"M40":-1}}}"#).unwrap_err();
    assert!(chain(&negative).contains("invalid value: integer `-1`"), "{negative}");
}

#[test]
fn fuzz_quota() {
    const SEEDS: [&str; 2] = [
        r#"{"a":{"quota":{"M40":8},"pool":["x"]}}"#,
        r#"{"version":1,"namespaces":{"a":{"models":{"*":{"cards":1,"cores":2,"memoryMiB":3}},"others":"refused"}}}"#,
    ];
    let seconds = std::env::var("NANOGPU_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let target = bolero::check!().with_type::<(u16, Vec<u8>)>();
    let target = match seconds {
        Some(seconds) => target.with_test_time(std::time::Duration::from_secs(seconds)),
        None => target.with_iterations(5000),
    };
    target.for_each(|(at, noise)| {
        let noise = String::from_utf8_lossy(noise);
        for seed in SEEDS {
            let at = usize::from(*at) % seed.len();
            let text = format!("{}{noise}{}", &seed[..at], &seed[at..]);
            let _ = (Quota::from_gpu_admission(&text), Quota::from_json(&text));
        }
    });
}

#[test]
fn of_two_quotas_the_one_above_counts_where_both_name_a_namespace() {
    let below = r#"{"team-a":{"quota":{"M40":1}},"team-b":{"quota":{"P100":1}}}"#;
    let above = r#"{"version":1,"namespaces":{"team-a":{"models":{"*":{"cards":2}}}}}"#;
    let below = Quota::from_gpu_admission(below).unwrap();
    let ledger = world(below.under(Quota::from_json(above).unwrap()));
    assert_eq!(ledger.allowance("team-a").rules[0].cap.cards, Some(2));
    assert_eq!(ledger.allowance("team-b").rules[0].cap.cores, Some(Cores(100)));
    assert!(ledger.allowance("team-c").is_unlimited());
}
