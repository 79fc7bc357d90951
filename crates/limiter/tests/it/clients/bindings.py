"""cuda-bindings and nvidia-ml-py in a container with 2 GiB of one card of eight."""

import os

import pynvml
from cuda.bindings import driver as cuda

MIB = 1 << 20
OUT_OF_MEMORY = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY


def ok(answer):
    code, *values = answer
    assert code == cuda.CUresult.CUDA_SUCCESS, code
    return values[0] if len(values) == 1 else values


ok(cuda.cuInit(0))
device = ok(cuda.cuDeviceGet(0))
assert ok(cuda.cuDeviceTotalMem(device)) == 2048 * MIB
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
held = []
while True:
    code, address = cuda.cuMemAlloc(64 * MIB)
    if code != cuda.CUresult.CUDA_SUCCESS:
        assert code == OUT_OF_MEMORY, code
        break
    held.append(address)
print("blocks", len(held))
free, total = ok(cuda.cuMemGetInfo())
print("free", free // MIB, "of", total // MIB)
pynvml.nvmlInit()
print("cards", pynvml.nvmlDeviceGetCount())
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
print("nvml", memory.used // MIB, "of", memory.total // MIB)
(process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
assert process.pid == os.getpid()
print("process", process.usedGpuMemory // MIB)
for address in held:
    ok(cuda.cuMemFree(address))
print("free", ok(cuda.cuMemGetInfo())[0] // MIB)
