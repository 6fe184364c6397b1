/* Stands in for the driver's library: a context is one with MPS if its daemon is where the environment says. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *variable, const char *value)
{
    const char *found = getenv(variable);
    return found && !strcmp(found, value);
}

int cuInit(unsigned flags)
{
    return flags != 0;
}

int cuDeviceGet(int *device, int number)
{
    const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
    *device = number;
    return gpu && is("STAND_IN_MISSING_GPU", gpu) ? 101 : 0;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    char path[200];
    if (!context || flags || device)
        return 1;
    if (is("STAND_IN_CUDA", "prohibited"))
        return 46;
    if (is("STAND_IN_CUDA", "hangs"))
        sleep(1000);
    if (is("STAND_IN_CUDA", "crashes"))
        abort();
    if (is("STAND_IN_CUDA", "passes by"))
        return 0;
    snprintf(path, sizeof path, "%s/control", getenv("CUDA_MPS_PIPE_DIRECTORY") ? getenv("CUDA_MPS_PIPE_DIRECTORY") : "");
    if (!access(path, F_OK)) {
        snprintf(path, sizeof path, "%s/served", getenv("CUDA_MPS_PIPE_DIRECTORY"));
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    return 0;
}

int cuGetErrorName(int status, const char **name)
{
    *name = status == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : status == 101 ? "CUDA_ERROR_INVALID_DEVICE" : 0;
    return !*name;
}
