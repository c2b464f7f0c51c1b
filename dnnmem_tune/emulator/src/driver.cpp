// libcuda: what PyTorch and Triton call of the driver API.
#include "card.h"
#include "cuda_abi.h"
#include <map>
#include <mutex>

typedef unsigned long long Address;
extern "C" void *card_driver_symbol(const char *);
extern "C" int cudaDeviceGetAttribute(int *, int, int);
extern "C" int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);

static void *context_of(int card) { return (void *)(uintptr_t)(0x100 + card); }

EXPORT int cuInit(unsigned) { return CUDA_SUCCESS; }
EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = card_settings()->num_cards; return CUDA_SUCCESS; }
EXPORT int cuDeviceGet(int *device, int card) {
  *device = card;
  return card < 0 || card >= card_settings()->num_cards ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
EXPORT int cuDeviceGetName(char *text, int size, int) { snprintf(text, size, "%s", card_settings()->name); return CUDA_SUCCESS; }
EXPORT int cuDeviceTotalMem_v2(size_t *nbytes, int) { *nbytes = card_settings()->total_bytes; return CUDA_SUCCESS; }
EXPORT int cuDeviceGetUuid(char *uuid, int card) { for (int i = 0; i < 16; i++) uuid[i] = (char)(0x40 + i + card); return CUDA_SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int card) {
  if (attribute == cudaDevAttrVirtualMemoryManagementSupported) { *value = 1; return CUDA_SUCCESS; }
  return cudaDeviceGetAttribute(value, attribute, card);
}
EXPORT int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return CUDA_SUCCESS; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int card) { *context = context_of(card); return CUDA_SUCCESS; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return CUDA_SUCCESS; }
EXPORT int cuCtxGetCurrent(void **context) { *context = context_of(card_current()); return CUDA_SUCCESS; }
EXPORT int cuCtxSetCurrent(void *) { return CUDA_SUCCESS; }
EXPORT int cuCtxGetDevice(int *card) { *card = card_current(); return CUDA_SUCCESS; }
EXPORT int cuCtxSynchronize(void) { return CUDA_SUCCESS; }
EXPORT int cuCtxGetLimit(size_t *value, int) { *value = 8u << 20; return CUDA_SUCCESS; }
EXPORT int cuCtxSetLimit(int, size_t) { return CUDA_SUCCESS; }
EXPORT int cuGetErrorString(int error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "error of the emulated card";
  return CUDA_SUCCESS;
}
EXPORT int cuGetErrorName(int error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}

