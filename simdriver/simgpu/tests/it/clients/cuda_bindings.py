"""cuda-bindings: the driver API from Python. Prints what it saw; argument 1 is a process on card 1."""

import ctypes
import sys
import uuid

import pynvml
from cuda.bindings import driver as cuda

SUCCESS = cuda.CUresult.CUDA_SUCCESS


def ok(answer):
    code, *values = answer
    assert code == SUCCESS, code
    return values[0] if len(values) == 1 else values


def code(answer):
    return answer[0].name


def main():
    print(code(cuda.cuDeviceGetCount()), "before cuInit")
    ok(cuda.cuInit(0))
    print("cuda", ok(cuda.cuDriverGetVersion()), "cards", ok(cuda.cuDeviceGetCount()))
    device = ok(cuda.cuDeviceGet(0))
    print("name", ok(cuda.cuDeviceGetName(64, device)).split(b"\0")[0].decode())

    # Both libraries tell of the same cards.
    pynvml.nvmlInit()
    for index in range(ok(cuda.cuDeviceGetCount())):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        card = ok(cuda.cuDeviceGet(index))
        seen = "GPU-" + str(uuid.UUID(bytes=bytes(ok(cuda.cuDeviceGetUuid(card)).bytes)))
        assert seen == pynvml.nvmlDeviceGetUUID(handle), index
        bus = ok(cuda.cuDeviceGetPCIBusId(32, card)).split(b"\0")[0].decode()
        assert pynvml.nvmlDeviceGetPciInfo(handle).busId.endswith(bus[4:]), bus
    print("uuids and bus ids agree")

    # The other process's memory is missing on its card.
    other = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(1))))
    ok(cuda.cuCtxSetCurrent(other))
    free, total = ok(cuda.cuMemGetInfo())
    print("taken on card 1:", (total - free) >> 20, "MiB")
    ok(cuda.cuDevicePrimaryCtxRelease(ok(cuda.cuDeviceGet(1))))

    context = ok(cuda.cuDevicePrimaryCtxRetain(device))
    ok(cuda.cuCtxSetCurrent(context))
    size = 1 << 20
    source = bytes(range(256)) * (size // 256)
    target = ctypes.create_string_buffer(size)
    stream = ok(cuda.cuStreamCreate(1))
    address = ok(cuda.cuMemAlloc(size))
    ok(cuda.cuMemcpyHtoDAsync(address, source, size, stream))
    ok(cuda.cuMemsetD8Async(int(address) + 10, 7, 3, stream))
    ok(cuda.cuMemcpyDtoHAsync(target, address, size, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert target.raw == source[:10] + b"\7\7\7" + source[13:]
    print("copied", size, "bytes")

    # A kernel is as long as its name says, by the card's own clock.
    module = ok(cuda.cuModuleLoadData(b".version 8.0\n.target sm_80\n\0"))
    kernel = ok(cuda.cuModuleGetFunction(module, b"busy_5ms"))
    start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    launch = lambda: ok(cuda.cuLaunchKernel(kernel, 1000, 1, 1, 128, 1, 1, 0, stream, 0, 0))
    launch()
    ok(cuda.cuEventRecord(start, stream))
    launch()
    ok(cuda.cuEventRecord(end, stream))
    print(code(cuda.cuEventQuery(end)), "while it runs")
    ok(cuda.cuEventSynchronize(end))
    print("kernel", round(ok(cuda.cuEventElapsedTime(start, end)), 3), "ms")

    # The same, captured and launched as a graph.
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    launch()
    launch()
    graph = ok(cuda.cuStreamEndCapture(stream))
    exec_graph = ok(cuda.cuGraphInstantiate(graph, 0))
    nodes, count = ok(cuda.cuGraphGetNodes(graph, 8))
    ok(cuda.cuGraphLaunch(exec_graph, stream))
    ok(cuda.cuStreamSynchronize(stream))
    print("graph of", count, "nodes")

    print(code(cuda.cuMemAlloc(1 << 45)), "for 32 TiB")
    print(code(cuda.cuMemFree(12345)), "for memory that is not there")
    pool = ok(cuda.cuDeviceGetDefaultMemPool(device))
    block = ok(cuda.cuMemAllocAsync(3 << 20, stream))
    used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    print("pool uses", int(ok(cuda.cuMemPoolGetAttribute(pool, used))))
    ok(cuda.cuMemFreeAsync(block, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert int(ok(cuda.cuMemPoolGetAttribute(pool, used))) == 0
    print(ok(cuda.cuGetErrorString(cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY)).decode())
    print("all as expected")


if __name__ == "__main__":
    assert sys.argv[1].isdigit()
    main()
