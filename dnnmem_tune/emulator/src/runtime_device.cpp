// libcudart: errors, devices and their properties.
#include "card.h"
#include "cuda_abi.h"
#include "runtime.h"

static thread_local int last_error = cudaSuccess;
int fail(int error) { return last_error = error; }
static bool is_unknown(int card) { return card < 0 || card >= card_settings()->num_cards; }

EXPORT int cudaGetLastError(void) {
  int error = last_error;
  last_error = cudaSuccess;
  return error;
}
EXPORT int cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorName(int error) {
  switch (error) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
  case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorNotSupported: return "cudaErrorNotSupported";
  default: return "cudaErrorUnknown";
  }
}
EXPORT const char *cudaGetErrorString(int error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorNotSupported: return "operation not supported on the emulated card";
  }
  static thread_local char text[64];
  snprintf(text, sizeof text, "error %d of the emulated card", error);
  return text;
}

EXPORT int cudaGetDeviceCount(int *count) {
  *count = card_settings()->num_cards;
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
EXPORT int cudaGetDevice(int *card) { *card = card_current(); return cudaSuccess; }
EXPORT int cudaSetDevice(int card) {
  if (is_unknown(card)) return fail(cudaErrorInvalidDevice);
  card_select(card);
  card_touch_context(card);
  return cudaSuccess;
}
EXPORT int cudaInitDevice(int card, unsigned, unsigned) { return cudaSetDevice(card); }
EXPORT int cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
EXPORT int cudaGetDeviceFlags(unsigned *flags) { *flags = 0; return cudaSuccess; }
EXPORT int cudaDeviceSynchronize(void) { return cudaSuccess; }
EXPORT int cudaDeviceReset(void) { return cudaSuccess; }
EXPORT int cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
EXPORT int cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION; return cudaSuccess; }
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
EXPORT int cudaDeviceGetPCIBusId(char *text, int size, int card) {
  snprintf(text, size, "0000:%02x:00.0", card + 1);
  return cudaSuccess;
}
EXPORT int cudaDeviceGetByPCIBusId(int *card, const char *text) {
  unsigned bus = 1;
  sscanf(text, "%*x:%x", &bus);
  *card = (int)bus - 1;
  return is_unknown(*card) ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
EXPORT int cudaDeviceCanAccessPeer(int *can, int, int) { *can = 1; return cudaSuccess; }
EXPORT int cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT int cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
EXPORT int cudaDeviceGetLimit(size_t *value, int) { *value = 8u << 20; return cudaSuccess; }
EXPORT int cudaDeviceSetLimit(int, size_t) { return cudaSuccess; }
EXPORT int cudaDeviceSetCacheConfig(int) { return cudaSuccess; }
EXPORT int cudaProfilerStart(void) { return cudaSuccess; }
EXPORT int cudaProfilerStop(void) { return cudaSuccess; }

static const int kL2Bytes = 40 << 20; // no choice of PyTorch's that takes memory depends on it

// CUDA 12 changed the layout and, with it, the symbol; CUDA 13 took the old name back.
#if CUDA_MAJOR < 13
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
#endif
EXPORT int cudaGetDeviceProperties(cudaDeviceProp *p, int card) {
  if (is_unknown(card)) return fail(cudaErrorInvalidDevice);
  const CardSettings &s = *card_settings();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", s.name);
  for (int i = 0; i < 16; i++) p->uuid[i] = (char)(0x40 + i + card);
  p->major = s.major;
  p->minor = s.minor;
  p->totalGlobalMem = s.total_bytes;
  p->multiProcessorCount = s.num_sms;
  p->maxThreadsPerMultiProcessor = s.threads_per_sm;
  p->maxBlocksPerMultiProcessor = s.blocks_per_sm;
  p->sharedMemPerMultiprocessor = s.shared_bytes_per_sm;
  p->sharedMemPerBlockOptin = s.shared_bytes_per_block;
  p->reservedSharedMemPerBlock = s.major >= 8 ? 1024 : 0;
  p->sharedMemPerBlock = 48 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->textureAlignment = p->surfaceAlignment = 512;
  p->texturePitchAlignment = 32;
  p->maxTexture1D = 131072;
  p->maxTexture2D[0] = 131072;
  p->maxTexture2D[1] = 65536;
  p->maxTexture3D[0] = p->maxTexture3D[1] = p->maxTexture3D[2] = 16384;
  p->pciBusID = card + 1;
  p->memoryBusWidth = 384;
  p->l2CacheSize = kL2Bytes;
  p->persistingL2CacheMaxSize = kL2Bytes / 2;
  p->asyncEngineCount = 3;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = p->managedMemory = p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = p->cooperativeLaunch = 1;
  p->hostRegisterSupported = p->memoryPoolsSupported = p->ipcEventSupported = 1;
  p->clusterLaunch = s.major >= 9;
#if CUDA_MAJOR < 13
  p->clockRate = 1500000;
#else
  p->hostNumaId = -1;
#endif
  return cudaSuccess;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int card) {
  if (is_unknown(card)) return fail(cudaErrorInvalidDevice);
  const CardSettings &s = *card_settings();
  switch (attribute) {
  case cudaDevAttrComputeCapabilityMajor: *value = s.major; break;
  case cudaDevAttrComputeCapabilityMinor: *value = s.minor; break;
  case cudaDevAttrMultiProcessorCount: *value = s.num_sms; break;
  case cudaDevAttrMaxThreadsPerMultiProcessor: *value = s.threads_per_sm; break;
  case cudaDevAttrMaxBlocksPerMultiprocessor: *value = s.blocks_per_sm; break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)s.shared_bytes_per_sm; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)s.shared_bytes_per_block; break;
  case cudaDevAttrReservedSharedMemoryPerBlock: *value = s.major >= 8 ? 1024 : 0; break;
  case cudaDevAttrClusterLaunch: *value = s.major >= 9; break;
  case cudaDevAttrMaxThreadsPerBlock:
  case cudaDevAttrMaxBlockDimX:
  case cudaDevAttrMaxBlockDimY: *value = 1024; break;
  case cudaDevAttrMaxBlockDimZ: *value = 64; break;
  case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ: *value = 65535; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
  case cudaDevAttrTotalConstantMemory:
  case cudaDevAttrMaxRegistersPerBlock:
  case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
  case cudaDevAttrWarpSize: *value = 32; break;
  case cudaDevAttrClockRate: *value = 1500000; break;
  case cudaDevAttrTextureAlignment: *value = 512; break;
  case cudaDevAttrL2CacheSize: *value = kL2Bytes; break;
  case cudaDevAttrGlobalMemoryBusWidth: *value = 384; break;
  case cudaDevAttrAsyncEngineCount: *value = 3; break;
  case cudaDevAttrPciBusId: *value = card + 1; break;
  case cudaDevAttrConcurrentKernels:
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrCanMapHostMemory:
  case cudaDevAttrStreamPrioritiesSupported:
  case cudaDevAttrManagedMemory:
  case cudaDevAttrConcurrentManagedAccess:
  case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
  default: *value = 0;
  }
  return cudaSuccess;
}
