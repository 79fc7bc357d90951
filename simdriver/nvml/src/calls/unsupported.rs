//! Names that are there and answer that the card cannot do it, as the real library does on
//! cards like ours. What the library checks before that, ours checks too.

use crate::abi::{Handle, Status};
use crate::session::{answer, since};

/// Functions whose first argument is a device. Whatever else a caller passes is not looked at,
/// which the C calling convention allows.
macro_rules! of_devices {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(device: Handle) -> Status {
                answer(|session| session.device(device).and(Err(Status::NOT_SUPPORTED)))
            }
        )*

        /// Those of devices.
        pub(crate) const OF_DEVICES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Functions without a device.
macro_rules! of_none {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> Status {
                answer(|_| Err(Status::NOT_SUPPORTED))
            }
        )*

        /// Those of none.
        pub(crate) const OF_NONE: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Functions that came after driver 555: an older one does not have them.
macro_rules! newer {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> Status {
                answer(|session| since(560, session, |_| Err(Status::NOT_SUPPORTED)))
            }
        )*

        /// Those that came later.
        pub(crate) const NEWER: &[&str] = &[$(stringify!($name)),*];
    };
}

of_devices! {
    nvmlDeviceFreezeNvLinkUtilizationCounter
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetC2cModeInfoV
    nvmlDeviceGetCapabilities
    nvmlDeviceGetClkMonStatus
    nvmlDeviceGetClockOffsets
    nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage
    nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetFBCSessions
    nvmlDeviceGetFBCStats
    nvmlDeviceGetFanControlPolicy_v2
    nvmlDeviceGetGpcClkMinMaxVfOffset
    nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetPgpuMetadataString
    nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization
    nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction
    nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetClockOffsets
    nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled
    nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDriverModel
    nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetMemClkVfOffset
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetTemperatureThreshold
    nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode
    nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVirtualizationMode
    nvmlDeviceValidateInforom
    nvmlGpmMigSampleGet
    nvmlGpmQueryDeviceSupport
    nvmlGpmQueryIfStreamingEnabled
    nvmlGpmSampleGet
    nvmlGpmSetStreamingEnabled
    nvmlVgpuTypeGetMaxInstances
}

of_none! {
    nvmlDeviceDiscoverGpus
    nvmlDeviceModifyDrainState
    nvmlDeviceQueryDrainState
    nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2
    nvmlGetVgpuCompatibility
    nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion
    nvmlGpmMetricsGet
    nvmlGpmSampleAlloc
    nvmlGpmSampleFree
    nvmlInternalGetExportTable
    nvmlSetVgpuVersion
    nvmlSystemGetConfComputeCapabilities
    nvmlSystemGetConfComputeGpusReadyState
    nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlSystemGetConfComputeSettings
    nvmlSystemGetConfComputeState
    nvmlSystemGetNvlinkBwMode
    nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode
    nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo
    nvmlUnitGetLedState
    nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo
    nvmlUnitSetLedState
    nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode
    nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode
    nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats
    nvmlVgpuInstanceGetFBCSessions
    nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage
    nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId
    nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus
    nvmlVgpuInstanceGetMdevUUID
    nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId
    nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID
    nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity
    nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetDeviceID
    nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetFramebufferSize
    nvmlVgpuTypeGetGpuInstanceProfileId
    nvmlVgpuTypeGetGspHeapSize
    nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstancesPerVm
    nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}

newer! {
    nvmlDeviceGetAccountingStats_v2
    nvmlDeviceGetAdaptiveTgpModeInfo_v1
    nvmlDeviceGetAddressingMode
    nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBankRemapperStatus_v1
    nvmlDeviceGetCoolerInfo
    nvmlDeviceGetCurrentClockFreqs
    nvmlDeviceGetDramEncryptionMode
    nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetGpuFabricInfo_v4
    nvmlDeviceGetHostname_v1
    nvmlDeviceGetNvLinkInfo
    nvmlDeviceGetNvLinkTelemetrySamples_v1
    nvmlDeviceGetNvlinkBwMode
    nvmlDeviceGetNvlinkSupportedBwModes
    nvmlDeviceGetPdi
    nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPlatformInfo
    nvmlDeviceGetPowerMizerMode_v1
    nvmlDeviceGetRemappedRows_v2
    nvmlDeviceGetRepairStatus
    nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
    nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVgpuSchedulerLog_v2
    nvmlDeviceGetVgpuSchedulerState_v2
    nvmlDevicePerfMetricsGetSamples_v1
    nvmlDevicePowerSmoothingActivatePresetProfile
    nvmlDevicePowerSmoothingUpdatePresetProfileParam
    nvmlDeviceReadPRMCounters_v1
    nvmlDeviceReadWritePRM_v1
    nvmlDeviceSetAdaptiveTgpMode_v1
    nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetHostname_v1
    nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetNvlinkBwModeAsync_v1
    nvmlDeviceSetPowerMizerMode_v1
    nvmlDeviceSetRusdSettings_v1
    nvmlDeviceSetVgpuSchedulerState_v2
    nvmlDeviceVgpuForceGspUnload
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1
    nvmlEventSetGetContextCount_v1
    nvmlEventSetGetContextData_v1
    nvmlEventSetGetContextInfo_v1
    nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
    nvmlEventSetRegisterGpuOperationalEvents_v1
    nvmlEventSetWait_v3
    nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetCreatableVgpus
    nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog
    nvmlGpuInstanceGetVgpuSchedulerLog_v2
    nvmlGpuInstanceGetVgpuSchedulerState
    nvmlGpuInstanceGetVgpuSchedulerState_v2
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements
    nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState
    nvmlGpuInstanceSetVgpuSchedulerState_v2
    nvmlSystemEventSetCreate
    nvmlSystemEventSetFree
    nvmlSystemEventSetWait
    nvmlSystemGetCPER_v1
    nvmlSystemRegisterEvents
    nvmlVgpuInstanceGetRuntimeStateSize
    nvmlVgpuTypeGetBAR1Info
    nvmlVgpuTypeGetMaxInstancesPerGpuInstance
}
