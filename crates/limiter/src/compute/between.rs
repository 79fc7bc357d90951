//! Calls between launches: copies that wait for what was launched, and orders that hold a stream up.
//!
//! None of them reads its arguments, so all are taken as words: what is narrower lies in the same register
//! and is passed on as it came.

use super::{Wait, before_copy, waiting};
use crate::driver::hooks;

/// Copies that return when the work before them is done. The time until the next launch is not the device's.
macro_rules! copies {
    ($($name:ident($($arg:ident),*))*) => {
        hooks! {$(
            $name($($arg: u64),*) |real| {
                waiting(Wait::Part, || real($($arg),*))
            }
        )*}
    };
}

copies! {
    cuMemcpy(to, from, size)
    cuMemcpy_ptds(to, from, size)
    cuMemcpyDtoH(to, from, size)
    cuMemcpyDtoH_v2(to, from, size)
    cuMemcpyDtoH_v2_ptds(to, from, size)
    cuMemcpyHtoD(to, from, size)
    cuMemcpyHtoD_v2(to, from, size)
    cuMemcpyHtoD_v2_ptds(to, from, size)
    cuMemcpyAtoD(to, from, at, size)
    cuMemcpyAtoD_v2(to, from, at, size)
    cuMemcpyAtoD_v2_ptds(to, from, at, size)
    cuMemcpyDtoA(to, at, from, size)
    cuMemcpyDtoA_v2(to, at, from, size)
    cuMemcpyDtoA_v2_ptds(to, at, from, size)
    cuMemcpyAtoH(to, from, at, size)
    cuMemcpyAtoH_v2(to, from, at, size)
    cuMemcpyAtoH_v2_ptds(to, from, at, size)
    cuMemcpyHtoA(to, at, from, size)
    cuMemcpyHtoA_v2(to, at, from, size)
    cuMemcpyHtoA_v2_ptds(to, at, from, size)
    cuMemcpyAtoA(to, at, from, begin, size)
    cuMemcpyAtoA_v2(to, at, from, begin, size)
    cuMemcpyAtoA_v2_ptds(to, at, from, begin, size)
    cuMemcpy2D(copy)
    cuMemcpy2D_v2(copy)
    cuMemcpy2D_v2_ptds(copy)
    cuMemcpy2DUnaligned(copy)
    cuMemcpy2DUnaligned_v2(copy)
    cuMemcpy2DUnaligned_v2_ptds(copy)
    cuMemcpy3D(copy)
    cuMemcpy3D_v2(copy)
    cuMemcpy3D_v2_ptds(copy)
    cuMemcpy3DPeer(copy)
    cuMemcpy3DPeer_ptds(copy)
    cuMemcpyPeer(to, there, from, here, size)
    cuMemcpyPeer_ptds(to, there, from, here, size)
}

/// Orders to a stream that may wait for the host, for another device or for a word in memory: what was
/// launched before ends there, and what comes after begins anew.
macro_rules! holds {
    ($($default:literal: $($name:ident($first:ident $(, $arg:ident)*))*;)*) => {
        hooks! {$($(
            $name($first: u64 $(, $arg: u64)*) |real| {
                before_copy(if $first == 0 { $default } else { $first });
                real($first $(, $arg)*)
            }
        )*)*}
    };
}

holds! {
    1: cuLaunchHostFunc(stream, function, data)
       cuLaunchHostFunc_v2(stream, function, data, mode)
       cuStreamAddCallback(stream, function, data, flags)
       cuStreamWaitValue32(stream, address, value, flags)
       cuStreamWaitValue32_v2(stream, address, value, flags)
       cuStreamWaitValue64(stream, address, value, flags)
       cuStreamWaitValue64_v2(stream, address, value, flags)
       cuStreamBatchMemOp(stream, count, list, flags)
       cuStreamBatchMemOp_v2(stream, count, list, flags);
    2: cuLaunchHostFunc_ptsz(stream, function, data)
       cuLaunchHostFunc_v2_ptsz(stream, function, data, mode)
       cuStreamAddCallback_ptsz(stream, function, data, flags)
       cuStreamWaitValue32_ptsz(stream, address, value, flags)
       cuStreamWaitValue32_v2_ptsz(stream, address, value, flags)
       cuStreamWaitValue64_ptsz(stream, address, value, flags)
       cuStreamWaitValue64_v2_ptsz(stream, address, value, flags)
       cuStreamBatchMemOp_ptsz(stream, count, list, flags)
       cuStreamBatchMemOp_v2_ptsz(stream, count, list, flags);
}

hooks! {
    cuWaitExternalSemaphoresAsync(list: u64, parameters: u64, count: u64, stream: u64) |real| {
        before_copy(if stream == 0 { 1 } else { stream });
        real(list, parameters, count, stream)
    }

    cuWaitExternalSemaphoresAsync_ptsz(list: u64, parameters: u64, count: u64, stream: u64) |real| {
        before_copy(if stream == 0 { 2 } else { stream });
        real(list, parameters, count, stream)
    }
}
