"""nvitop in a container with 2 GiB of one card of eight."""

from nvitop import Device

(device,) = Device.all()
print("nvitop", device.memory_total() >> 20, device.memory_used() >> 20, len(device.processes()))
