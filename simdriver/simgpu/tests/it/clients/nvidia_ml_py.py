"""What a machine of the profile dgx-a100 says to nvidia-ml-py, whatever its driver."""

import ctypes
import os
import sys
import time

import pynvml as n

MIB = 1 << 20
HOLDER = int(sys.argv[1])  # A process with 2 GiB on card 1, which it keeps half busy.


def refuses(error, call, *arguments):
    try:
        answer = call(*arguments)
    except n.NVMLError as problem:
        assert problem.value == error, (call.__name__, problem)
    else:
        raise AssertionError((call.__name__, answer))


def eventually(holds):
    """On a busy host the holder may be late for a sampling period, but not for all of them."""
    for _ in range(1000):
        try:
            if holds():
                return
        except n.NVMLError as problem:
            assert problem.value == n.NVML_ERROR_NOT_FOUND, problem
        time.sleep(0.02)
    raise AssertionError("it never held")


refuses(n.NVML_ERROR_UNINITIALIZED, n.nvmlDeviceGetCount)
n.nvmlInit()
n.nvmlInit()
n.nvmlShutdown()
assert n.nvmlDeviceGetCount() == 8
assert n.nvmlSystemGetDriverVersion() == os.environ["DRIVER"]
assert n.nvmlSystemGetProcessName(HOLDER).endswith("nanogpu-simgpu")

first, second, third = (n.nvmlDeviceGetHandleByIndex(index) for index in range(3))
assert n.nvmlDeviceGetName(first) == "NVIDIA A100-SXM4-40GB"
uuids = {n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(index)) for index in range(8)}
assert len(uuids) == 8 and all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in uuids)
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(third))) == 2
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId("00000000:03:00.0")) == 2
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(third))) == 2
assert n.nvmlDeviceGetMinorNumber(third) == 2
assert n.nvmlDeviceGetPciInfo(third).busId == "00000000:03:00.0"
assert n.nvmlDeviceGetPciInfo(third).pciDeviceId == 0x20B010DE
assert n.nvmlDeviceGetArchitecture(first) == n.NVML_DEVICE_ARCH_AMPERE
assert n.nvmlDeviceGetCudaComputeCapability(first) == (8, 0)
assert n.nvmlDeviceGetBrand(first) == n.NVML_BRAND_NVIDIA
refuses(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlDeviceGetHandleByIndex, 8)
refuses(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetHandleByUUID, "GPU-none")
refuses(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetFanSpeed, first)
assert n.nvmlDeviceGetVirtualizationMode(first) == n.NVML_GPU_VIRTUALIZATION_MODE_NONE

# Memory and processes.
old, new = n.nvmlDeviceGetMemoryInfo(second), n.nvmlDeviceGetMemoryInfo(second, n.nvmlMemory_v2)
assert new.total == old.total == 40960 * MIB
assert new.used == (2048 + 300) * MIB and old.used == new.used + new.reserved
assert new.free == old.free == new.total - new.reserved - new.used
(process,) = n.nvmlDeviceGetComputeRunningProcesses(second)
assert (process.pid, process.usedGpuMemory) == (HOLDER, (2048 + 300) * MIB)
for version in ("_v2", ""):
    (same,) = getattr(n, "nvmlDeviceGetComputeRunningProcesses" + version)(second)
    assert same.pid == HOLDER
assert n.nvmlDeviceGetComputeRunningProcesses(first) == []
assert n.nvmlDeviceGetGraphicsRunningProcesses(second) == []
assert n.nvmlDeviceGetMPSComputeRunningProcesses(second) == []
assert n.nvmlDeviceGetBAR1MemoryInfo(first).bar1Total == 65536 * MIB

