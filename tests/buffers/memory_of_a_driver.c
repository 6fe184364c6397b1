/* What a CudaDevice uses of CUDA's driver, with memory of the host: an allocation is a file without a name. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char reserved[64]; } Handle;
typedef struct { int32_t pid, fd; uint64_t size; } Place;
static struct { uint64_t pointer; Place place; } made[1024];
static int count;
enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, INVALID_HANDLE = 400 };

int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    int fd = memfd_create("driver", MFD_CLOEXEC);
    if (count == 1024 || size % (1 << 21) || fd < 0 || ftruncate(fd, size)) return OUT_OF_MEMORY;
    void *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    *pointer = (uint64_t)memory;
    made[count].pointer = *pointer;
    made[count++].place = (Place){getpid(), fd, size};
    return 0;
}

/* For tests: no other process can open the memory any more. */
void forget(void) {
    while (count) close(made[--count].place.fd);
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t pointer) {
    for (int k = 0; k < count; k++)
        if (made[k].pointer <= pointer && pointer < made[k].pointer + made[k].place.size) {
            *base = made[k].pointer;
            *size = made[k].place.size;
            return 0;
        }
    return INVALID_VALUE;
}

int cuIpcGetMemHandle(Handle *handle, uint64_t pointer) {
    for (int k = 0; k < count; k++)
        if (made[k].pointer == pointer) {
            memset(handle, 0, sizeof *handle);
            memcpy(handle, &made[k].place, sizeof(Place));
            return 0;
        }
    return INVALID_VALUE;
}

/* A handle is passed by value, and is not opened by the process that made it. */
int cuIpcOpenMemHandle_v2(uint64_t *pointer, Handle handle, unsigned flags) {
    Place place;
    char path[64];
    memcpy(&place, &handle, sizeof place);
    if (flags != 1 || place.pid == getpid()) return INVALID_VALUE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place.pid, place.fd);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return INVALID_HANDLE;
    void *memory = mmap(0, place.size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) return INVALID_HANDLE;
    *pointer = (uint64_t)memory;
    return 0;
}

int cuGetErrorName(int status, const char **name) {
    *name = status == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : status == INVALID_VALUE
        ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OUT_OF_MEMORY";
    return 0;
}
