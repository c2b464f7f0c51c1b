// libcublasLt: one algorithm, which wants no workspace. What it wanted would change nothing:
// PyTorch takes the workspace from its own allocator before it asks, and independently of the answer.
#include "card.h"

struct Algorithm {
  uint64_t words[8];
};
struct Answer {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
static int create(void **object) { *object = calloc(1, 64); return 0; }
static int destroy(void *object) { free(object); return 0; }

EXPORT size_t cublasLtGetVersion() { return CUDA_MAJOR * 10000 + 101; }
EXPORT size_t cublasLtGetCudartVersion() { return CUDA_VERSION; }
EXPORT int cublasLtCreate(void **handle) { return create(handle); }
EXPORT int cublasLtDestroy(void *handle) { return destroy(handle); }
EXPORT int cublasLtMatmulDescCreate(void **desc, int, int) { return create(desc); }
EXPORT int cublasLtMatmulDescDestroy(void *desc) { return destroy(desc); }
EXPORT int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t) { return 0; }
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) { return create(preference); }
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(preference); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { return 0; }
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int, uint64_t, uint64_t, int64_t) { return create(layout); }
EXPORT int cublasLtMatrixLayoutDestroy(void *layout) { return destroy(layout); }
EXPORT int cublasLtMatrixLayoutSetAttribute(void *, int, const void *, size_t) { return 0; }
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int want, Answer *answer, int *count) {
  if (want < 1) return 7; // CUBLAS_STATUS_INVALID_VALUE
  memset(answer, 0, sizeof *answer);
  *count = 1;
  return 0;
}
EXPORT int cublasLtMatmulAlgoCheck(void *, void *, void *, void *, void *, void *, const Algorithm *, Answer *answer) { memset(answer, 0, sizeof *answer); return 0; }
EXPORT int cublasLtMatmulAlgoInit(void *, int, int, int, int, int, int, int, Algorithm *algorithm) { memset(algorithm, 0, sizeof *algorithm); return 0; }
EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *, int, void *value, size_t size, size_t *written) {
  memset(value, 0, size);
  if (written) *written = size;
  return 0;
}
EXPORT int cublasLtMatmulAlgoConfigSetAttribute(Algorithm *, int, const void *, size_t) { return 0; }
EXPORT int cublasLtMatmul() { card_counters()->products++; return 0; }
