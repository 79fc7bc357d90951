//! Arrays and mipmaps: the driver says afterwards what one takes, the description about what it will.

use crate::driver::{call, cuda, hooks};
use crate::memory::charge::{Changing, claim, give_back, give_back_at, round_up, settle};
use crate::memory::linear::here;
use crate::memory::table::{self, Entry, Kind};

/// What the driver hands memory of arrays out in.
const PAGE: u64 = 64 << 10;

/// A description; the widths of its fields changed with CUDA 3.2.
#[derive(Clone, Copy)]
struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR`, and as they were.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FlatOld {
    width: u32,
    height: u32,
    format: u32,
    channels: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Deep {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeepOld {
    width: u32,
    height: u32,
    depth: u32,
    format: u32,
    channels: u32,
    flags: u32,
}

impl From<Flat> for Shape {
    fn from(it: Flat) -> Self {
        Self {
            width: it.width,
            height: it.height,
            depth: 0,
            format: it.format,
            channels: it.channels,
        }
    }
}

impl From<FlatOld> for Shape {
    fn from(it: FlatOld) -> Self {
        Self {
            width: it.width.into(),
            height: it.height.into(),
            depth: 0,
            format: it.format,
            channels: it.channels,
        }
    }
}

impl From<Deep> for Shape {
    fn from(it: Deep) -> Self {
        Self {
            width: it.width,
            height: it.height,
            depth: it.depth,
            format: it.format,
            channels: it.channels,
        }
    }
}

impl From<DeepOld> for Shape {
    fn from(it: DeepOld) -> Self {
        let Shape { width, height, .. } = FlatOld {
            width: it.width,
            height: it.height,
            format: it.format,
            channels: it.channels,
        }
        .into();
        Self { width, height, depth: it.depth.into(), format: it.format, channels: it.channels }
    }
}

impl Shape {
    /// About what it takes. Formats of blocks and planes take no more than four bytes a channel.
    fn size(self) -> u64 {
        let channel = match self.format {
            0x01 | 0x08 | 0xc0..=0xc2 => 1,
            0x02 | 0x09 | 0x10 | 0xc3..=0xc5 => 2,
            _ => 4,
        };
        let row = self.width.saturating_mul(channel * u64::from(self.channels.max(1)));
        let rows = self.height.max(1).saturating_mul(self.depth.max(1));
        round_up(round_up(row, 32).saturating_mul(rows), PAGE)
    }

    /// With so many levels, each half as large in every dimension.
    fn size_of_levels(mut self, levels: u32) -> u64 {
        let mut sum = 0_u64;
        for _ in 0..levels.clamp(1, 32) {
            sum = sum.saturating_add(self.size());
            (self.width, self.height, self.depth) =
                ((self.width / 2).max(1), self.height / 2, self.depth / 2);
        }
        sum
    }
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
struct Requirements {
    size: u64,
    alignment: u64,
    reserved: [u32; 4],
}

/// What the driver says an array takes; `None` from drivers that do not say.
fn asked(kind: Kind, handle: u64) -> Option<u64> {
    let mut device = 0_i32;
    call!(cuCtxGetDevice(&raw mut device => *mut i32));
    let mut found = Requirements { size: 0, alignment: 0, reserved: [0; 4] };
    let found_at = &raw mut found;
    let code = match kind {
        Kind::Mipmap => {
            call!(cuMipmappedArrayGetMemoryRequirements(found_at => *mut Requirements, handle => u64, device => i32))
        }
        _ => {
            call!(cuArrayGetMemoryRequirements(found_at => *mut Requirements, handle => u64, device => i32))
        }
    };
    (code == 0 && found.size > 0).then_some(found.size)
}

fn create(kind: Kind, handle: *mut u64, expected: u64, real: impl FnOnce() -> u32) -> u32 {
    let (context, place) = match here() {
        Ok(here) => here,
        Err(code) => return code,
    };
    let _changing = Changing::begin();
    if claim(place, expected).is_err() {
        return cuda::OUT_OF_MEMORY;
    }
    let code = real();
    if code != 0 {
        give_back(place, expected);
        return code;
    }
    // SAFETY: the driver wrote there.
    let made = unsafe { *handle };
    let size = asked(kind, made).unwrap_or(expected);
    if settle(place, expected, size).is_err() {
        if kind == Kind::Mipmap {
            call!(cuMipmappedArrayDestroy(made => u64));
        } else {
            call!(cuArrayDestroy(made => u64));
        }
        give_back(place, expected);
        return cuda::OUT_OF_MEMORY;
    }
    let place = u8::try_from(place.number()).unwrap_or(u8::MAX);
    table::put(kind, made, Entry { size, place, extra: context });
    code
}

fn destroy(kind: Kind, handle: u64, real: impl FnOnce() -> u32) -> u32 {
    let _changing = Changing::begin();
    let known = table::take(kind, handle);
    let code = real();
    match known {
        Some(entry) if code == 0 => give_back_at(entry.place, entry.size),
        Some(entry) => {
            table::put(kind, handle, entry);
        }
        None => {}
    }
    code
}

/// The description that a caller gives; without one the driver says what is wrong.
unsafe fn described<T: Copy + Into<Shape>>(shape: *const T) -> Option<Shape> {
    if shape.is_null() {
        return None;
    }
    // SAFETY: the caller's description.
    Some(unsafe { shape.read_unaligned() }.into())
}

hooks! {
    cuArrayCreate_v2(array: *mut u64, shape: *const Flat) |real| {
        // SAFETY: the caller's description.
        let expected = unsafe { described(shape) }.map_or(0, Shape::size);
        create(Kind::Array, array, expected, || real(array, shape))
    }

    cuArrayCreate(array: *mut u64, shape: *const FlatOld) |real| {
        // SAFETY: the caller's description.
        let expected = unsafe { described(shape) }.map_or(0, Shape::size);
        create(Kind::Array, array, expected, || real(array, shape))
    }

    cuArray3DCreate_v2(array: *mut u64, shape: *const Deep) |real| {
        // SAFETY: the caller's description.
        let expected = unsafe { described(shape) }.map_or(0, Shape::size);
        create(Kind::Array, array, expected, || real(array, shape))
    }

    cuArray3DCreate(array: *mut u64, shape: *const DeepOld) |real| {
        // SAFETY: the caller's description.
        let expected = unsafe { described(shape) }.map_or(0, Shape::size);
        create(Kind::Array, array, expected, || real(array, shape))
    }

    cuMipmappedArrayCreate(array: *mut u64, shape: *const Deep, levels: u32) |real| {
        // SAFETY: the caller's description.
        let expected = unsafe { described(shape) }.map_or(0, |shape| shape.size_of_levels(levels));
        create(Kind::Mipmap, array, expected, || real(array, shape, levels))
    }

    cuArrayDestroy(array: u64) |real| {
        destroy(Kind::Array, array, || real(array))
    }

    cuMipmappedArrayDestroy(array: u64) |real| {
        destroy(Kind::Mipmap, array, || real(array))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mipmap_is_a_third_larger() {
        let shape = Shape { width: 4096, height: 4096, depth: 0, format: 0x20, channels: 1 };
        assert_eq!(shape.size(), 64 << 20);
        let all = shape.size_of_levels(13);
        assert!(all > 85 << 20 && all < 87 << 20, "{all}");
    }

    #[test]
    fn no_description_overflows() {
        let shape = Shape { width: u64::MAX, height: u64::MAX, depth: 9, format: 1, channels: 4 };
        assert!(shape.size() > 1 << 62 && shape.size_of_levels(u32::MAX) > 1 << 62);
    }
}
