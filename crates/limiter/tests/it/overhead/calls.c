/* Calls a driver: calls <library> <what> <live> <threads> <times>; prints nanoseconds a call. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long u64;

static int (*alloc_)(u64 *, size_t), (*free_)(u64), (*info_)(size_t *, size_t *), (*sync_)(void);
static int (*launch_)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                      void **, void **);
static const char *what;
static long times;
/* All threads call at the same time: without this the first would be done before the last had begun. */
static pthread_barrier_t together;

/* When a thread began to call, and when it was done. */
struct span {
    struct timespec from, to;
};

static void must(int code, const char *name) {
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", name, code);
        exit(1);
    }
}

static void *work(void *argument) {
    struct span *span = argument;
    u64 address;
    size_t free, total;
    pthread_barrier_wait(&together);
    clock_gettime(CLOCK_MONOTONIC, &span->from);
    for (long i = 0; i < times; i++) {
        if (what[0] == 'a') {
            must(alloc_(&address, 4 << 20), "cuMemAlloc_v2");
            must(free_(address), "cuMemFree_v2");
        } else if (what[0] == 'l') {
            must(launch_((void *)9, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
        } else {
            must(info_(&free, &total), "cuMemGetInfo_v2");
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &span->to);
    return NULL;
}

static double nanoseconds(struct timespec time) { return time.tv_sec * 1e9 + time.tv_nsec; }

int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    what = arguments[2];
    long live = atol(arguments[3]), threads = atol(arguments[4]);
    times = atol(arguments[5]);
    alloc_ = dlsym(library, "cuMemAlloc_v2");
    free_ = dlsym(library, "cuMemFree_v2");
    info_ = dlsym(library, "cuMemGetInfo_v2");
    sync_ = dlsym(library, "cuCtxSynchronize");
    launch_ = dlsym(library, "cuLaunchKernel");
    int (*init)(unsigned) = dlsym(library, "cuInit");
    int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    void *context;
    must(init(0), "cuInit");
    must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    u64 address;
    for (long i = 0; i < live; i++) must(alloc_(&address, 1 << 20), "cuMemAlloc_v2");
    if (what[0] == 'l') {
        /* A share that was idle for a while has room for all that follows: nothing is held back. */
        struct timespec pause = {0, 300000000};
        must(launch_((void *)9, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
        must(sync_(), "cuCtxSynchronize");
        nanosleep(&pause, NULL);
    }
    pthread_t all[64];
    struct span spans[64];
    pthread_barrier_init(&together, NULL, threads);
    for (long i = 0; i < threads; i++) pthread_create(&all[i], NULL, work, &spans[i]);
    double from = 1e300, to = 0;
    for (long i = 0; i < threads; i++) {
        pthread_join(all[i], NULL);
        if (nanoseconds(spans[i].from) < from) from = nanoseconds(spans[i].from);
        if (nanoseconds(spans[i].to) > to) to = nanoseconds(spans[i].to);
    }
    printf("%.2f\n", (to - from) / (double)(times * threads));
    return 0;
}
