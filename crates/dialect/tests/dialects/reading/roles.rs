//! Who asks and when it runs, limits and requests: the same in every dialect.

use model::Role::{App, Init, Sidecar};
use model::{ContainerRequest, Role};

use crate::common::{Draft, pod};
use crate::examples::SHARES;

fn roles(draft: &Draft) -> Vec<(String, Role)> {
    let containers = draft.read().request.containers;
    containers.into_iter().map(|c| (c.name.to_string(), c.role)).collect()
}

#[test]
fn containers_are_read_in_the_order_in_which_they_start() {
    for (dialect, share) in SHARES {
        let draft = pod()
            .app("main", share)
            .app("idle", &[])
            .app("second", share)
            .init("fetch", share)
            .sidecar("watch", share)
            .init("check", &[]);
        let expected = [("fetch", Init), ("watch", Sidecar), ("main", App), ("second", App)]
            .map(|(name, role)| (name.to_owned(), role));
        assert_eq!(roles(&draft), expected, "{dialect}");
    }
}

#[test]
fn a_pod_may_ask_for_its_init_containers_alone() {
    for (dialect, share) in SHARES {
        let draft = pod().init("fetch", share).app("main", &[]);
        assert_eq!(roles(&draft), [("fetch".to_owned(), Init)], "{dialect}");
        assert_eq!(draft.read().dialect, dialect);
    }
}

#[test]
fn tickets_are_counted_at_the_pod_s_peak() {
    const PERCENT: &str = "nano-gpu/gpu-percent";
    let tickets = |draft: Draft| draft.read().request.tickets;
    let drawn = |count| [(PERCENT.to_owned(), count)];
    let percent = |text| [(PERCENT, text)];
    // An init container and the pod's work take turns.
    let draft = pod().init("i", &percent("80")).app("a", &percent("40"));
    assert_eq!(tickets(draft), drawn(80));
    let draft = pod().init("i", &percent("30")).app("a", &percent("20")).app("b", &percent("20"));
    assert_eq!(tickets(draft), drawn(40));
    // A sidecar stays, and an init container meets those that started before it.
    let draft = pod().sidecar("s", &percent("10")).app("a", &percent("40"));
    assert_eq!(tickets(draft), drawn(50));
    let draft = pod().sidecar("s", &percent("10")).init("i", &percent("80"));
    assert_eq!(tickets(draft.app("a", &percent("40"))), drawn(90));
    let draft = pod().init("i", &percent("80")).sidecar("s", &percent("10"));
    assert_eq!(tickets(draft.app("a", &percent("40"))), drawn(80));
}

#[test]
fn limits_alone_requests_alone_and_both_are_the_same() {
    let ask = |draft: Draft| -> Vec<ContainerRequest> { draft.read().request.containers };
    for (dialect, share) in SHARES {
        let limits = ask(pod().app("main", share));
        assert_eq!(limits.len(), 1);
        assert_eq!(ask(pod().app_with("main", &[], share)), limits, "{dialect}");
        assert_eq!(ask(pod().app_with("main", share, share)), limits, "{dialect}");
    }
    // Spelled differently, but equal.
    let both = pod().app_with(
        "main",
        &[("nano-gpu/gpu-percent", "20")],
        &[("nano-gpu/gpu-percent", "20000m")],
    );
    assert_eq!(ask(both), ask(pod().app("main", &[("nano-gpu/gpu-percent", "20")])));
}

#[test]
fn a_container_of_zero_beside_one_that_asks_gets_a_note() {
    let draft = pod()
        .app("main", &[("nano-gpu/gpu-percent", "20")])
        .app("log", &[("nano-gpu/gpu-percent", "0")]);
    assert_eq!(roles(&draft), [("main".to_owned(), App)]);
    assert_eq!(
        draft.read().notes,
        ["container log: nano-gpu/gpu-percent is 0, which is the same as leaving it out"]
    );
}
