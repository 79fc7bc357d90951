//! Arrays and mipmaps.

use super::pages::{self, Place};
use crate::abi::{Answer, Code, In, Out, api};
use crate::card::Memory;
use crate::copy::plan::{End, span};
use crate::process::{Call, Kind, Process, State, here, process};
use crate::shapes::{Array3DShape, Array3DShapeOld, ArrayShape, ArrayShapeOld};

/// What the driver hands out memory of arrays in.
const PAGE: u64 = 64 << 10;
const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;

/// An array.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) shape: Array3DShape,
    base: u64,
    pitch: u64,
    layer: u64,
    charged: u64,
    card: usize,
    context: u64,
    /// It is a level of a mipmap, or a view of external memory, and goes with it.
    part: bool,
}

/// An array with its smaller versions.
#[derive(Debug, Clone)]
pub(crate) struct Mipmap {
    pub(crate) levels: Vec<u64>,
    base: u64,
    charged: u64,
    card: usize,
    context: u64,
    external: bool,
}

/// How an array lies in memory.
struct Layout {
    pitch: u64,
    layer: u64,
    size: u64,
}

/// Bytes of one channel.
fn channel(format: u32) -> Answer<u64> {
    Ok(match format {
        0x01
        | 0x08
        | 0x91..=0x9e
        | 0xa2
        | 0xa5
        | 0xa8
        | 0xb0
        | 0xb2
        | 0xb4
        | 0xc0..=0xc2
        | 0xc6..=0xc8 => 1,
        0x02
        | 0x09
        | 0x10
        | 0x51..=0x5e
        | 0x9f..=0xa1
        | 0xa3
        | 0xa4
        | 0xa6
        | 0xa7
        | 0xb1
        | 0xb3
        | 0xb5
        | 0xc3..=0xc5
        | 0xc9..=0xcb => 2,
        0x03 | 0x0a | 0x20 | 0x50 => 4,
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn layout(shape: &Array3DShape) -> Answer<Layout> {
    let Array3DShape { width, height, depth, format, channels, flags } = *shape;
    if width == 0
        || !matches!(channels, 1 | 2 | 4)
        || (height == 0 && depth > 0 && flags & LAYERED == 0)
    {
        return Err(Code::INVALID_VALUE);
    }
    if flags & CUBEMAP != 0 && (width != height || depth % 6 != 0) {
        return Err(Code::INVALID_VALUE);
    }
    let row = channel(format)? * u64::from(channels) * width as u64;
    let pitch = pages::round_up(row, 32)?;
    let layer = pitch.checked_mul(height.max(1) as u64).ok_or(Code::INVALID_VALUE)?;
    let size = layer.checked_mul(depth.max(1) as u64).ok_or(Code::INVALID_VALUE)?;
    Ok(Layout { pitch, layer, size })
}

impl Array {
    fn new(shape: Array3DShape, base: u64, call: &Call, part: bool) -> Answer<Self> {
        let Layout { pitch, layer, size } = layout(&shape)?;
        let charged = if part { 0 } else { pages::round_up(size, PAGE)? };
        Ok(Self {
            shape,
            base,
            pitch,
            layer,
            charged,
            card: call.card,
            context: call.context,
            part,
        })
    }

    /// A box in it; the first size is in bytes.
    pub(crate) fn part(&self, at: [u64; 3], extent: [u64; 3]) -> Answer<End> {
        let row =
            channel(self.shape.format)? * u64::from(self.shape.channels) * self.shape.width as u64;
        let sizes = [row, self.shape.height.max(1) as u64, self.shape.depth.max(1) as u64];
        for ((at, extent), size) in at.iter().zip(extent).zip(sizes) {
            if at.checked_add(extent).is_none_or(|end| end > size) {
                return Err(Code::INVALID_VALUE);
            }
        }
        let address = self.base + at[2] * self.layer + at[1] * self.pitch + at[0];
        Ok(End {
            address,
            pitch: self.pitch,
            layer: self.layer,
            host: false,
            pinned: true,
            array: true,
        })
    }

    /// Bytes from an offset on, for the copies that count through a one-dimensional array.
    pub(crate) fn bytes(&self, offset: u64, length: u64) -> Answer<End> {
        let all = span([self.pitch, self.shape.height.max(1) as u64, 1], self.pitch, 0);
        if offset.checked_add(length).is_none_or(|end| all.is_none_or(|all| end > all)) {
            return Err(Code::INVALID_VALUE);
        }
        let (address, pitch) = (self.base + offset, self.pitch);
        Ok(End { address, pitch, layer: self.layer, host: false, pinned: true, array: true })
    }
}

/// Takes memory of the card for arrays.
fn take(call: &Call, size: u64) -> Answer<u64> {
    let card = &call.process.cards[call.card];
    call.process.joined.reserve(card, Memory::Array, size)?;
    pages::map(size, PAGE, Place::Anywhere)
        .inspect_err(|_| call.process.joined.release(card, Memory::Array, size))
}

fn create(shape: Array3DShape) -> Answer<u64> {
    let call = here()?;
    let mut array = Array::new(shape, 0, &call, false)?;
    array.base = take(&call, array.charged)?;
    let mut state = call.state();
    let handle = state.handle(Kind::Array);
    state.arrays.insert(handle, array);
    Ok(handle)
}

/// The shape of a level.
fn level(shape: &Array3DShape, level: u32) -> Array3DShape {
    let smaller = |size: usize| if size == 0 { 0 } else { (size >> level.min(63)).max(1) };
    let depth =
        if shape.flags & (LAYERED | CUBEMAP) == 0 { smaller(shape.depth) } else { shape.depth };
    Array3DShape { width: smaller(shape.width), height: smaller(shape.height), depth, ..*shape }
}

/// Lays the levels of a mipmap out one behind the other.
fn levels(shape: &Array3DShape, count: u32) -> Answer<(Vec<(Array3DShape, u64)>, u64)> {
    let largest = shape.width.max(shape.height).max(shape.depth).max(1);
    let most = largest.ilog2() + 1;
    let mut at = 0_u64;
    let mut all = Vec::new();
    for index in 0..count.clamp(1, most) {
        let shape = level(shape, index);
        all.push((shape, at));
        at =
            pages::round_up(at.checked_add(layout(&shape)?.size).ok_or(Code::INVALID_VALUE)?, 512)?;
    }
    Ok((all, at))
}

/// Makes a mipmap over memory at `base`, or over memory of its own.
pub(crate) fn create_mipmap(shape: &Array3DShape, count: u32, base: Option<u64>) -> Answer<u64> {
    let call = here()?;
    let (shapes, size) = levels(shape, count)?;
    let charged = if base.is_some() { 0 } else { pages::round_up(size, PAGE)? };
    let external = base.is_some();
    let base = match base {
        Some(base) => base,
        None => take(&call, charged)?,
    };
    let mut state = call.state();
    let mut handles = Vec::new();
    for (shape, at) in shapes {
        let handle = state.handle(Kind::Array);
        state.arrays.insert(handle, Array::new(shape, base + at, &call, true)?);
        handles.push(handle);
    }
    let handle = state.handle(Kind::Mipmap);
    let (card, context) = (call.card, call.context);
    state
        .mipmaps
        .insert(handle, Mipmap { levels: handles, base, charged, card, context, external });
    Ok(handle)
}

fn give_back(process: &Process, base: u64, card: usize, charged: u64) {
    if charged > 0 {
        pages::unmap(base, charged);
        process.joined.release(&process.cards[card], Memory::Array, charged);
    }
}

/// Frees the arrays of a context that ends.
pub(crate) fn free_context(process: &Process, state: &mut State, context: u64) {
    state.arrays.retain(|_, array| {
        if array.context == context && !array.part {
            give_back(process, array.base, array.card, array.charged);
        }
        array.context != context
    });
    state.mipmaps.retain(|_, mipmap| {
        if mipmap.context == context && !mipmap.external {
            give_back(process, mipmap.base, mipmap.card, mipmap.charged);
        }
        mipmap.context != context
    });
}

fn shape_of(handle: u64) -> Answer<Array3DShape> {
    let process = process()?;
    let state = process.state();
    Ok(state.arrays.get(&handle).ok_or(Code::INVALID_HANDLE)?.shape)
}

fn flat(shape: ArrayShape) -> Array3DShape {
    let ArrayShape { width, height, format, channels } = shape;
    Array3DShape { width, height, depth: 0, format, channels, flags: 0 }
}

fn narrow(wide: usize) -> u32 {
    u32::try_from(wide).unwrap_or(u32::MAX)
}

/// What memory an array needs.
#[repr(C)]
struct Requirements {
    size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

impl Requirements {
    fn of(size: u64) -> Answer<Self> {
        Ok(Self { size: pages::size(size)?, alignment: pages::size(PAGE)?, reserved: [0; 4] })
    }
}

api! {
    fn cuArrayCreate_v2(array: Out<u64>, shape: In<ArrayShape>) {
        array.check()?;
        array.put(create(flat(shape.get()?))?)
    }

    fn cuArrayCreate(array: Out<u64>, shape: In<ArrayShapeOld>) {
        array.check()?;
        let ArrayShapeOld { width, height, format, channels } = shape.get()?;
        array.put(create(flat(ArrayShape { width: width as usize, height: height as usize, format, channels }))?)
    }

    fn cuArray3DCreate_v2(array: Out<u64>, shape: In<Array3DShape>) {
        array.check()?;
        array.put(create(shape.get()?)?)
    }

    fn cuArray3DCreate(array: Out<u64>, shape: In<Array3DShapeOld>) {
        array.check()?;
        let Array3DShapeOld { width, height, depth, format, channels, flags } = shape.get()?;
        let shape = Array3DShape { width: width as usize, height: height as usize, depth: depth as usize, format, channels, flags };
        array.put(create(shape)?)
    }

    fn cuArrayGetDescriptor_v2(shape: Out<ArrayShape>, array: u64) {
        let Array3DShape { width, height, format, channels, .. } = shape_of(array)?;
        shape.put(ArrayShape { width, height, format, channels })
    }

    fn cuArrayGetDescriptor(shape: Out<ArrayShapeOld>, array: u64) {
        let Array3DShape { width, height, format, channels, .. } = shape_of(array)?;
        shape.put(ArrayShapeOld { width: narrow(width), height: narrow(height), format, channels })
    }

    fn cuArray3DGetDescriptor_v2(shape: Out<Array3DShape>, array: u64) { shape.put(shape_of(array)?) }

    fn cuArray3DGetDescriptor(shape: Out<Array3DShapeOld>, array: u64) {
        let Array3DShape { width, height, depth, format, channels, flags } = shape_of(array)?;
        shape.put(Array3DShapeOld { width: narrow(width), height: narrow(height), depth: narrow(depth), format, channels, flags })
    }

    fn cuArrayDestroy(array: u64) {
        let call = here()?;
        crate::context::drain(call.process, call.context)?;
        let mut state = call.state();
        if state.arrays.get(&array).ok_or(Code::INVALID_HANDLE)?.part {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(array) = state.arrays.remove(&array) {
            give_back(call.process, array.base, array.card, array.charged);
        }
        Ok(())
    }

    fn cuArrayGetMemoryRequirements(requirements: Out<Requirements>, array: u64, device: i32) {
        process()?.card(device)?;
        let size = layout(&shape_of(array)?)?.size;
        requirements.put(Requirements::of(pages::round_up(size, PAGE)?)?)
    }

    fn cuMipmappedArrayCreate(mipmap: Out<u64>, shape: In<Array3DShape>, levels: u32) {
        mipmap.check()?;
        mipmap.put(create_mipmap(&shape.get()?, levels, None)?)
    }

    fn cuMipmappedArrayGetLevel(array: Out<u64>, mipmap: u64, level: u32) {
        let process = process()?;
        let state = process.state();
        let mipmap = state.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        array.put(*mipmap.levels.get(level as usize).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMipmappedArrayDestroy(mipmap: u64) {
        let call = here()?;
        crate::context::drain(call.process, call.context)?;
        let mut state = call.state();
        let mipmap = state.mipmaps.remove(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        for level in &mipmap.levels {
            state.arrays.remove(level);
        }
        if !mipmap.external {
            give_back(call.process, mipmap.base, mipmap.card, mipmap.charged);
        }
        Ok(())
    }

    fn cuMipmappedArrayGetMemoryRequirements(requirements: Out<Requirements>, mipmap: u64, device: i32) {
        let process = process()?;
        process.card(device)?;
        let state = process.state();
        let mipmap = state.mipmaps.get(&mipmap).ok_or(Code::INVALID_HANDLE)?;
        requirements.put(Requirements::of(mipmap.charged)?)
    }
}
