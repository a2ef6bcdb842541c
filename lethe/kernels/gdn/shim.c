/* The eight CUDA symbols that a host launcher exported by CuTe DSL calls, forwarded to the libraries that the
 * process has: libcudart (torch loads its own, version 13 or 12) and libcuda.so.1. Linked with the exported object this
 * makes a shared library without any link-time dependency on CUDA, so it is built where there is none.
 *
 * A symbol that cannot be found is a CUDA error code (not initialised), which the launcher returns; the reason
 * is kept for lethe_shim_error. Each library has its own copy of these functions (hidden visibility).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

enum { NOT_INITIALISED = 3, REASON_BYTES = 512 };

static char reason[REASON_BYTES];

/* Why the last forwarded call had no target; empty if none failed. */
__attribute__((visibility("default"))) const char *lethe_shim_error(void) { return reason; }

static void *find(const char *library, const char *older, void **handle, const char *symbol) {
  if (!*handle) *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (!*handle && older) *handle = dlopen(older, RTLD_NOW | RTLD_GLOBAL);
  void *found = *handle ? dlsym(*handle, symbol) : NULL;
  if (!found) {
    const char *why = dlerror();
    snprintf(reason, sizeof reason, "%s in %s: %s", symbol, library, why ? why : "not found");
  }
  return found;
}

static void *runtime, *driver;

#define FORWARD(handle, library, older, symbol, target, parameters, arguments)        \
  __attribute__((visibility("hidden"))) int symbol parameters {                       \
    static int(*call) parameters;                                                     \
    if (!call) call = (int(*) parameters)find(library, older, &handle, target);       \
    return call ? call arguments : NOT_INITIALISED;                                   \
  }
#define RUNTIME(symbol, target, parameters, arguments) \
  FORWARD(runtime, "libcudart.so.13", "libcudart.so.12", symbol, target, parameters, arguments)
#define DRIVER(symbol, target, parameters, arguments) \
  FORWARD(driver, "libcuda.so.1", NULL, symbol, target, parameters, arguments)

RUNTIME(_cudaLibraryLoadData, "cudaLibraryLoadData",
        (void **library, const void *code, void *jit, void **jit_values, unsigned jit_count, void *options,
         void **option_values, unsigned option_count),
        (library, code, jit, jit_values, jit_count, options, option_values, option_count))
RUNTIME(_cudaLibraryGetKernel, "cudaLibraryGetKernel", (void **kernel, void *library, const char *name),
        (kernel, library, name))
RUNTIME(_cudaGetDevice, "cudaGetDevice", (int *device), (device))
RUNTIME(_cudaDeviceGetAttribute, "cudaDeviceGetAttribute", (int *value, int attribute, int device),
        (value, attribute, device))
RUNTIME(_cudaFuncSetAttribute, "cudaFuncSetAttribute", (const void *function, int attribute, int value),
        (function, attribute, value))
RUNTIME(_cudaKernelSetAttributeForDevice, "cudaKernelSetAttributeForDevice",
        (void *kernel, int attribute, int value, int device), (kernel, attribute, value, device))
RUNTIME(_cudaLaunchKernelEx, "cudaLaunchKernelExC",
        (const void *config, const void *function, void **parameters), (config, function, parameters))
DRIVER(_cuKernelGetAttribute, "cuKernelGetAttribute", (int *value, int attribute, void *kernel, int device),
       (value, attribute, kernel, device))
