//! The structs of the interface, field by field. The tests compare them with the
//! bindings of another.

use std::ffi::c_char;

use crate::abi::{Handle, Status};

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*
    };
}

structs! {
    PciInfo {
        bus_id_legacy: [c_char; 16],
        domain: u32,
        bus: u32,
        device: u32,
        pci_device_id: u32,
        pci_sub_system_id: u32,
        bus_id: [c_char; 32],
    }
    /// Of the first version, without the long bus id; the second only adds reserved words.
    PciInfoV2 {
        bus_id: [c_char; 16],
        domain: u32,
        bus: u32,
        device: u32,
        pci_device_id: u32,
        pci_sub_system_id: u32,
        reserved: [u32; 4],
    }
    PciInfoV1 {
        bus_id: [c_char; 16],
        domain: u32,
        bus: u32,
        device: u32,
        pci_device_id: u32,
    }
    PciInfoExt {
        version: u32,
        domain: u32,
        bus: u32,
        device: u32,
        pci_device_id: u32,
        pci_sub_system_id: u32,
        base_class: u32,
        sub_class: u32,
        bus_id: [c_char; 32],
    }
    Utilization { gpu: u32, memory: u32, }
    Memory { total: u64, free: u64, used: u64, }
    MemoryV2 { version: u32, total: u64, reserved: u64, free: u64, used: u64, }
    ProcessInfoV1 { pid: u32, used_gpu_memory: u64, }
    ProcessInfo {
        pid: u32,
        used_gpu_memory: u64,
        gpu_instance_id: u32,
        compute_instance_id: u32,
    }
    ProcessDetail {
        pid: u32,
        used_gpu_memory: u64,
        gpu_instance_id: u32,
        compute_instance_id: u32,
        used_gpu_cc_protected_memory: u64,
    }
    ProcessDetailList { version: u32, mode: u32, count: u32, array: *mut ProcessDetail, }
    ProcessUtilizationSample {
        pid: u32,
        time_stamp: u64,
        sm_util: u32,
        mem_util: u32,
        enc_util: u32,
        dec_util: u32,
    }
    ProcessUtilizationInfo {
        time_stamp: u64,
        pid: u32,
        sm_util: u32,
        mem_util: u32,
        enc_util: u32,
        dec_util: u32,
        jpg_util: u32,
        ofa_util: u32,
    }
    ProcessesUtilizationInfo {
        version: u32,
        count: u32,
        last_seen_time_stamp: u64,
        array: *mut ProcessUtilizationInfo,
    }
    DeviceAttributes {
        multiprocessor_count: u32,
        shared_copy_engine_count: u32,
        shared_decoder_count: u32,
        shared_encoder_count: u32,
        shared_jpeg_count: u32,
        shared_ofa_count: u32,
        gpu_instance_slice_count: u32,
        compute_instance_slice_count: u32,
        memory_size_mb: u64,
    }
    RowRemapperHistogram { max: u32, high: u32, partial: u32, low: u32, none: u32, }
    Sample { time_stamp: u64, value: u64, }
    ViolationTime { reference_time: u64, violation_time: u64, }
    EventData {
        device: Handle,
        event_type: u64,
        data: u64,
        gpu_instance_id: u32,
        compute_instance_id: u32,
    }
    AccountingStats {
        gpu_utilization: u32,
        memory_utilization: u32,
        max_memory_usage: u64,
        time: u64,
        start_time: u64,
        is_running: u32,
        reserved: [u32; 5],
    }
    FieldValue {
        field_id: u32,
        scope_id: u32,
        timestamp: i64,
        latency_usec: i64,
        value_type: u32,
        status: Status,
        value: u64,
    }
    EccErrorCounts { l1_cache: u64, l2_cache: u64, device_memory: u64, register_file: u64, }
    Placement { start: u32, size: u32, }
    GpuInstanceProfileInfo {
        id: u32,
        is_p2p_supported: u32,
        slice_count: u32,
        instance_count: u32,
        multiprocessor_count: u32,
        copy_engine_count: u32,
        decoder_count: u32,
        encoder_count: u32,
        jpeg_count: u32,
        ofa_count: u32,
        memory_size_mb: u64,
    }
    GpuInstanceProfileInfoV2 {
        version: u32,
        id: u32,
        is_p2p_supported: u32,
        slice_count: u32,
        instance_count: u32,
        multiprocessor_count: u32,
        copy_engine_count: u32,
        decoder_count: u32,
        encoder_count: u32,
        jpeg_count: u32,
        ofa_count: u32,
        memory_size_mb: u64,
        name: [c_char; 96],
    }
    GpuInstanceProfileInfoV3 {
        version: u32,
        id: u32,
        slice_count: u32,
        instance_count: u32,
        multiprocessor_count: u32,
        copy_engine_count: u32,
        decoder_count: u32,
        encoder_count: u32,
        jpeg_count: u32,
        ofa_count: u32,
        memory_size_mb: u64,
        name: [c_char; 96],
        capabilities: u32,
    }
    GpuInstanceInfo { device: Handle, id: u32, profile_id: u32, placement: Placement, }
    ComputeInstanceProfileInfo {
        id: u32,
        slice_count: u32,
        instance_count: u32,
        multiprocessor_count: u32,
        shared_copy_engine_count: u32,
        shared_decoder_count: u32,
        shared_encoder_count: u32,
        shared_jpeg_count: u32,
        shared_ofa_count: u32,
    }
    ComputeInstanceProfileInfoV2 {
        version: u32,
        info: ComputeInstanceProfileInfo,
        name: [c_char; 96],
    }
    ComputeInstanceInfo {
        device: Handle,
        gpu_instance: Handle,
        id: u32,
        profile_id: u32,
        placement: Placement,
    }
    ThermalSensor {
        controller: u32,
        default_min: i32,
        default_max: i32,
        current: i32,
        target: u32,
    }
    ThermalSettings { count: u32, sensor: [ThermalSensor; 3], }
    DynamicPstate { present: u32, percentage: u32, inc_threshold: u32, dec_threshold: u32, }
    DynamicPstates { flags: u32, utilization: [DynamicPstate; 8], }
    Temperature { version: u32, sensor: u32, degrees: i32, }
    Versioned { version: u32, value: i32, }
    FabricInfo { cluster_uuid: [u8; 16], status: Status, clique_id: u32, state: u32, }
    BridgeChips { count: u8, chips: [[u32; 2]; 128], }
    DriverBranch { version: u32, branch: [c_char; 80], }
    Uuid { version: u32, kind: u32, value: [c_char; 41], }
    SetMemoryLimits { group: *mut c_char, soft: u64, hard: u64, }
    GetMemoryLimits { group: *mut c_char, soft: u64, hard: u64, used: u64, }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use nvml_wrapper_sys::bindings as other;

    use super::*;

    /// Compares size, and the offset of each named field.
    macro_rules! same {
        ($($ours:ident = $theirs:ident { $($field:ident = $their_field:ident),* })*) => {
            $(
                assert_eq!(size_of::<$ours>(), size_of::<other::$theirs>(), stringify!($ours));
                $(
                    assert_eq!(
                        offset_of!($ours, $field),
                        offset_of!(other::$theirs, $their_field),
                        concat!(stringify!($ours), ".", stringify!($field))
                    );
                )*
            )*
        };
    }

    #[test]
    fn structs_are_laid_out_as_in_the_bindings_of_another() {
        same! {
            PciInfo = nvmlPciInfo_t {
                bus_id_legacy = busIdLegacy, domain = domain, bus = bus, device = device,
                pci_device_id = pciDeviceId, pci_sub_system_id = pciSubSystemId, bus_id = busId
            }
            PciInfoExt = nvmlPciInfoExt_v1_t {
                version = version, domain = domain, pci_sub_system_id = pciSubSystemId,
                base_class = baseClass, sub_class = subClass, bus_id = busId
            }
            Utilization = nvmlUtilization_t { gpu = gpu, memory = memory }
            Memory = nvmlMemory_t { total = total, free = free, used = used }
            MemoryV2 = nvmlMemory_v2_t {
                version = version, total = total, reserved = reserved, free = free, used = used
            }
            ProcessInfoV1 = nvmlProcessInfo_v1_t { pid = pid, used_gpu_memory = usedGpuMemory }
            ProcessInfo = nvmlProcessInfo_t {
                pid = pid, used_gpu_memory = usedGpuMemory, gpu_instance_id = gpuInstanceId,
                compute_instance_id = computeInstanceId
            }
            ProcessDetail = nvmlProcessDetail_v1_t {
                used_gpu_memory = usedGpuMemory, gpu_instance_id = gpuInstanceId,
                used_gpu_cc_protected_memory = usedGpuCcProtectedMemory
            }
            ProcessDetailList = nvmlProcessDetailList_v1_t {
                mode = mode, count = numProcArrayEntries, array = procArray
            }
            ProcessUtilizationSample = nvmlProcessUtilizationSample_t {
                pid = pid, time_stamp = timeStamp, sm_util = smUtil, dec_util = decUtil
            }
            ProcessUtilizationInfo = nvmlProcessUtilizationInfo_v1_t {
                time_stamp = timeStamp, pid = pid, sm_util = smUtil, ofa_util = ofaUtil
            }
            ProcessesUtilizationInfo = nvmlProcessesUtilizationInfo_v1_t {
                count = processSamplesCount, last_seen_time_stamp = lastSeenTimeStamp,
                array = procUtilArray
            }
            DeviceAttributes = nvmlDeviceAttributes_t {
                multiprocessor_count = multiprocessorCount,
                compute_instance_slice_count = computeInstanceSliceCount,
                memory_size_mb = memorySizeMB
            }
            RowRemapperHistogram = nvmlRowRemapperHistogramValues_t { max = max, none = none }
            Sample = nvmlSample_t { time_stamp = timeStamp, value = sampleValue }
            ViolationTime = nvmlViolationTime_t {
                reference_time = referenceTime, violation_time = violationTime
            }
            EventData = nvmlEventData_t {
                device = device, event_type = eventType, data = eventData,
                gpu_instance_id = gpuInstanceId, compute_instance_id = computeInstanceId
            }
            AccountingStats = nvmlAccountingStats_t {
                gpu_utilization = gpuUtilization, max_memory_usage = maxMemoryUsage, time = time,
                start_time = startTime, is_running = isRunning, reserved = reserved
            }
            FieldValue = nvmlFieldValue_t {
                field_id = fieldId, scope_id = scopeId, timestamp = timestamp,
                latency_usec = latencyUsec, value_type = valueType, status = nvmlReturn,
                value = value
            }
            EccErrorCounts = nvmlEccErrorCounts_t {
                l1_cache = l1Cache, device_memory = deviceMemory, register_file = registerFile
            }
            Placement = nvmlGpuInstancePlacement_t { start = start, size = size }
            GpuInstanceProfileInfo = nvmlGpuInstanceProfileInfo_t {
                id = id, ofa_count = ofaCount, memory_size_mb = memorySizeMB
            }
            GpuInstanceProfileInfoV2 = nvmlGpuInstanceProfileInfo_v2_t {
                id = id, memory_size_mb = memorySizeMB, name = name
            }
            GpuInstanceProfileInfoV3 = nvmlGpuInstanceProfileInfo_v3_t {
                id = id, memory_size_mb = memorySizeMB, name = name, capabilities = capabilities
            }
            GpuInstanceInfo = nvmlGpuInstanceInfo_t {
                device = device, id = id, profile_id = profileId, placement = placement
            }
            ComputeInstanceProfileInfo = nvmlComputeInstanceProfileInfo_t {
                id = id, shared_ofa_count = sharedOfaCount
            }
            ComputeInstanceProfileInfoV2 = nvmlComputeInstanceProfileInfo_v2_t {
                info = id, name = name
            }
            ComputeInstanceInfo = nvmlComputeInstanceInfo_t {
                gpu_instance = gpuInstance, id = id, profile_id = profileId, placement = placement
            }
            ThermalSettings = nvmlGpuThermalSettings_t { count = count, sensor = sensor }
            DynamicPstates = nvmlGpuDynamicPstatesInfo_t {
                flags = flags, utilization = utilization
            }
            FabricInfo = nvmlGpuFabricInfo_t {
                cluster_uuid = clusterUuid, status = status, clique_id = cliqueId, state = state
            }
            BridgeChips = nvmlBridgeChipHierarchy_t { count = bridgeCount, chips = bridgeChipInfo }
        }
    }
}