# How busy it is.
eventually(lambda: 0 < n.nvmlDeviceGetUtilizationRates(second).gpu < 100)
assert n.nvmlDeviceGetUtilizationRates(first).gpu == 0
samples = lambda: n.nvmlDeviceGetProcessUtilization(second, 0)
eventually(lambda: [sample.pid for sample in samples() if 0 < sample.smUtil < 100] == [HOLDER])
refuses(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetProcessUtilization, first, 0)
eventually(lambda: n.nvmlDeviceGetTemperature(second, 0) > n.nvmlDeviceGetTemperature(first, 0))
eventually(lambda: n.nvmlDeviceGetPowerUsage(second) > n.nvmlDeviceGetPowerUsage(first))
assert n.nvmlDeviceGetEnforcedPowerLimit(first) == 400_000
assert n.nvmlDeviceGetMaxClockInfo(first, n.NVML_CLOCK_SM) == 1410
assert n.nvmlDeviceGetClockInfo(second, n.NVML_CLOCK_SM) == 1410
assert n.nvmlDeviceGetTotalEnergyConsumption(first) > 0
assert len(n.nvmlDeviceGetSamples(second, n.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]) > 0

branch = int(os.environ["DRIVER"].split(".")[0])
if branch >= 550:
    infos = lambda: n.nvmlDeviceGetProcessesUtilizationInfo(second, 0)
    eventually(lambda: [info.pid for info in infos() if 0 < info.smUtil < 100] == [HOLDER])
    pci = n.nvmlPciInfoExt_v1_t(version=n.nvmlPciInfoExt_v1)
    n.nvmlDeviceGetPciInfoExt(third, ctypes.byref(pci))
    assert (pci.bus, pci.baseClass) == (3, 3)
else:
    missing = n.NVML_ERROR_FUNCTION_NOT_FOUND
    refuses(missing, n.nvmlDeviceGetProcessesUtilizationInfo, second, 0)
if branch >= 570:
    assert n.nvmlDeviceGetTemperatureV(first, 0) == n.nvmlDeviceGetTemperature(first, 0)
    text = n.nvmlDeviceGetUUID(third)
    same = n.nvmlDeviceGetHandleByUUIDV(text.encode(), n.NVML_UUID_TYPE_ASCII)
    assert n.nvmlDeviceGetIndex(same) == 2
    number = bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))
    same = n.nvmlDeviceGetHandleByUUIDV(number, n.NVML_UUID_TYPE_BINARY)
    assert n.nvmlDeviceGetIndex(same) == 2
    assert n.nvmlSystemGetDriverBranch().branch.startswith("r6")
(detail,) = n.nvmlDeviceGetRunningProcessDetailList(second, n.nvmlProcessDetailList_v1, 0)
assert (detail.pid, detail.usedGpuMemory) == (HOLDER, (2048 + 300) * MIB)
assert n.nvmlDeviceGetSupportedMemoryClocks(first) == [1215]
assert max(n.nvmlDeviceGetSupportedGraphicsClocks(first, 1215)) == 1410
assert n.nvmlDeviceGetCurrentClocksEventReasons(first) == n.nvmlClocksEventReasonGpuIdle
assert n.nvmlDeviceGetThermalSettings(first, 0)[0].currentTemp == 30

# Wiring.
assert n.nvmlDeviceGetTopologyCommonAncestor(first, second) == n.NVML_TOPOLOGY_NODE
assert n.nvmlDeviceGetTopologyCommonAncestor(first, third) == n.NVML_TOPOLOGY_SYSTEM
assert len(n.nvmlDeviceGetTopologyNearestGpus(first, n.NVML_TOPOLOGY_NODE)) == 1
assert len(n.nvmlSystemGetTopologyGpuSet(50)) == 2
links = [n.nvmlDeviceGetNvLinkState(first, link) for link in range(18)]
assert sum(links) == 12, links
assert n.nvmlDeviceGetNvLinkVersion(first, 0) == 4
assert n.nvmlDeviceGetNvLinkRemoteDeviceType(first, 0) == n.NVML_NVLINK_DEVICE_TYPE_SWITCH
status = n.nvmlDeviceGetP2PStatus(first, third, n.NVML_P2P_CAPS_INDEX_NVLINK)
assert status == n.NVML_P2P_STATUS_OK
assert list(n.nvmlDeviceGetCpuAffinity(first, 4)) == [0xFFFF << 48, 0, 0xFFFF << 48, 0]
assert list(n.nvmlDeviceGetMemoryAffinity(first, 1, n.NVML_AFFINITY_SCOPE_NODE)) == [1 << 3]
(count, speed) = n.nvmlDeviceGetFieldValues(first, [91, 90])
assert (count.value.uiVal, speed.value.uiVal) == (12, 25_000)
(nothing,) = n.nvmlDeviceGetFieldValues(first, [9999])
assert nothing.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED

