// libnvrtc: everything compiles, to nothing.
#include "card.h"

static int one(size_t *size) { *size = 1; return 0; }
static int empty(char *text) { *text = 0; return 0; }
EXPORT int nvrtcVersion(int *major, int *minor) { *major = CUDA_MAJOR; *minor = CUDA_VERSION % 1000 / 10; return 0; }
EXPORT const char *nvrtcGetErrorString(int) { return "error of the emulated card"; }
EXPORT int nvrtcCreateProgram(void **program, const char *, const char *, int, const char *const *, const char *const *) { *program = calloc(1, 16); return 0; }
EXPORT int nvrtcDestroyProgram(void **program) { free(*program); *program = nullptr; return 0; }
EXPORT int nvrtcCompileProgram(void *, int, const char *const *) { return 0; }
EXPORT int nvrtcAddNameExpression(void *, const char *) { return 0; }
EXPORT int nvrtcGetLoweredName(void *, const char *, const char **name) { *name = "kernel"; return 0; }
EXPORT int nvrtcGetPTXSize(void *, size_t *size) { return one(size); }
EXPORT int nvrtcGetPTX(void *, char *text) { return empty(text); }
EXPORT int nvrtcGetCUBINSize(void *, size_t *size) { return one(size); }
EXPORT int nvrtcGetCUBIN(void *, char *text) { return empty(text); }
EXPORT int nvrtcGetProgramLogSize(void *, size_t *size) { return one(size); }
EXPORT int nvrtcGetProgramLog(void *, char *text) { return empty(text); }
