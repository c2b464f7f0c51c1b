// libcusolver: handles only. Questions about workspace fail (see stubs.py), so that no size is made up.
#include "card.h"

static int create(void **object) { *object = calloc(1, 16); return 0; }
static int destroy(void *object) { free(object); return 0; }
EXPORT int cusolverDnCreate(void **handle) { return create(handle); }
EXPORT int cusolverDnDestroy(void *handle) { return destroy(handle); }
EXPORT int cusolverDnCreateParams(void **params) { return create(params); }
EXPORT int cusolverDnDestroyParams(void *params) { return destroy(params); }
EXPORT int cusolverDnCreateGesvdjInfo(void **info) { return create(info); }
EXPORT int cusolverDnDestroyGesvdjInfo(void *info) { return destroy(info); }
