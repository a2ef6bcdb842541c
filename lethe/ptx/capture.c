/* A CUDA runtime that launches nothing: it hands every launch to a callback.
 *
 * An object that CuTe DSL exported (export_to_c) needs eight CUDA symbols, named with a leading underscore.
 * Linked with this file it becomes a shared library whose host launcher runs on a machine without a GPU or
 * driver: it computes the grid, encodes the tensor maps and fills the parameters exactly as it would on a
 * device, and the callback receives them. lethe/ptx/launch.py is the other half.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  unsigned grid[3], block[3];
  size_t shared;
  void *stream;
  const unsigned char *attributes; /* cudaLaunchAttribute: 8 bytes of id and padding, 64 bytes of value */
  unsigned attribute_count;
} launch_config;

typedef int (*launch_callback)(const char *kernel, const unsigned *grid, const unsigned *block,
                               const unsigned *cluster, size_t shared, void **parameters);
typedef int (*attribute_callback)(int attribute);

enum { NAMES = 64, NAME_BYTES = 1024, CLUSTER_DIMENSION = 4, ATTRIBUTE_BYTES = 72 };
enum { OUT_OF_MEMORY = 2, NOT_INITIALISED = 3 };

static char names[NAMES][NAME_BYTES];
static int known;
static launch_callback on_launch;
static attribute_callback on_attribute;

void lethe_capture_set(launch_callback launch, attribute_callback attribute) {
  on_launch = launch;
  on_attribute = attribute;
}

int _cudaLibraryLoadData(void **library, const void *code, void *a, void **b, unsigned c, void *d, void **e,
                         unsigned f) {
  (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *library = (void *)names;
  return 0;
}

/* A kernel's handle is its slot in the table of names. */
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  for (int i = 0; i < known; i++)
    if (!strncmp(names[i], name, NAME_BYTES - 1)) {
      *kernel = names[i];
      return 0;
    }
  if (known == NAMES) return OUT_OF_MEMORY;
  strncpy(names[known], name, NAME_BYTES - 1);
  *kernel = names[known++];
  return 0;
}

int _cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (!on_attribute) return NOT_INITIALISED;
  *value = on_attribute(attribute);
  return 0;
}

int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return 0;
}

int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return 0;
}

int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return 0;
}

int _cudaLaunchKernelEx(const launch_config *config, const void *function, void **parameters) {
  unsigned cluster[3] = {1, 1, 1};
  if (!on_launch) return NOT_INITIALISED;
  for (unsigned i = 0; i < config->attribute_count; i++) {
    const unsigned char *attribute = config->attributes + (size_t)i * ATTRIBUTE_BYTES;
    int id;
    memcpy(&id, attribute, sizeof id);
    if (id == CLUSTER_DIMENSION) memcpy(cluster, attribute + 8, sizeof cluster);
  }
  return on_launch((const char *)function, config->grid, config->block, cluster, config->shared, parameters);
}
