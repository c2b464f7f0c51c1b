// libnvidia-ml: the emulated cards, and no other process on them.
#include "card.h"

enum { kSuccess = 0, kNotSupported = 3 };
static void *handle_of(unsigned card) { return (void *)(uintptr_t)(0x100 + card); }
static int card_from(void *handle) { return (int)((uintptr_t)handle - 0x100); }

EXPORT int nvmlInit() { return kSuccess; }
EXPORT int nvmlInit_v2() { return kSuccess; }
EXPORT int nvmlInitWithFlags(unsigned) { return kSuccess; }
EXPORT int nvmlShutdown() { return kSuccess; }
EXPORT const char *nvmlErrorString(int) { return "error of the emulated card"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { *count = card_settings()->num_cards; return kSuccess; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned card, void **handle) { *handle = handle_of(card); return kSuccess; }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
  unsigned bus = 1;
  sscanf(text, "%*x:%x", &bus);
  *handle = handle_of(bus - 1);
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *, void **handle) { *handle = handle_of(0); return kSuccess; }
EXPORT int nvmlDeviceGetUUID(void *, char *text, unsigned size) { snprintf(text, size, "GPU-40414243-4445-4647-4849-4a4b4c4d4e4f"); return kSuccess; }
EXPORT int nvmlDeviceGetName(void *, char *text, unsigned size) { snprintf(text, size, "%s", card_settings()->name); return kSuccess; }
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, void *) { *count = 0; return kSuccess; }
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *count, void *) { *count = 0; return kSuccess; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType() { return kNotSupported; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return kNotSupported; }
EXPORT int nvmlDeviceGetGpuFabricInfoV() { return kNotSupported; }
EXPORT int nvmlDeviceGetP2PStatus(void *, void *, int, int *status) { *status = 1; return kSuccess; }
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return kSuccess; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return kSuccess; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.00"); return kSuccess; }
struct Memory {
  unsigned long long total, free, used;
};
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  uint64_t free_ = 0, total = 0;
  card_memory(card_from(handle), &free_, &total);
  *memory = {total, free_, total - free_};
  return kSuccess;
}
