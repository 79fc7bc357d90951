//! The structs that callers fill in, laid out as in the API.

use std::ffi::c_void;

use crate::abi::Opaque;

/// A two-dimensional copy.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2D {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_type: u32,
    pub(crate) src_host: *const c_void,
    pub(crate) src_device: u64,
    pub(crate) src_array: u64,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_type: u32,
    pub(crate) dst_host: *mut c_void,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: u64,
    pub(crate) dst_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// The same before CUDA 3.2, when sizes had 32 bits.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2DOld {
    src_x: u32,
    src_y: u32,
    src_type: u32,
    src_host: *const c_void,
    src_device: u32,
    src_array: u64,
    src_pitch: u32,
    dst_x: u32,
    dst_y: u32,
    dst_type: u32,
    dst_host: *mut c_void,
    dst_device: u32,
    dst_array: u64,
    dst_pitch: u32,
    width: u32,
    height: u32,
}

/// A three-dimensional copy; the two contexts are reserved words in copies within one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy3D {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_z: usize,
    pub(crate) src_level: usize,
    pub(crate) src_type: u32,
    pub(crate) src_host: *const c_void,
    pub(crate) src_device: u64,
    pub(crate) src_array: u64,
    pub(crate) src_context: u64,
    pub(crate) src_pitch: usize,
    pub(crate) src_height: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_z: usize,
    pub(crate) dst_level: usize,
    pub(crate) dst_type: u32,
    pub(crate) dst_host: *mut c_void,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: u64,
    pub(crate) dst_context: u64,
    pub(crate) dst_pitch: usize,
    pub(crate) dst_height: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// The same before CUDA 3.2.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy3DOld {
    src_x: u32,
    src_y: u32,
    src_z: u32,
    src_level: u32,
    src_type: u32,
    src_host: *const c_void,
    src_device: u32,
    src_array: u64,
    reserved_src: u64,
    src_pitch: u32,
    src_height: u32,
    dst_x: u32,
    dst_y: u32,
    dst_z: u32,
    dst_level: u32,
    dst_type: u32,
    dst_host: *mut c_void,
    dst_device: u32,
    dst_array: u64,
    reserved_dst: u64,
    dst_pitch: u32,
    dst_height: u32,
    width: u32,
    height: u32,
    depth: u32,
}

const fn wide(small: u32) -> usize {
    small as usize
}

impl From<Copy2D> for Copy3D {
    fn from(flat: Copy2D) -> Self {
        Self {
            src_x: flat.src_x,
            src_y: flat.src_y,
            src_z: 0,
            src_level: 0,
            src_type: flat.src_type,
            src_host: flat.src_host,
            src_device: flat.src_device,
            src_array: flat.src_array,
            src_context: 0,
            src_pitch: flat.src_pitch,
            src_height: 0,
            dst_x: flat.dst_x,
            dst_y: flat.dst_y,
            dst_z: 0,
            dst_level: 0,
            dst_type: flat.dst_type,
            dst_host: flat.dst_host,
            dst_device: flat.dst_device,
            dst_array: flat.dst_array,
            dst_context: 0,
            dst_pitch: flat.dst_pitch,
            dst_height: 0,
            width: flat.width,
            height: flat.height,
            depth: 1,
        }
    }
}

impl From<Copy2DOld> for Copy3D {
    fn from(old: Copy2DOld) -> Self {
        Self::from(Copy2D {
            src_x: wide(old.src_x),
            src_y: wide(old.src_y),
            src_type: old.src_type,
            src_host: old.src_host,
            src_device: old.src_device.into(),
            src_array: old.src_array,
            src_pitch: wide(old.src_pitch),
            dst_x: wide(old.dst_x),
            dst_y: wide(old.dst_y),
            dst_type: old.dst_type,
            dst_host: old.dst_host,
            dst_device: old.dst_device.into(),
            dst_array: old.dst_array,
            dst_pitch: wide(old.dst_pitch),
            width: wide(old.width),
            height: wide(old.height),
        })
    }
}

impl From<Copy3DOld> for Copy3D {
    fn from(old: Copy3DOld) -> Self {
        Self {
            src_x: wide(old.src_x),
            src_y: wide(old.src_y),
            src_z: wide(old.src_z),
            src_level: wide(old.src_level),
            src_type: old.src_type,
            src_host: old.src_host,
            src_device: old.src_device.into(),
            src_array: old.src_array,
            src_context: old.reserved_src,
            src_pitch: wide(old.src_pitch),
            src_height: wide(old.src_height),
            dst_x: wide(old.dst_x),
            dst_y: wide(old.dst_y),
            dst_z: wide(old.dst_z),
            dst_level: wide(old.dst_level),
            dst_type: old.dst_type,
            dst_host: old.dst_host,
            dst_device: old.dst_device.into(),
            dst_array: old.dst_array,
            dst_context: old.reserved_dst,
            dst_pitch: wide(old.dst_pitch),
            dst_height: wide(old.dst_height),
            width: wide(old.width),
            height: wide(old.height),
            depth: wide(old.depth),
        }
    }
}

