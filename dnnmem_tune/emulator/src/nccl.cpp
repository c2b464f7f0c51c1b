// libnccl: one process stands for one rank of any world. Communicators know rank and size, collectives do nothing.
#include "card.h"

struct Communicator {
  int num_ranks, rank, card;
  void *memory;
};
struct UniqueId {
  char bytes[128];
};
static int create(Communicator **out, int num_ranks, int rank, int card) {
  auto *c = new Communicator{num_ranks, rank, card, nullptr};
  uint64_t nbytes = card_settings()->communicator_bytes; // POLICY: what a communicator takes by itself
  if (nbytes && card_malloc(card, nbytes, &c->memory)) {
    delete c;
    return 1; // ncclUnhandledCudaError
  }
  *out = c;
  return 0;
}
static int destroy(Communicator *c) { card_free(c->memory); delete c; return 0; }

EXPORT int ncclGetVersion(int *version) { *version = 23007; return 0; }
EXPORT const char *ncclGetErrorString(int) { return "error of the emulated card"; }
EXPORT const char *ncclGetLastError(void *) { return ""; }
EXPORT int ncclGetUniqueId(UniqueId *id) { memset(id, 1, sizeof *id); return 0; }
EXPORT int ncclCommInitRank(Communicator **c, int n, UniqueId, int rank) { return create(c, n, rank, card_current()); }
EXPORT int ncclCommInitRankConfig(Communicator **c, int n, UniqueId, int rank, void *) { return create(c, n, rank, card_current()); }
EXPORT int ncclCommInitRankScalable(Communicator **c, int n, int rank, int, UniqueId *, void *) { return create(c, n, rank, card_current()); }
EXPORT int ncclCommInitAll(Communicator **c, int n, const int *cards) {
  for (int i = 0; i < n; i++)
    if (int error = create(c + i, n, i, cards ? cards[i] : i)) return error;
  return 0;
}
EXPORT int ncclCommSplit(Communicator *c, int, int key, Communicator **out, void *) { return create(out, c->num_ranks, key, c->card); }
EXPORT int ncclCommCount(Communicator *c, int *n) { *n = c->num_ranks; return 0; }
EXPORT int ncclCommUserRank(Communicator *c, int *rank) { *rank = c->rank; return 0; }
EXPORT int ncclCommCuDevice(Communicator *c, int *card) { *card = c->card; return 0; }
EXPORT int ncclCommDestroy(Communicator *c) { return destroy(c); }
EXPORT int ncclCommAbort(Communicator *c) { return destroy(c); }
EXPORT int ncclCommGetAsyncError(void *, int *error) { *error = 0; return 0; }
// In place on the root, so the contents stay: unlike a generated stub it must not count as work done.
EXPORT int ncclBroadcast() { return 0; }
EXPORT int ncclBcast() { return 0; }
EXPORT int ncclGroupStart() { return 0; }
EXPORT int ncclGroupEnd() { return 0; }
EXPORT int ncclMemAlloc(void **address, size_t nbytes) { return card_malloc(card_current(), nbytes, address) ? 1 : 0; }
EXPORT int ncclMemFree(void *address) { return card_free(address) ? 4 : 0; }
