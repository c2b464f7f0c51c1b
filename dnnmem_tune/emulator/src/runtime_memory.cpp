// libcudart: memory and copies.
#include "card.h"
#include "cuda_abi.h"
#include "runtime.h"
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

EXPORT int cudaMalloc(void **address, size_t nbytes) {
  return card_malloc(card_current(), nbytes, address) ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
EXPORT int cudaFree(void *address) {
  card_touch_context(card_current()); // cudaFree(0) is the customary way to bring the context up
  return card_free(address) ? fail(cudaErrorInvalidValue) : cudaSuccess;
}
EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  uint64_t free_ = 0, total = 0;
  card_memory(card_current(), &free_, &total);
  if (free_bytes) *free_bytes = free_;
  if (total_bytes) *total_bytes = total;
  return cudaSuccess;
}
EXPORT int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(address, *pitch * height);
}
EXPORT int cudaHostAlloc(void **address, size_t nbytes, unsigned) {
  *address = card_host_malloc(nbytes);
  return *address ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
EXPORT int cudaMallocHost(void **address, size_t nbytes) { return cudaHostAlloc(address, nbytes, 0); }
EXPORT int cudaMallocManaged(void **address, size_t nbytes, unsigned) { return cudaHostAlloc(address, nbytes, 0); }
EXPORT int cudaFreeHost(void *address) { card_host_free(address); return cudaSuccess; }
EXPORT int cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
EXPORT int cudaHostUnregister(void *) { return cudaSuccess; }
EXPORT int cudaHostGetDevicePointer(void **device, void *host, unsigned) { *device = host; return cudaSuccess; }
EXPORT int cudaHostGetFlags(unsigned *flags, void *) { *flags = 0; return cudaSuccess; }
EXPORT int cudaPointerGetAttributes(cudaPointerAttributes *a, const void *address) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2;
  if (card_owns(address)) {
    a->type = cudaMemoryTypeDevice;
    a->device = card_of(address);
    a->devicePointer = (void *)address;
  } else if (card_host_owns(address)) {
    a->type = cudaMemoryTypeHost;
    a->device = card_current();
    a->devicePointer = a->hostPointer = (void *)address;
  }
  return cudaSuccess;
}

// What device memory holds is not kept, with one exception: a small copy to the device can be
// read back as long as nothing has run since, for then nothing can have overwritten it. Everything else reads as zero.
namespace {
struct Shadow {
  uintptr_t address;
  std::string bytes;
};
constexpr size_t kShadowBytes = 65536, kShadows = 256;
std::mutex &mutex = *new std::mutex; // never destroyed, as in memory.cpp
std::vector<Shadow> &shadows = *new std::vector<Shadow>;
uint64_t shadows_valid_at = 0;

uint64_t work_done() {
  const CardCounters *c = card_counters();
  return c->launches + c->products + c->convolutions + c->stub_calls;
}
void forget() {
  std::lock_guard<std::mutex> lock(mutex);
  shadows.clear();
}
void write_device(uintptr_t target, const void *source, size_t nbytes, bool source_known) {
  std::lock_guard<std::mutex> lock(mutex);
  if (shadows_valid_at != work_done() || !source_known || nbytes > kShadowBytes || shadows.size() >= kShadows) shadows.clear();
  shadows_valid_at = work_done();
  if (source_known && nbytes <= kShadowBytes) shadows.push_back({target, std::string((const char *)source, nbytes)});
}
void read_device(void *target, uintptr_t source, size_t nbytes) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (shadows_valid_at != work_done()) shadows.clear();
    memset(target, 0, nbytes);
    for (size_t i = shadows.size(); i-- > 0;) {
      const Shadow &s = shadows[i];
      if (source >= s.address && source + nbytes <= s.address + s.bytes.size()) {
        memcpy(target, s.bytes.data() + (source - s.address), nbytes);
        break;
      }
      if (source < s.address + s.bytes.size() && s.address < source + nbytes) break; // partly overwritten
    }
  }
  card_report_read(nbytes);
}
int copy(void *target, const void *source, size_t nbytes) {
  card_counters()->copies++;
  bool to_device = card_owns(target), from_device = card_owns(source);
  if (to_device) write_device((uintptr_t)target, source, nbytes, !from_device);
  else if (from_device) read_device(target, (uintptr_t)source, nbytes);
  else memmove(target, source, nbytes);
  return cudaSuccess;
}
int set(void *target, int value, size_t nbytes) {
  if (card_owns(target)) forget();
  else memset(target, value, nbytes);
  return cudaSuccess;
}
} // namespace

