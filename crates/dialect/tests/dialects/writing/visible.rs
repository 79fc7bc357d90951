//! The variable an nvidia runtime obeys.

use dialect::{NodeMode, visible_devices};
use model::Role::App;

use crate::common::{all_of, place};

#[test]
fn where_we_bring_the_devices_a_runtime_must_add_none() {
    let placement = place(&[("main", App, &[all_of(3), all_of(0)])]);
    let seen = |mode| visible_devices(mode, placement.grants("main"));
    let variable = "NVIDIA_VISIBLE_DEVICES".to_owned();
    assert_eq!(seen(NodeMode::Own), (variable.clone(), "void".to_owned()));
    assert_eq!(seen(NodeMode::default()), seen(NodeMode::Own));
    assert_eq!(seen(NodeMode::Toolkit), (variable, "GPU-3,GPU-0".to_owned()));
}
