"""numba-cuda in a container with 2 GiB: arrays there and back, then until there is no more."""

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

source = numpy.arange(1 << 20, dtype=numpy.float32)
there = cuda.to_device(source)
assert (there.copy_to_host() == source).all()
print("copied")
free, total = cuda.current_context().get_memory_info()
print("total", total >> 20)
held = []
try:
    while len(held) < 100:
        held.append(cuda.device_array(16 << 20, dtype=numpy.float32))
except (CudaAPIError, MemoryError) as error:
    print("refused after", len(held), "MEMORY" in str(error))
