// libcudart: streams, events, and graphs whose replay does nothing.
#include "card.h"
#include "cuda_abi.h"
#include "runtime.h"
#include <atomic>
#include <chrono>

void *new_handle(void) {
  static std::atomic<uintptr_t> next{0x1000};
  return (void *)(next += 16);
}

EXPORT int cudaStreamCreateWithPriority(void **stream, unsigned, int priority) { *stream = card_stream_new(priority); return cudaSuccess; }
EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT int cudaStreamDestroy(void *stream) { card_stream_delete(stream); return cudaSuccess; }
EXPORT int cudaStreamSynchronize(void *) { return cudaSuccess; }
EXPORT int cudaStreamQuery(void *) { return cudaSuccess; }
EXPORT int cudaStreamGetPriority(void *stream, int *priority) { *priority = card_stream_priority(stream); return cudaSuccess; }
EXPORT int cudaStreamGetFlags(void *, unsigned *flags) { *flags = 0; return cudaSuccess; }
EXPORT int cudaStreamGetId(void *stream, unsigned long long *id) { *id = (uintptr_t)stream; return cudaSuccess; }
EXPORT int cudaStreamGetDevice(void *, int *card) { *card = card_current(); return cudaSuccess; }
EXPORT int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *user, unsigned) { call(stream, cudaSuccess, user); return cudaSuccess; }
EXPORT int cudaLaunchHostFunc(void *, void (*call)(void *), void *user) { call(user); return cudaSuccess; }

namespace {
using Clock = std::chrono::steady_clock;
struct Event {
  unsigned long long capture = 0;
  void *graph = nullptr;
  Clock::time_point time;
};
} // namespace
EXPORT int cudaEventCreateWithFlags(void **event, unsigned) { *event = new Event; return cudaSuccess; }
EXPORT int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT int cudaEventDestroy(void *event) { delete (Event *)event; return cudaSuccess; }
EXPORT int cudaEventQuery(void *) { return cudaSuccess; }
EXPORT int cudaEventSynchronize(void *) { return cudaSuccess; }
EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned) {
  auto *e = (Event *)event;
  e->capture = card_capture_state(stream, &e->graph);
  e->time = Clock::now();
  return cudaSuccess;
}
EXPORT int cudaEventRecord(void *event, void *stream) { return cudaEventRecordWithFlags(event, stream, 0); }
EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *stop) {
  *milliseconds = std::chrono::duration<float, std::milli>(((Event *)stop)->time - ((Event *)start)->time).count();
  return cudaSuccess;
}
// CUDA 13 passes through the old name what CUDA 12 calls _v2.
EXPORT int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *stop) { return cudaEventElapsedTime(milliseconds, start, stop); }
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned) {
  auto *e = (Event *)event;
  if (e->capture && !card_capture_state(stream, nullptr)) card_capture_join(stream, e->capture, e->graph);
  return cudaSuccess;
}

// ---- capture: its state is real, for PyTorch's private pools depend on it; graphs are empty -------------
EXPORT int cudaStreamBeginCapture(void *stream, int) { return card_capture_begin(stream, new_handle()) ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess; }
EXPORT int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *, const void *, size_t, int) {
  return card_capture_begin(stream, graph) ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
EXPORT int cudaStreamEndCapture(void *stream, void **graph) {
  void *captured = nullptr;
  if (card_capture_end(stream, &captured)) return fail(cudaErrorStreamCaptureUnmatched);
  if (graph) *graph = captured;
  return cudaSuccess;
}
EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
  *status = card_capture_state(stream, nullptr) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
static int capture_info(void *stream, int *status, unsigned long long *id, void **graph) {
  void *captured = nullptr;
  unsigned long long capture = card_capture_state(stream, &captured);
  if (status) *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = capture;
  if (graph) *graph = captured;
  return cudaSuccess;
}
// CUDA 13 added the data of the edges to these calls: the parameter before the count.
#if CUDA_MAJOR >= 13
#define EDGES(name) void **name,
#else
#define EDGES(name)
#define cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_v2
#endif
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies, EDGES(edges) size_t *count) {
  if (dependencies) *dependencies = nullptr;
#if CUDA_MAJOR >= 13
  if (edges) *edges = nullptr;
#endif
  if (count) *count = 0;
  return capture_info(stream, status, id, graph);
}
EXPORT int cudaStreamUpdateCaptureDependencies(void *, void **, EDGES() size_t, unsigned) { return cudaSuccess; }
EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode) {
  static thread_local int current = 0;
  int previous = current;
  current = *mode;
  *mode = previous;
  return cudaSuccess;
}
EXPORT int cudaGraphCreate(void **graph, unsigned) { *graph = new_handle(); return cudaSuccess; }
EXPORT int cudaGraphDestroy(void *) { return cudaSuccess; }
EXPORT int cudaGraphDebugDotPrint(void *, const char *, unsigned) { return cudaSuccess; }
EXPORT int cudaGraphExecDestroy(void *) { return cudaSuccess; }
EXPORT int cudaGraphInstantiateWithFlags(void **exec, void *, unsigned long long) { *exec = new_handle(); return cudaSuccess; }
EXPORT int cudaGraphInstantiate(void **exec, void *, unsigned long long) { *exec = new_handle(); return cudaSuccess; }
EXPORT int cudaGraphLaunch(void *, void *) { return cudaSuccess; }
EXPORT int cudaGraphGetNodes(void *, void **, size_t *count) { *count = 1; return cudaSuccess; }
EXPORT int cudaGraphNodeGetDependencies(void *, void **, EDGES() size_t *count) { *count = 0; return cudaSuccess; }
EXPORT int cudaGraphAddNode(void **node, void *, const void *, EDGES() size_t, void *) { *node = new_handle(); return cudaSuccess; }
EXPORT int cudaGraphConditionalHandleCreate(unsigned long long *handle, void *, unsigned, unsigned) { *handle = 1; return cudaSuccess; }
EXPORT int cudaGraphRetainUserObject(void *, void *, unsigned, unsigned) { return cudaSuccess; }
EXPORT int cudaUserObjectCreate(void **object, void *, void (*)(void *), unsigned, unsigned) { *object = new_handle(); return cudaSuccess; }
EXPORT int cudaUserObjectRelease(void *, unsigned) { return cudaSuccess; }