EXPORT int cudaMemcpy(void *target, const void *source, size_t nbytes, int) { return copy(target, source, nbytes); }
EXPORT int cudaMemcpyAsync(void *target, const void *source, size_t nbytes, int, void *) { return copy(target, source, nbytes); }
EXPORT int cudaMemcpyPeer(void *, int, const void *, int, size_t) { forget(); return cudaSuccess; }
EXPORT int cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, void *) { forget(); return cudaSuccess; }
EXPORT int cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height, int, void *) {
  for (size_t row = 0; row < height; row++) copy((char *)target + row * target_pitch, (const char *)source + row * source_pitch, width);
  return cudaSuccess;
}
EXPORT int cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width, size_t height, int kind) {
  return cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, height, kind, nullptr);
}
EXPORT int cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int) { return cudaSuccess; }
EXPORT int cudaMemcpyToSymbolAsync(const void *, const void *, size_t, size_t, int, void *) { return cudaSuccess; }
EXPORT int cudaMemcpyFromSymbol(void *target, const void *, size_t nbytes, size_t, int) {
  memset(target, 0, nbytes);
  card_report_read(nbytes);
  return cudaSuccess;
}
EXPORT int cudaMemset(void *target, int value, size_t nbytes) { return set(target, value, nbytes); }
EXPORT int cudaMemsetAsync(void *target, int value, size_t nbytes, void *) { return set(target, value, nbytes); }
EXPORT int cudaMemset2DAsync(void *, size_t, int, size_t, size_t, void *) { forget(); return cudaSuccess; }
EXPORT int cudaGetSymbolAddress(void **address, const void *symbol) {
  static auto &symbols = *new std::unordered_map<const void *, void *>;
  std::lock_guard<std::mutex> lock(mutex);
  void *&known = symbols[symbol];
  if (!known) known = card_reserve(2 << 20, 0);
  *address = known;
  return cudaSuccess;
}
EXPORT int cudaGetSymbolSize(size_t *nbytes, const void *) { *nbytes = 4096; return cudaSuccess; }

// Stream-ordered pools keep nothing: a free returns the memory at once.
static void *const kPool = (void *)0x10;
EXPORT int cudaMallocAsync(void **address, size_t nbytes, void *) { return cudaMalloc(address, nbytes); }
EXPORT int cudaMallocFromPoolAsync(void **address, size_t nbytes, void *, void *) { return cudaMalloc(address, nbytes); }
EXPORT int cudaFreeAsync(void *address, void *) { return cudaFree(address); }
EXPORT int cudaDeviceGetDefaultMemPool(void **pool, int) { *pool = kPool; return cudaSuccess; }
EXPORT int cudaDeviceGetMemPool(void **pool, int) { *pool = kPool; return cudaSuccess; }
EXPORT int cudaMemPoolGetAttribute(void *, int, void *value) { *(uint64_t *)value = 0; return cudaSuccess; }
EXPORT int cudaMemPoolSetAttribute(void *, int, void *) { return cudaSuccess; }
EXPORT int cudaMemPoolTrimTo(void *, size_t) { return cudaSuccess; }
EXPORT int cudaMemPoolSetAccess(void *, const void *, size_t) { return cudaSuccess; }
EXPORT int cudaDeviceGetGraphMemAttribute(int, int, void *value) { *(uint64_t *)value = 0; return cudaSuccess; }
EXPORT int cudaDeviceSetGraphMemAttribute(int, int, void *) { return cudaSuccess; }

// Memory of another process cannot be opened: there is none.
EXPORT int cudaIpcGetMemHandle(void *handle, void *) { memset(handle, 0, 64); return cudaSuccess; }
EXPORT int cudaIpcGetEventHandle(void *handle, void *) { memset(handle, 0, 64); return cudaSuccess; }
EXPORT int cudaIpcCloseMemHandle(void *) { return cudaSuccess; }
// The handles are passed by value, 64 bytes on the stack, which the caller cleans up.
EXPORT int cudaIpcOpenMemHandle(void **) { return fail(cudaErrorNotSupported); }
EXPORT int cudaIpcOpenEventHandle(void **) { return fail(cudaErrorNotSupported); }
