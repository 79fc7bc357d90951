//! What a copy or a fill does, worked out when it is asked for.

use std::sync::Arc;

use machine::Work;

use crate::abi::{Answer, Code};
use crate::memory::pages;
use crate::process::{Process, State};
use crate::shapes::Copy3D;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    ToHost,
    OnDevice,
    OnHost,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: u64,
    /// From row to row.
    pub(crate) pitch: u64,
    /// From layer to layer.
    pub(crate) layer: u64,
    /// Whether it is the host's, and if so whether the device can reach it by itself.
    pub(crate) host: bool,
    pub(crate) pinned: bool,
    /// Whether it is part of an array.
    pub(crate) array: bool,
}

/// A copy.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) src: End,
    pub(crate) dst: End,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    /// What the source held when the copy was asked for, where that is what counts.
    staged: Option<Arc<Vec<u8>>>,
    /// What the caller wrote, for those who ask a graph.
    pub(crate) asked: Option<Box<Copy3D>>,
}

// SAFETY: the pointers in what the caller wrote are handed back, never followed.
unsafe impl Send for Plan {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Plan {}

/// Memory types of the API.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

impl Plan {
    pub(crate) fn new(src: End, dst: End, [width, height, depth]: [u64; 3]) -> Self {
        Self { src, dst, width, height, depth, staged: None, asked: None }
    }

    /// A plain copy of bytes.
    pub(crate) fn linear(src: End, dst: End, bytes: usize) -> Self {
        Self::new(src, dst, [bytes as u64, 1, 1])
    }

    /// What a struct of the API asks for.
    pub(crate) fn of(state: &State, copy: &Copy3D) -> Answer<Self> {
        let Copy3D { width, height, depth, .. } = *copy;
        let extent = [width as u64, height as u64, depth as u64];
        let src = Corner {
            kind: copy.src_type,
            host: copy.src_host as u64,
            device: copy.src_device,
            array: copy.src_array,
            at: [copy.src_x as u64, copy.src_y as u64, copy.src_z as u64],
            pitch: copy.src_pitch as u64,
            rows: copy.src_height as u64,
        };
        let dst = Corner {
            kind: copy.dst_type,
            host: copy.dst_host as u64,
            device: copy.dst_device,
            array: copy.dst_array,
            at: [copy.dst_x as u64, copy.dst_y as u64, copy.dst_z as u64],
            pitch: copy.dst_pitch as u64,
            rows: copy.dst_height as u64,
        };
        let mut plan = Self::new(src.end(state, extent)?, dst.end(state, extent)?, extent);
        plan.asked = Some(Box::new(*copy));
        Ok(plan)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    pub(crate) fn way(&self) -> Way {
        match (self.src.host, self.dst.host) {
            (true, true) => Way::OnHost,
            (true, false) => Way::ToDevice,
            (false, true) => Way::ToHost,
            (false, false) => Way::OnDevice,
        }
    }

    /// Reads a source that the device cannot reach by itself: the caller may change it as soon as
    /// the call is over.
    pub(crate) fn stage(mut self) -> Answer<Self> {
        if !self.src.host || self.src.pinned || self.bytes() == 0 {
            return Ok(self);
        }
        let (width, height) = (self.width, self.height);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(pages::size(self.bytes())?).map_err(|_| Code::OUT_OF_MEMORY)?;
        for layer in 0..self.depth {
            for row in 0..height {
                let at = self.src.address + layer * self.src.layer + row * self.src.pitch;
                bytes.extend_from_slice(&pages::read(at, pages::size(width)?));
            }
        }
        self.src.address = bytes.as_ptr() as u64;
        (self.src.pitch, self.src.layer) = (width, width * height);
        self.staged = Some(Arc::new(bytes));
        Ok(self)
    }

    /// Whether its memory is still there, for copies that were described long ago.
    pub(crate) fn check(&self, state: &State) -> Answer {
        let extent = [self.width, self.height, self.depth];
        for end in [&self.src, &self.dst].into_iter().filter(|end| !end.host && !end.array) {
            let span = span(extent, end.pitch, end.layer).ok_or(Code::INVALID_VALUE)?;
            state.space.reach(end.address, span, false)?;
        }
        Ok(())
    }

    /// What it asks of the card.
    pub(crate) fn work(&self, process: &Process, card: usize) -> Work {
        process.cards[card.min(process.cards.len() - 1)].copy(self.way(), self.bytes())
    }

    /// Whether nobody on the host can tell if it is done before its time.
    pub(crate) fn early(&self) -> bool {
        !self.dst.host
    }

    /// Moves the bytes.
    pub(crate) fn run(&self) {
        let Ok(width) = pages::size(self.width) else { return };
        for layer in 0..self.depth {
            for row in 0..self.height {
                let src = self.src.address + layer * self.src.layer + row * self.src.pitch;
                let dst = self.dst.address + layer * self.dst.layer + row * self.dst.pitch;
                pages::copy(dst, src, width);
            }
        }
    }
}

/// One end of a copy as the API has it.
struct Corner {
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    at: [u64; 3],
    pitch: u64,
    rows: u64,
}

impl Corner {
    fn end(&self, state: &State, [width, height, depth]: [u64; 3]) -> Answer<End> {
        let [x, y, z] = self.at;
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            ARRAY => {
                let array = state.arrays.get(&self.array).ok_or(Code::INVALID_HANDLE)?;
                return array.part(self.at, [width, height, depth]);
            }
            _ => return Err(Code::INVALID_VALUE),
        };
        if base == 0 && width > 0 && height > 0 && depth > 0 {
            return Err(Code::INVALID_VALUE);
        }
        let pitch = if self.pitch == 0 { width.saturating_add(x) } else { self.pitch };
        let rows = if self.rows == 0 { height.saturating_add(y) } else { self.rows };
        if pitch < width.saturating_add(x) && height > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let layer = pitch.checked_mul(rows).ok_or(Code::INVALID_VALUE)?;
        let offset = [(z, layer), (y, pitch), (x, 1)]
            .into_iter()
            .try_fold(0_u64, |sum, (count, step)| sum.checked_add(count.checked_mul(step)?))
            .ok_or(Code::INVALID_VALUE)?;
        let address = base.checked_add(offset).ok_or(Code::INVALID_VALUE)?;
        let span = span([width, height, depth], pitch, layer).ok_or(Code::INVALID_VALUE)?;
        let (host, pinned) = if self.kind == HOST {
            (true, state.space.is_pinned(address))
        } else {
            state.space.reach(address, span, self.kind == UNIFIED)?
        };
        Ok(End { address, pitch, layer, host, pinned, array: false })
    }
}

/// From the first byte of a box to behind its last.
pub(crate) fn span([width, height, depth]: [u64; 3], pitch: u64, layer: u64) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    let rows = (height - 1).checked_mul(pitch)?;
    (depth - 1).checked_mul(layer)?.checked_add(rows)?.checked_add(width)
}

