//! Launches: how long a kernel takes, and the calls that start one.
//!
//! A kernel is a duration. Where it comes from, the first that says something:
//!
//! 1. the launch itself: attribute [`LENGTH`], or `LENGTH` as a key in `extra`;
//! 2. the machine's description, by the function's name;
//! 3. the name: `sleep_1ms`, `busy_250us_sms_20`;
//! 4. a model: blocks fill the multiprocessors in waves, and a wave takes [`WAVE`].

use machine::Work;

use crate::abi::{Answer, Code, In, Lane, Opaque, api};
use crate::process::{Call, here, meant, process};
use crate::shapes::{CardLaunch, LaunchAttribute, LaunchShape};
use crate::stream::find;
use crate::stream::order::{Order, issue};

/// The attribute by which a launch says how long it is: nanoseconds, then multiprocessors or 0.
pub(crate) const LENGTH: u32 = 0x4e47;
/// How long a wave of blocks takes, in nanoseconds.
const WAVE: u64 = 10_000;
const COOPERATIVE: u32 = 2;

/// A kernel that was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) length: Length,
    /// Where the arguments were, for those who ask a graph.
    pub(crate) arguments: usize,
    pub(crate) extra: usize,
    pub(crate) context: u64,
}

/// How long it takes on how many multiprocessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Length {
    pub(crate) nanoseconds: u64,
    pub(crate) multiprocessors: u32,
}

impl Launch {
    pub(crate) fn work(&self) -> Work {
        let Length { nanoseconds, multiprocessors } = self.length;
        Work::Kernel { multiprocessors, nanoseconds }
    }
}

/// How long a function of that name takes, by the machine's description or by the name itself.
pub(crate) fn known(name: &str) -> Answer<Option<Length>> {
    let scripted = process()?.joined.scripted(name).map(|kernel| Length {
        nanoseconds: kernel.nanoseconds,
        multiprocessors: kernel.multiprocessors.unwrap_or(0),
    });
    Ok(scripted.or_else(|| named(name)))
}

/// Reads a name such as `busy_250us_sms_20`: nanoseconds, and multiprocessors or 0.
fn named(name: &str) -> Option<Length> {
    let words: Vec<&str> = name.split('_').collect();
    let nanoseconds = words.iter().find_map(|word| duration(word))?;
    let after = words.iter().position(|word| *word == "sms").and_then(|at| words.get(at + 1));
    let multiprocessors = after.and_then(|word| word.parse().ok()).unwrap_or(0);
    Some(Length { nanoseconds, multiprocessors })
}

fn duration(word: &str) -> Option<u64> {
    let end = word.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = word[..end].parse().ok()?;
    let unit = match &word[end..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// The model: waves of blocks over the multiprocessors.
fn modelled(blocks: u64, threads: u64, resident: u64, multiprocessors: u64) -> Length {
    let each = (resident / threads.max(1)).clamp(1, 32);
    let used = blocks.clamp(1, multiprocessors.max(1));
    let waves = blocks.div_ceil(multiprocessors.max(1) * each).max(1);
    Length {
        nanoseconds: waves.saturating_mul(WAVE),
        multiprocessors: u32::try_from(used).unwrap_or(u32::MAX),
    }
}

fn product(sizes: [u32; 3]) -> u64 {
    sizes.iter().fold(1_u64, |product, size| product.saturating_mul((*size).into()))
}

/// What `extra` says of the length: pairs of keys and pointers, up to a zero.
fn in_extra(extra: In<usize>) -> Option<Length> {
    if extra.is_null() {
        return None;
    }
    let mut at = 0;
    while at < 32 {
        match extra.at(at).ok()? {
            0 => return None,
            key if key == LENGTH as usize => {
                return length_at(extra.at(at + 1).ok()? as *const u64);
            }
            _ => at += 2,
        }
    }
    None
}

fn length_at(pointer: *const u64) -> Option<Length> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a caller that uses our key points to the two numbers it stands for.
    let [nanoseconds, multiprocessors] = unsafe { pointer.cast::<[u64; 2]>().read_unaligned() };
    Some(Length { nanoseconds, multiprocessors: u32::try_from(multiprocessors).unwrap_or(0) })
}

/// What a launch asks for, before it is known which kernel it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) arguments: *const Opaque,
    pub(crate) extra: *const Opaque,
    pub(crate) asked: Option<Length>,
    pub(crate) cooperative: bool,
}

/// Checks a launch and works out how long it is.
pub(crate) fn prepare(call: &Call, request: &Request) -> Answer<Launch> {
    let Request { function: handle, grid, block, shared, arguments, extra, .. } = *request;
    let state = call.state();
    let function = state.functions.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    let card = &call.process.cards[call.card];
    let threads = product(block);
    if product(grid) == 0 || threads == 0 || threads > 1024 || block[2] > 64 {
        return Err(Code::INVALID_VALUE);
    }
    if grid[1] > 65_535 || grid[2] > 65_535 || grid[0] > i32::MAX.unsigned_abs() {
        return Err(Code::INVALID_VALUE);
    }
    if i64::from(shared) > i64::from(function.dynamic_shared.max(48 << 10)) {
        return Err(Code::INVALID_VALUE);
    }
    let context = state.context(call.context)?;
    let width = context.green.unwrap_or(card.multiprocessors).min(card.multiprocessors);
    let each = (u64::from(card.threads()) / threads).clamp(1, 32);
    if request.cooperative && product(grid) > each * u64::from(width) {
        return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let mut length = request
        .asked
        .or_else(|| in_extra(crate::abi::input(extra.cast())))
        .or(function.length)
        .unwrap_or_else(|| modelled(product(grid), threads, card.threads().into(), width.into()));
    if length.multiprocessors == 0 {
        length.multiprocessors = u32::try_from(product(grid)).unwrap_or(u32::MAX);
    }
    length.multiprocessors = length.multiprocessors.min(width);
    Ok(Launch {
        function: handle,
        grid,
        block,
        shared,
        length,
        arguments: arguments as usize,
        extra: extra as usize,
        context: call.context,
    })
}

/// Launches in a stream.
fn launch(request: &Request, stream: u64) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let launch = prepare(&call, request)?;
    issue(&call, &stream, Order::Kernel(launch))
}

