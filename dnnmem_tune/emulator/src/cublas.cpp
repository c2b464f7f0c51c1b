// libcublas: handles and modes are kept, products do nothing.
#include "card.h"

struct Handle {
  int math_mode = 0, pointer_mode = 0;
  void *stream = nullptr, *memory = nullptr;
};
EXPORT int cublasCreate_v2(Handle **out) {
  auto *handle = new Handle;
  uint64_t nbytes = card_settings()->cublas_handle_bytes; // POLICY: what a handle takes by itself
  if (nbytes && card_malloc(card_current(), nbytes, &handle->memory)) {
    delete handle;
    return 3; // CUBLAS_STATUS_ALLOC_FAILED
  }
  *out = handle;
  return 0;
}
EXPORT int cublasDestroy_v2(Handle *handle) { card_free(handle->memory); delete handle; return 0; }
EXPORT int cublasGetMathMode(Handle *handle, int *mode) { *mode = handle->math_mode; return 0; }
EXPORT int cublasSetMathMode(Handle *handle, int mode) { handle->math_mode = mode; return 0; }
EXPORT int cublasGetPointerMode_v2(Handle *handle, int *mode) { *mode = handle->pointer_mode; return 0; }
EXPORT int cublasSetPointerMode_v2(Handle *handle, int mode) { handle->pointer_mode = mode; return 0; }
EXPORT int cublasSetStream_v2(Handle *handle, void *stream) { handle->stream = stream; return 0; }
EXPORT int cublasGetStream_v2(Handle *handle, void **stream) { *stream = handle->stream; return 0; }
EXPORT int cublasSetWorkspace_v2(Handle *, void *, size_t) { return 0; }
EXPORT int cublasGetVersion_v2(Handle *, int *version) { *version = CUDA_MAJOR * 10000 + 101; return 0; }
EXPORT const char *cublasGetStatusString(int status) { return status ? "error of the emulated card" : "success"; }

#define PRODUCT(name) EXPORT int name() { card_counters()->products++; return 0; }
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasGemmEx)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)
