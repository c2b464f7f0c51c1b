// libcupti: no profiler on the emulated card.
#include "card.h"

EXPORT int cuptiGetVersion(unsigned *version) { *version = 130000; return 0; }
EXPORT int cuptiGetResultString(int, const char **text) { *text = "no profiler on the emulated card"; return 0; }
EXPORT int cuptiSubscribe() { return 39; } // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
EXPORT int cuptiActivityGetNumDroppedRecords(void *, unsigned, size_t *count) { *count = 0; return 0; }
