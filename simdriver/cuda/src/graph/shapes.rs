//! The structs that describe nodes, laid out as in the API.

use std::ffi::c_void;

use crate::abi::Opaque;
use crate::shapes::{Access, Copy3D, PoolShape};

/// A kernel node.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelShape {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) arguments: *const Opaque,
    pub(crate) extra: *const Opaque,
}

/// The same since CUDA 12: the kernel may be a library's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelShape2 {
    pub(crate) plain: KernelShape,
    pub(crate) kernel: u64,
    pub(crate) context: u64,
}

/// A fill.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillShape {
    pub(crate) address: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) unit: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// A function of the caller's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostShape {
    pub(crate) function: Option<extern "C" fn(*mut c_void)>,
    pub(crate) data: usize,
}

/// Memory that a graph allocates.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocShape {
    pub(crate) pool: PoolShape,
    pub(crate) access: *const Access,
    pub(crate) count: usize,
    pub(crate) size: usize,
    pub(crate) address: u64,
}

/// Operations on words.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordsShape {
    pub(crate) context: u64,
    pub(crate) count: u32,
    pub(crate) operations: *const [u64; 6],
    pub(crate) flags: u32,
}

/// A node of any type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AnyShape {
    pub(crate) kind: u32,
    pub(crate) reserved: [i32; 3],
    pub(crate) body: AnyBody,
    pub(crate) reserved_end: i64,
}

/// What it says, by its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union AnyBody {
    pub(crate) words: [u64; 29],
    pub(crate) kernel: KernelShape2,
    pub(crate) copy: CopyShape,
    pub(crate) fill: FillShape2,
    pub(crate) host: HostShape,
    pub(crate) handle: u64,
    pub(crate) alloc: AllocShape,
    pub(crate) operations: WordsShape,
}

/// A copy, in a node of any type.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyShape {
    pub(crate) flags: i32,
    pub(crate) reserved: i32,
    pub(crate) context: u64,
    pub(crate) copy: Copy3D,
}

/// A fill, in a node of any type.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillShape2 {
    pub(crate) fill: FillShape,
    pub(crate) context: u64,
}

/// How a graph is to be instantiated, and how that went.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstantiateShape {
    pub(crate) flags: u64,
    pub(crate) stream: u64,
    pub(crate) failed: u64,
    pub(crate) result: u32,
}

/// How an update went.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpdateShape {
    pub(crate) result: u32,
    pub(crate) node: u64,
    pub(crate) from: u64,
}

const _: () = assert!(size_of::<AnyShape>() == 256 && size_of::<AnyBody>() == 232);
