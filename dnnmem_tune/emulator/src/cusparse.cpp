// libcusparse: handles only, as in cusolver.cpp.
#include "card.h"

EXPORT int cusparseCreate(void **handle) { *handle = calloc(1, 16); return 0; }
EXPORT int cusparseDestroy(void *handle) { free(handle); return 0; }
EXPORT const char *cusparseGetErrorString(int) { return "error of the emulated card"; }