fn launch_ex(
    lane: Lane,
    shape: In<LaunchShape>,
    function: u64,
    arguments: *const Opaque,
    extra: *const Opaque,
) -> Answer {
    let shape = shape.get()?;
    let mut request = Request {
        function,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        arguments,
        extra,
        asked: None,
        cooperative: false,
    };
    let attributes: In<LaunchAttribute> = crate::abi::input(shape.attributes);
    for index in 0..shape.count as usize {
        let attribute = attributes.at(index)?;
        match attribute.id {
            LENGTH => {
                let multiprocessors = u32::try_from(attribute.value[1]).unwrap_or(0);
                request.asked = Some(Length { nanoseconds: attribute.value[0], multiprocessors });
            }
            COOPERATIVE => request.cooperative = attribute.value[0] & 0xffff_ffff != 0,
            _ => {}
        }
    }
    launch(&request, meant(shape.stream, lane))
}

/// The oldest way: the block's shape was set before.
fn launch_grid(function: u64, width: i32, height: i32, stream: u64) -> Answer {
    let call = here()?;
    let size = |size: i32| u32::try_from(size).map_err(|_| Code::INVALID_VALUE);
    let (block, shared) = {
        let state = call.state();
        let function = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
        (function.block, function.shared)
    };
    let request = Request {
        function,
        grid: [size(width)?, size(height)?, 1],
        block,
        shared,
        arguments: std::ptr::null(),
        extra: std::ptr::null(),
        asked: None,
        cooperative: false,
    };
    launch(&request, stream)
}

api! {
    fn cuLaunchKernel | cuLaunchKernel_ptsz(
        lane, function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *const Opaque, extra: *const Opaque,
    ) {
        let request = Request {
            function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, arguments, extra,
            asked: None, cooperative: false,
        };
        launch(&request, meant(stream, lane))
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(lane, shape: In<LaunchShape>, function: u64, arguments: *const Opaque, extra: *const Opaque) {
        launch_ex(lane, shape, function, arguments, extra)
    }

    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        lane, function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *const Opaque,
    ) {
        let request = Request {
            function, grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, arguments,
            extra: std::ptr::null(), asked: None, cooperative: true,
        };
        launch(&request, meant(stream, lane))
    }

    // One launch on each card; each stream says which.
    fn cuLaunchCooperativeKernelMultiDevice(launches: In<CardLaunch>, count: u32, flags: u32) {
        let here = here()?;
        if count == 0 || flags > 3 { return Err(Code::INVALID_VALUE); }
        for one in launches.all(count as usize)? {
            if one.stream < 3 { return Err(Code::INVALID_HANDLE); }
            let stream = find(&here, one.stream)?;
            let call = Call { process: here.process, context: stream.context, card: stream.card };
            let request = Request {
                function: one.function, grid: one.grid, block: one.block, shared: one.shared,
                arguments: one.arguments, extra: std::ptr::null(), asked: None, cooperative: true,
            };
            let launch = prepare(&call, &request)?;
            issue(&call, &stream, Order::Kernel(launch))?;
        }
        Ok(())
    }

    fn cuLaunch(function: u64) { launch_grid(function, 1, 1, 1) }
    fn cuLaunchGrid(function: u64, width: i32, height: i32) { launch_grid(function, width, height, 1) }
    fn cuLaunchGridAsync(function: u64, width: i32, height: i32, stream: u64) { launch_grid(function, width, height, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_long_and_how_wide() {
        let length = |nanoseconds, multiprocessors| Some(Length { nanoseconds, multiprocessors });
        assert_eq!(named("sleep_1ms"), length(1_000_000, 0));
        assert_eq!(named("busy_250us_sms_20"), length(250_000, 20));
        assert_eq!(named("_Z9busy_3s_xPf"), length(3_000_000_000, 0));
        assert_eq!(named("saxpy"), None);
        assert_eq!(named("v2_kernel"), None);
        assert_eq!(named("_99999999999999999999s_"), None);
    }

    #[test]
    fn blocks_fill_the_card_in_waves() {
        let one = modelled(1, 256, 2048, 108);
        assert_eq!(one, Length { nanoseconds: WAVE, multiprocessors: 1 });
        let full = modelled(108 * 8, 256, 2048, 108);
        assert_eq!(full, Length { nanoseconds: WAVE, multiprocessors: 108 });
        assert_eq!(modelled(108 * 8 + 1, 256, 2048, 108).nanoseconds, 2 * WAVE);
    }
}
