/* A wall clock that a story sets. The library is loaded before others (LD_PRELOAD); the file that STORY_CLOCK names
 * says by how many seconds the clock is wrong. Clocks that only go forward are left alone, as a machine does when
 * somebody sets its clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *wrong;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STORY_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        abort();
    void *page = mmap(NULL, sizeof *wrong, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        abort();
    close(file);
    wrong = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long done = syscall(SYS_clock_gettime, clock, now);
    if (done == 0 && clock == CLOCK_REALTIME && wrong)
        now->tv_sec += *wrong;
    return (int)done;
}