// ---- memory ----------------------------------------------------------------------------------------
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  uint64_t free_ = 0, total = 0;
  card_memory(card_current(), &free_, &total);
  *free_bytes = free_;
  *total_bytes = total;
  return CUDA_SUCCESS;
}
EXPORT int cuMemAlloc_v2(void **address, size_t nbytes) { return card_malloc(card_current(), nbytes, address) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }
EXPORT int cuMemFree_v2(void *address) { return card_free(address) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
EXPORT int cuMemGetAddressRange_v2(void **base, size_t *nbytes, void *address) {
  void *start = nullptr;
  uint64_t size = card_block(address, &start);
  if (base) *base = start;
  if (nbytes) *nbytes = size;
  return size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT int cuMemsetD32Async(void *, unsigned, size_t, void *) { return CUDA_SUCCESS; }
EXPORT int cuStreamWriteValue32_v2(void *, void *, unsigned, unsigned) { return CUDA_SUCCESS; }
EXPORT int cuStreamWriteValue32(void *, void *, unsigned, unsigned) { return CUDA_SUCCESS; }
EXPORT int cuPointerGetAttribute(void *value, int attribute, void *address) {
  void *base = nullptr;
  uint64_t nbytes = card_block(address, &base);
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(void **)value = address;
    return card_owns(address) || card_host_owns(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_POINTER_ATTRIBUTE_CONTEXT: *(void **)value = context_of(card_of(address)); break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = card_owns(address) ? 2 : 1; break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = card_of(address); break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(void **)value = base; break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = nbytes; break;
  default: *(unsigned *)value = 0;
  }
  return CUDA_SUCCESS;
}
EXPORT int cuPointerGetAttributes(unsigned count, int *attributes, void **values, void *address) {
  for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(values[i], attributes[i], address);
  return CUDA_SUCCESS;
}

// ---- physical memory mapped to reserved addresses: what expandable segments are made of ---------------
namespace {
struct Physical {
  uint64_t nbytes;
  int card;
  int num_references;
};
std::mutex &mutex = *new std::mutex; // never destroyed, as in memory.cpp
std::map<unsigned long long, Physical> &physical = *new std::map<unsigned long long, Physical>;
std::map<Address, unsigned long long> &mapped = *new std::map<Address, unsigned long long>;
unsigned long long next_handle = 1;

void drop(unsigned long long handle) {
  auto found = physical.find(handle);
  if (found == physical.end() || --found->second.num_references) return;
  card_give(found->second.card, found->second.nbytes);
  physical.erase(found);
}
using Lock = std::lock_guard<std::mutex>;
} // namespace
EXPORT int cuMemGetAllocationGranularity(size_t *nbytes, const CUmemAllocationProp *, int) { *nbytes = card_settings()->page_bytes; return CUDA_SUCCESS; }
EXPORT int cuMemAddressReserve(void **address, size_t nbytes, size_t alignment, Address, unsigned long long) {
  *address = card_reserve(nbytes, alignment);
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT int cuMemAddressFree(void *address, size_t nbytes) { card_release(address, nbytes); return CUDA_SUCCESS; }
EXPORT int cuMemCreate(unsigned long long *handle, size_t nbytes, const CUmemAllocationProp *where, unsigned long long) {
  int card = where && where->location_type == CU_MEM_LOCATION_TYPE_DEVICE ? where->location_id : 0;
  if (card_take(card, nbytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Lock lock(mutex);
  physical[next_handle] = Physical{nbytes, card, 1};
  *handle = next_handle++;
  return CUDA_SUCCESS;
}
EXPORT int cuMemRelease(unsigned long long handle) {
  Lock lock(mutex);
  drop(handle);
  return CUDA_SUCCESS;
}
EXPORT int cuMemMap(Address address, size_t, size_t, unsigned long long handle, unsigned long long) {
  Lock lock(mutex);
  auto found = physical.find(handle);
  if (found == physical.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second.num_references++;
  mapped[address] = handle;
  return CUDA_SUCCESS;
}
EXPORT int cuMemUnmap(Address address, size_t nbytes) {
  Lock lock(mutex);
  auto each = mapped.lower_bound(address);
  while (each != mapped.end() && each->first < address + nbytes) {
    drop(each->second);
    each = mapped.erase(each);
  }
  return CUDA_SUCCESS;
}
EXPORT int cuMemSetAccess(void *, size_t, const void *, size_t) { return CUDA_SUCCESS; }
EXPORT int cuMemExportToShareableHandle(void *, unsigned long long, int, unsigned long long) { return CUDA_ERROR_NOT_SUPPORTED; }
EXPORT int cuMemImportFromShareableHandle(unsigned long long *, void *, int) { return CUDA_ERROR_NOT_SUPPORTED; }

// ---- modules: kernels compiled at run time load, and do nothing when launched --------------------------
static void *const kModule = (void *)0x20, *const kFunction = (void *)0x30;
static int launched() { card_counters()->launches++; return CUDA_SUCCESS; }
EXPORT int cuModuleLoad(void **module, const char *) { *module = kModule; return CUDA_SUCCESS; }
EXPORT int cuModuleLoadData(void **module, const void *) { *module = kModule; return CUDA_SUCCESS; }
EXPORT int cuModuleLoadDataEx(void **module, const void *, unsigned, void *, void **) { *module = kModule; return CUDA_SUCCESS; }
EXPORT int cuModuleUnload(void *) { return CUDA_SUCCESS; }
EXPORT int cuModuleGetFunction(void **function, void *, const char *) { *function = kFunction; return CUDA_SUCCESS; }
EXPORT int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) { return launched(); }
EXPORT int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **) { return launched(); }
EXPORT int cuLaunchKernelEx(const void *, void *, void **, void **) { return launched(); }
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
EXPORT int cuFuncSetAttribute(void *, int, int) { return CUDA_SUCCESS; }
EXPORT int cuFuncSetCacheConfig(void *, int) { return CUDA_SUCCESS; }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int threads, size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, nullptr, threads, shared_bytes);
}
EXPORT int cuOccupancyMaxActiveClusters(int *clusters, void *, const void *) { *clusters = card_settings()->num_sms / 2; return CUDA_SUCCESS; }
EXPORT int cuTensorMapEncodeTiled() { return CUDA_SUCCESS; }
EXPORT int cuTensorMapEncodeIm2col() { return CUDA_SUCCESS; }
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int, unsigned long long, int *status) {
  *function = card_driver_symbol(name);
  if (status) *status = *function ? 0 : 1;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
