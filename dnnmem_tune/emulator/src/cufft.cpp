// libcufft: transforms do nothing.
#include "card.h"

EXPORT int cufftCreate(int *plan) { static int next = 1; *plan = next++; return 0; }
EXPORT int cufftDestroy(int) { return 0; }
EXPORT int cufftSetAutoAllocation(int, int) { return 0; }
EXPORT int cufftSetStream(int, void *) { return 0; }
EXPORT int cufftSetWorkArea(int, void *) { return 0; }
EXPORT int cufftXtExec(int, void *, void *, int) { card_counters()->products++; return 0; }
// POLICY: the workspace is one complex64 copy of the transformed data.
EXPORT int cufftXtMakePlanMany(int, int rank, long long *extents, long long *, long long, long long, int, long long *, long long, long long, int, long long batch, size_t *workspace_bytes, int) {
  size_t elements = (size_t)batch;
  for (int i = 0; i < rank; i++) elements *= (size_t)extents[i];
  *workspace_bytes = 8 * elements;
  return 0;
}
