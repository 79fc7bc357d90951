"""numba-cuda: arrays on the card and streams. Kernels would need NVIDIA's compiler."""

import numpy
from numba import cuda

host = numpy.arange(100_000, dtype=numpy.float32).reshape(100, 1000)
print("cards", len(cuda.gpus))
device = cuda.get_current_device()
print("name", device.name.decode() if isinstance(device.name, bytes) else device.name)
before = cuda.current_context().get_memory_info()

stream = cuda.stream()
on_card = cuda.to_device(host, stream=stream)
other = cuda.device_array_like(on_card)
other.copy_to_device(on_card, stream=stream)
part = other[10:20, ::2]
stream.synchronize()
assert (other.copy_to_host() == host).all()
assert (part.copy_to_host() == host[10:20, ::2]).all()
print("copied", host.nbytes, "bytes")

pinned = cuda.pinned_array(1000, dtype=numpy.int64)
pinned[:] = numpy.arange(1000)
numbers = cuda.device_array(1000, dtype=numpy.int64, stream=stream)
numbers.copy_to_device(pinned, stream=stream)
back = cuda.pinned_array(1000, dtype=numpy.int64)
numbers.copy_to_host(back, stream=stream)
stream.synchronize()
assert (back == numpy.arange(1000)).all()

start, end = cuda.event(), cuda.event()
start.record(stream)
end.record(stream)
end.synchronize()
assert start.elapsed_time(end) >= 0
print("total", before.total >> 20, "MiB")

large = []
try:
    while True:
        large.append(cuda.device_array(1 << 30, dtype=numpy.uint8))
except Exception as error:
    print("full after", len(large), "GiB:", str(error).split("CUDA_ERROR_")[-1].split()[0].strip("]'\""))
print("all as expected")