/// A one- or two-dimensional array.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayShape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// The same before CUDA 3.2.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayShapeOld {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// An array of any dimension.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Array3DShape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// The same before CUDA 3.2.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array3DShapeOld {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) depth: u32,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// Where memory lives or is used.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl Location {
    pub(crate) const DEVICE: u32 = 1;
    pub(crate) const HOST: u32 = 2;
    pub(crate) const HOST_NUMA: u32 = 3;
    pub(crate) const HOST_NUMA_CURRENT: u32 = 4;
}

/// What a pool is to be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) kind: u32,
    pub(crate) handles: u32,
    pub(crate) location: Location,
    pub(crate) security: Opaque,
    pub(crate) most: usize,
    pub(crate) usage: u16,
    pub(crate) rdma: u8,
    pub(crate) reserved: [u8; 53],
}

/// What physical memory is to be.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhysicalShape {
    pub(crate) kind: u32,
    pub(crate) handles: u32,
    pub(crate) location: Location,
    pub(crate) meta: Opaque,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// Who may do what with memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// What several cards reach together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastShape {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handles: u64,
    pub(crate) flags: u64,
}

/// One setting of a launch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) padding: u32,
    pub(crate) value: [u64; 8],
}

/// How a kernel is launched.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) count: u32,
}

/// One of the launches on several cards.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CardLaunch {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) arguments: *mut Opaque,
}

/// Memory of another API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExternalShape {
    pub(crate) kind: u32,
    pub(crate) handle: [u64; 2],
    pub(crate) size: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// A part of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExternalRange {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// A part of it, seen as an array with levels.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExternalLevels {
    pub(crate) offset: u64,
    pub(crate) array: Array3DShape,
    pub(crate) levels: u32,
    pub(crate) reserved: [u32; 16],
}

/// One end of a copy in a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) kind: u32,
    /// Pointer, row length, layer height and location; or array and offset.
    pub(crate) words: [u64; 4],
}

/// A copy in a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchCopy {
    pub(crate) src: Operand,
    pub(crate) dst: Operand,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) order: u32,
    pub(crate) flags: u32,
}

/// A part of a card that a green context is made from.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resource {
    pub(crate) kind: u32,
    pub(crate) internal: [u8; 92],
    pub(crate) multiprocessors: u32,
    pub(crate) least: u32,
    pub(crate) alignment: u32,
    pub(crate) flags: u32,
    pub(crate) rest: [u8; 32],
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::graph::shapes::{
        AllocShape, FillShape, HostShape, InstantiateShape, KernelShape, KernelShape2, UpdateShape,
        WordsShape,
    };

    /// The sizes that a C compiler gives the structs of the API, 12.9 and 13.4 alike.
    #[test]
    fn structs_are_as_large_as_in_the_api() {
        let sizes = [
            (size_of::<Copy2D>(), 128),
            (size_of::<Copy3D>(), 200),
            (size_of::<ArrayShape>(), 24),
            (size_of::<Array3DShape>(), 40),
            (size_of::<Location>(), 8),
            (size_of::<PoolShape>(), 88),
            (size_of::<PhysicalShape>(), 32),
            (size_of::<Access>(), 12),
            (size_of::<MulticastShape>(), 32),
            (size_of::<LaunchAttribute>(), 72),
            (size_of::<LaunchShape>(), 56),
            (size_of::<CardLaunch>(), 56),
            (size_of::<ExternalShape>(), 104),
            (size_of::<ExternalRange>(), 88),
            (size_of::<ExternalLevels>(), 120),
            (size_of::<Operand>(), 40),
            (size_of::<BatchCopy>(), 112),
            (size_of::<Resource>(), 144),
            (size_of::<KernelShape>(), 56),
            (size_of::<KernelShape2>(), 72),
            (size_of::<FillShape>(), 40),
            (size_of::<HostShape>(), 16),
            (size_of::<AllocShape>(), 120),
            (size_of::<WordsShape>(), 32),
            (size_of::<InstantiateShape>(), 32),
            (size_of::<UpdateShape>(), 24),
        ];
        for (index, (size, expected)) in sizes.into_iter().enumerate() {
            assert_eq!(size, expected, "row {index}");
        }
    }

    #[test]
    fn fields_lie_where_the_api_has_them() {
        let places = [
            (offset_of!(LaunchShape, stream), 32),
            (offset_of!(LaunchShape, attributes), 40),
            (offset_of!(CardLaunch, stream), 40),
            (offset_of!(ExternalShape, size), 24),
            (offset_of!(Resource, multiprocessors), 96),
            (offset_of!(AllocShape, address), 112),
            (offset_of!(AllocShape, size), 104),
            (offset_of!(PoolShape, most), 24),
            (offset_of!(KernelShape2, kernel), 56),
            (offset_of!(BatchCopy, width), 80),
            (offset_of!(Copy3D, dst_array), 144),
            (offset_of!(Copy3D, depth), 192),
        ];
        for (index, (place, expected)) in places.into_iter().enumerate() {
            assert_eq!(place, expected, "row {index}");
        }
    }
}
