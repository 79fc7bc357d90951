//! The kubelet's protocols as structs, made from `proto/` under names that say what they are.
//!
//! Dumb by intent: what is read from them is checked where it enters.

#[expect(
    missing_docs,
    unused_qualifications,
    clippy::pedantic,
    reason = "made from proto/, where names are the wire's"
)]
mod generated {
    pub mod device_plugin {
        tonic::include_proto!("v1beta1");
    }
    pub mod pod_resources {
        tonic::include_proto!("v1");
    }
    pub mod plugin_registration {
        tonic::include_proto!("pluginregistration");
    }
    pub mod dra {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    pub mod vcuda {
        tonic::include_proto!("vcuda");
    }
}

#[doc(inline)]
pub use generated::{device_plugin, dra, plugin_registration, pod_resources, vcuda};
