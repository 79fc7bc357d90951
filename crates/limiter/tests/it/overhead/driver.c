/* A driver that does nothing, so that what is measured is what stands in front of it. */
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

typedef unsigned long long u64;

static atomic_ullong next = 1ull << 40;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0x11, 16); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 0x11, 16); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)7; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *active = 0; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)7; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(u64 *address, size_t size) { *address = atomic_fetch_add(&next, 2 << 20); return 0; }
int cuMemFree_v2(u64 address) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1ull << 34; *total = 1ull << 34; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)atomic_fetch_add(&next, 16); return 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }
int cuStreamGetCtx(void *stream, void **context) { *context = (void *)7; return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)atomic_fetch_add(&next, 16); return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventQuery(void *event) { return 0; }
int cuEventSynchronize(void *event) { return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { *ms = 0.001f; return 0; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                   unsigned shared, void *stream, void **arguments, void **extra) { return 0; }
