//! Tickets of the kubelet, which are drawn whoever placed the pod.

use dialect::{Dialect, Settings, observe};
use model::Claim;

use crate::common::{AFTER, pod};
use crate::examples::SHARES;

#[test]
fn tickets_are_counted_for_pods_that_no_scheduler_of_ours_placed() {
    for (dialect, share) in SHARES {
        let draft = pod().init("fetch", share).app("main", share).app("more", share).bound(AFTER);
        let holder = observe(&draft.build(), &Settings::all_dialects()).unwrap();
        assert_eq!(holder.claim, Claim::Nothing, "{dialect}");
        let identities = dialect.identity_resources();
        let of = |resource: &str| {
            let (_, text) = share.iter().find(|(name, _)| *name == resource)?;
            Some((resource.to_owned(), 2 * text.parse::<u64>().unwrap()))
        };
        let expected: Vec<_> = identities.iter().filter_map(|resource| of(resource)).collect();
        assert!(!expected.is_empty());
        assert_eq!(holder.tickets, expected, "{dialect}");
        // The same as its request would draw.
        assert_eq!(draft.read().request.tickets, expected, "{dialect}");
    }
}

#[test]
fn every_resource_of_every_spoken_dialect_is_counted() {
    let both =
        [("nano-gpu/gpu-percent", "20"), ("aliyun.com/gpu-mem", "2"), ("nvidia.com/gpu", "1")];
    let pod = pod().app("main", &both).bound(AFTER).build();
    let tickets = |settings: &Settings| observe(&pod, settings).unwrap().tickets;
    let [nano, gpushare, hami] = both.map(|(name, text)| (name.to_owned(), text.parse().unwrap()));
    assert_eq!(tickets(&Settings::default()), [nano.clone(), gpushare.clone()]);
    assert_eq!(tickets(&Settings::all_dialects()), [nano, gpushare, hami]);
}

#[test]
fn what_is_no_count_draws_none() {
    for text in ["0", "-5", "500m", "garbage", "10E"] {
        let pod = pod().app("main", &[("nano-gpu/gpu-percent", text)]).bound(AFTER).build();
        assert_eq!(observe(&pod, &Settings::default()).unwrap().tickets, [], "{text}");
    }
}

#[test]
fn identities_and_measures_are_told_apart_and_shared_by_no_two_dialects() {
    let mut seen = std::collections::BTreeSet::new();
    for dialect in Dialect::ALL {
        assert!(!dialect.identity_resources().is_empty());
        for name in dialect.identity_resources().iter().chain(dialect.measure_resources()) {
            assert!(crate::kubernetes::is_key(name) && seen.insert(*name), "{name}");
        }
        assert_eq!(Dialect::parse(dialect.as_str()), Some(dialect));
        assert_eq!(dialect.to_string(), dialect.as_str());
    }
    assert_eq!(Dialect::parse("nonsense"), None);
}