# Health.
assert n.nvmlDeviceGetEccMode(first) == [1, 1]
assert n.nvmlDeviceGetTotalEccErrors(first, 1, 0) == 0
assert n.nvmlDeviceGetRemappedRows(first) == (0, 0, 0, 0)
assert n.nvmlDeviceGetSupportedEventTypes(first) & n.nvmlEventTypeXidCriticalError
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(first, n.nvmlEventTypeXidCriticalError, events)
refuses(n.NVML_ERROR_TIMEOUT, n.nvmlEventSetWait, events, 1)
n.nvmlEventSetFree(events)
refuses(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetSupportedVgpus, first)

if os.geteuid() == 0:
    # Modes.
    n.nvmlDeviceSetComputeMode(first, n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert n.nvmlDeviceGetComputeMode(first) == n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    n.nvmlDeviceSetPowerManagementLimit(first, 300_000)
    assert n.nvmlDeviceGetPowerManagementLimit(first) == 300_000
    n.nvmlDeviceSetAccountingMode(second, 1)
    assert HOLDER in n.nvmlDeviceGetAccountingPids(second)
    assert n.nvmlDeviceGetAccountingStats(second, HOLDER).isRunning == 1

    # MIG.
    assert n.nvmlDeviceGetMigMode(third) == [0, 0]
    assert n.nvmlDeviceGetMaxMigDeviceCount(third) == 7
    assert n.nvmlDeviceSetMigMode(third, 1) == n.NVML_SUCCESS
    size = n.nvmlDeviceGetGpuInstanceProfileInfo(third, n.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (size.id, size.sliceCount, size.multiprocessorCount) == (9, 3, 42)
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(third, size.id) == 2
    instance = n.nvmlDeviceCreateGpuInstance(third, size.id)
    compute = n.nvmlGpuInstanceCreateComputeInstance(instance, n.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE)
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(third, size.id) == 1
    device = n.nvmlDeviceGetMigDeviceHandleByIndex(third, 0)
    assert n.nvmlDeviceIsMigDeviceHandle(device) and not n.nvmlDeviceIsMigDeviceHandle(third)
    assert n.nvmlDeviceGetUUID(device).startswith("MIG-")
    assert n.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert n.nvmlDeviceGetMemoryInfo(device).total == 19968 * MIB
    assert n.nvmlDeviceGetAttributes(device).multiprocessorCount == 42
    assert n.nvmlDeviceGetGpuInstanceId(device) == n.nvmlGpuInstanceGetInfo(instance).id
    parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert n.nvmlDeviceGetIndex(parent) == 2
    refuses(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetMigDeviceHandleByIndex, third, 1)
    refuses(n.NVML_ERROR_IN_USE, n.nvmlGpuInstanceDestroy, instance)
    n.nvmlComputeInstanceDestroy(compute)
    n.nvmlGpuInstanceDestroy(instance)
    assert n.nvmlDeviceSetMigMode(third, 0) == n.NVML_SUCCESS

    # Memory limits of control groups, which came with 615.
    group = b"/sys/fs/cgroup"
    wanted = n.c_nvmlSetMemoryLimits_v1_t(nameSpace=group, softLimit=0, hardLimit=1024 * MIB)
    if os.environ["DRIVER"].startswith("615"):
        n.nvmlDeviceSetMemoryLimits_v1(first, wanted)
        limits = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=group)
        n.nvmlDeviceGetMemoryLimits_v1(first, limits)
        assert limits.hardLimit == 1024 * MIB and limits.currentUsed == 0
    else:
        missing = n.NVML_ERROR_FUNCTION_NOT_FOUND
        refuses(missing, n.nvmlDeviceSetMemoryLimits_v1, first, wanted)

n.nvmlShutdown()
refuses(n.NVML_ERROR_UNINITIALIZED, n.nvmlDeviceGetCount)
print("all as expected")