/// Rows of equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes of a value.
    pub(crate) unit: u32,
    /// Values in a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Fill {
    /// Checks what a caller asks.
    pub(crate) fn checked(self, state: &State) -> Answer<Self> {
        let unit = u64::from(self.unit);
        if !matches!(self.unit, 1 | 2 | 4)
            || !self.address.is_multiple_of(unit)
            || !self.pitch.is_multiple_of(unit)
        {
            return Err(Code::INVALID_VALUE);
        }
        let row = self.width.checked_mul(unit).ok_or(Code::INVALID_VALUE)?;
        if self.height > 1 && self.pitch < row {
            return Err(Code::INVALID_VALUE);
        }
        let span = span([row, self.height, 1], self.pitch, 0).ok_or(Code::INVALID_VALUE)?;
        state.space.reach(self.address, span, false)?;
        Ok(self)
    }

    pub(crate) fn work(&self, process: &Process, card: usize) -> Work {
        let bytes = self.width.saturating_mul(self.height).saturating_mul(u64::from(self.unit));
        process.cards[card.min(process.cards.len() - 1)].copy(Way::OnDevice, bytes)
    }

    /// Writes the values.
    pub(crate) fn run(&self) {
        let Ok(width) = pages::size(self.width) else { return };
        for row in 0..self.height {
            pages::fill(self.address + row * self.pitch, self.value, self.unit as usize, width);
        }
    }
}

impl Plan {
    /// As the struct of the API: what the caller wrote, or what amounts to the same.
    pub(crate) fn described(&self) -> Copy3D {
        if let Some(asked) = &self.asked {
            return **asked;
        }
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let kind = |end: &End| if end.host { HOST } else { DEVICE };
        let host = |end: &End| if end.host { end.address } else { 0 };
        let device = |end: &End| if end.host { 0 } else { end.address };
        let rows = |end: &End| end.layer.checked_div(end.pitch).unwrap_or(0);
        Copy3D {
            src_x: 0,
            src_y: 0,
            src_z: 0,
            src_level: 0,
            src_type: kind(&self.src),
            src_host: host(&self.src) as *const _,
            src_device: device(&self.src),
            src_array: 0,
            src_context: 0,
            src_pitch: size(self.src.pitch),
            src_height: size(rows(&self.src)),
            dst_x: 0,
            dst_y: 0,
            dst_z: 0,
            dst_level: 0,
            dst_type: kind(&self.dst),
            dst_host: host(&self.dst) as *mut _,
            dst_device: device(&self.dst),
            dst_array: 0,
            dst_context: 0,
            dst_pitch: size(self.dst.pitch),
            dst_height: size(rows(&self.dst)),
            width: size(self.width),
            height: size(self.height),
            depth: size(self.depth),
        }
    }
}
