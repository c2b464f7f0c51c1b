// libcudart: kernels. Registration is accepted, launches do nothing, occupancy is computed.
#include "card.h"
#include "cuda_abi.h"
#include "runtime.h"
#include <algorithm>
#include <dlfcn.h>
#include <string>
#include <vector>

EXPORT void **__cudaRegisterFatBinary(void *) { static void *handle[2]; return handle; }
EXPORT void __cudaRegisterFatBinaryEnd(void **) {}
EXPORT void __cudaUnregisterFatBinary(void **) {}
EXPORT void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) {}
EXPORT void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
EXPORT void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int) {}
EXPORT char __cudaInitModule(void **) { return 1; }
EXPORT int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return cudaSuccess; }

static int launched() { card_counters()->launches++; return cudaSuccess; }
EXPORT int __cudaLaunchKernel(void *, dim3, dim3, void **, size_t, void *) { return launched(); }
EXPORT int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *) { return launched(); }
EXPORT int cudaLaunchKernelExC(const void *, const void *, void **) { return launched(); }
EXPORT int cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, void *) { return launched(); }

// <<<...>>> pushes a launch configuration that the kernel's host stub pops; they nest.
namespace {
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  void *stream;
};
thread_local std::vector<Configuration> configurations;
} // namespace
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
  Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared_bytes = c.shared_bytes;
  *(void **)stream = c.stream;
  return cudaSuccess;
}

// A card runs the newest kernel image not above its capability. For a card older than all of them,
// which the real build refuses, the oldest stands in.
static int kernel_arch(int capability) {
  int best = 0, oldest = 1000;
  for (const char *text = card_settings()->kernel_archs; *text;) {
    char *end;
    int arch = (int)strtol(text, &end, 10);
    if (arch <= capability) best = std::max(best, arch);
    oldest = std::min(oldest, arch);
    if (end == text) break;
    text = *end ? end + 1 : end;
  }
  return best ? best : oldest;
}
EXPORT int cudaFuncGetAttributes(cudaFuncAttributes *a, const void *) {
  memset(a, 0, sizeof *a);
  const CardSettings &s = *card_settings();
  a->ptxVersion = a->binaryVersion = kernel_arch(s.major * 10 + s.minor);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = 48 << 10;
  a->preferredShmemCarveout = -1;
  return cudaSuccess;
}
EXPORT int cudaFuncSetAttribute(const void *, int, int) { return cudaSuccess; }
EXPORT int cudaFuncSetCacheConfig(const void *, int) { return cudaSuccess; }
EXPORT int cudaKernelSetAttributeForDevice(void *, int, int, int) { return cudaSuccess; }
EXPORT int cudaLibraryLoadData(void **library, const void *, void *, void **, unsigned, void *, void **, unsigned) { *library = new_handle(); return cudaSuccess; }
EXPORT int cudaLibraryGetKernel(void **kernel, void *, const char *) { *kernel = new_handle(); return cudaSuccess; }
EXPORT int cudaLibraryUnload(void *) { return cudaSuccess; }

// POLICY: every kernel takes 32 registers a thread and no static shared memory.
static int resident_blocks(int block_threads, size_t shared_bytes) {
  const CardSettings &s = *card_settings();
  if (block_threads <= 0) return 0;
  int threads = (block_threads + 31) / 32 * 32;
  int blocks = std::min({s.threads_per_sm / threads, s.blocks_per_sm, 65536 / (threads * 32)});
  size_t per_block = shared_bytes + (s.major >= 8 ? 1024 : 0);
  return shared_bytes ? std::min(blocks, (int)(s.shared_bytes_per_sm / per_block)) : blocks;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads, size_t shared_bytes) {
  *blocks = resident_blocks(threads, shared_bytes);
  return cudaSuccess;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int threads, size_t shared_bytes, unsigned) {
  *blocks = resident_blocks(threads, shared_bytes);
  return cudaSuccess;
}
EXPORT int cudaOccupancyMaxActiveClusters(int *clusters, const void *, const void *) { *clusters = card_settings()->num_sms / 2; return cudaSuccess; }

// ---- the driver's functions, asked for by name ----------------------------------------------------
static int missing_driver_call(void) { return cudaErrorNotSupported; }
EXPORT void *card_driver_symbol(const char *name) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!driver) return nullptr;
  for (const char *suffix : {"", "_v2", "_v3"})
    if (void *found = dlsym(driver, (std::string(name) + suffix).c_str())) return found;
  return nullptr;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long, int *status) {
  *function = card_driver_symbol(name);
  if (!*function) {
    card_stub_called(name, cudaErrorNotSupported);
    *function = (void *)missing_driver_call;
  }
  if (status) *status = 0;
  return cudaSuccess;
}
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
