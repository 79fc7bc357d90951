"""nvitop's own view, by its classes."""

import json

import nvitop

devices = nvitop.Device.all()
print(
    json.dumps(
        {
            "driver": nvitop.Device.driver_version(),
            "cuda": nvitop.Device.cuda_driver_version(),
            "names": [device.name() for device in devices],
            "used": [device.memory_used() for device in devices],
            "busy": [device.gpu_utilization() for device in devices],
            "processes": [sorted(device.processes()) for device in devices],
        }
    )
)
