// Device memory: physical pages against a capacity, and addresses from a range that faults when touched.
#include "card.h"
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

namespace {
constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr int kMaxCards = 64;

struct Card {
  uint64_t used_bytes = 0, peak_bytes = 0;
  bool has_context = false;
  uint64_t small_bytes = 0; // requests of up to half a page share pages
  uint64_t small_pages = 0;
};
struct Block {
  uint64_t nbytes;
  uint64_t physical_bytes; // 0 for one that shares pages
  int card;
};

// Never destroyed: threads of PyTorch still call in while the process exits.
std::recursive_mutex &mutex = *new std::recursive_mutex;
std::vector<Card> &cards = *new std::vector<Card>(kMaxCards);
std::map<uintptr_t, Block> &blocks = *new std::map<uintptr_t, Block>;
std::map<uintptr_t, uint64_t> &host_blocks = *new std::map<uintptr_t, uint64_t>;
uintptr_t range_start = 0, range_stop = 0, next_up = 0, next_down = 0;
thread_local int current_card = 0;

using Lock = std::lock_guard<std::recursive_mutex>;
uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
void use(Card &card, uint64_t nbytes) {
  card.used_bytes += nbytes;
  if (card.used_bytes > card.peak_bytes) card.peak_bytes = card.used_bytes;
}

void reserve_range() {
  if (range_start) return;
  uint64_t want = 32ull << 40;
  auto reserve = [&] { return mmap(nullptr, want, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
  void *start = reserve();
  for (; start == MAP_FAILED && want > 64 * kGiB; start = reserve()) want /= 2;
  if (start == MAP_FAILED) {
    fprintf(stderr, "emulated card: the process may not reserve 64 GiB of addresses; raise 'ulimit -v'\n");
    abort();
  }
  range_start = next_up = round_up((uintptr_t)start, 2 * kMiB);
  range_stop = next_down = (uintptr_t)start + want;
}

int take_small(Card &card, int index, uint64_t nbytes, uint64_t page) {
  uint64_t bytes = card.small_bytes + round_up(nbytes, 512);
  uint64_t pages = round_up(bytes, page) / page;
  if (pages > card.small_pages) {
    if (card_take(index, (pages - card.small_pages) * page)) return 2;
    card.small_pages = pages;
  }
  card.small_bytes = bytes;
  return 0;
}
void give_small(Card &card, uint64_t nbytes, uint64_t page) {
  card.small_bytes -= round_up(nbytes, 512);
  uint64_t pages = round_up(card.small_bytes, page) / page;
  card.used_bytes -= (card.small_pages - pages) * page;
  card.small_pages = pages;
}
} // namespace

EXPORT uint64_t card_peak_bytes(int index) {
  Lock lock(mutex);
  return cards[index].peak_bytes;
}
EXPORT int card_current(void) { return current_card; }
EXPORT void card_select(int card) { current_card = card; }

EXPORT void card_touch_context(int index) {
  Lock lock(mutex);
  Card &card = cards[index];
  if (card.has_context) return;
  card.has_context = true;
  use(card, card_settings()->context_bytes);
}

EXPORT int card_take(int index, uint64_t nbytes) {
  Lock lock(mutex);
  card_touch_context(index);
  Card &card = cards[index];
  const CardSettings *s = card_settings();
  if (card.used_bytes + nbytes > (s->capacity_bytes ? s->capacity_bytes : s->total_bytes)) {
    card_counters()->failed_mallocs++;
    return 2;
  }
  use(card, nbytes);
  return 0;
}
EXPORT void card_give(int index, uint64_t nbytes) {
  Lock lock(mutex);
  cards[index].used_bytes -= nbytes;
}

// PyTorch's allocator breaks ties between equal free blocks by address, so the order of new
// addresses can decide reserved memory. On real cards each new range lies below the last one,
// at least 32 MiB apart, and a freed one is not used again: with ascending addresses 12 of 66
// published peaks move, two of them by 500 MiB, away from the measurement.
EXPORT void *card_reserve(uint64_t nbytes, uint64_t alignment) {
  Lock lock(mutex);
  reserve_range();
  if (alignment < 2 * kMiB) alignment = 2 * kMiB;
  if (card_settings()->addresses_descend) {
    uint64_t span = round_up(nbytes, 32 * kMiB);
    if (next_down - next_up < span + alignment) return nullptr;
    next_down = (next_down - span) / alignment * alignment;
    return (void *)next_down;
  }
  uintptr_t address = round_up(next_up, alignment);
  uint64_t span = round_up(nbytes, 2 * kMiB);
  if (address + span > next_down) return nullptr;
  next_up = address + span;
  return (void *)address;
}
EXPORT void card_release(void *, uint64_t) {} // addresses are not used again

EXPORT int card_malloc(int index, uint64_t nbytes, void **out) {
  Lock lock(mutex);
  card_counters()->mallocs++;
  *out = nullptr;
  if (nbytes == 0) return 0;
  uint64_t page = card_settings()->page_bytes;
  bool is_small = nbytes <= page / 2;
  uint64_t physical = is_small ? 0 : round_up(nbytes, page);
  if (is_small ? take_small(cards[index], index, nbytes, page) : card_take(index, physical)) return 2;
  void *address = card_reserve(nbytes, 0);
  if (!address) {
    if (is_small) give_small(cards[index], nbytes, page);
    else card_give(index, physical);
    return 2;
  }
  blocks[(uintptr_t)address] = Block{nbytes, physical, index};
  *out = address;
  return 0;
}
EXPORT int card_free(void *address) {
  Lock lock(mutex);
  if (!address) return 0;
  auto found = blocks.find((uintptr_t)address);
  if (found == blocks.end()) return 1;
  Block block = found->second;
  blocks.erase(found);
  card_counters()->frees++;
  if (block.physical_bytes) cards[block.card].used_bytes -= block.physical_bytes;
  else give_small(cards[block.card], block.nbytes, card_settings()->page_bytes);
  return 0;
}

EXPORT uint64_t card_block(const void *address, void **base) {
  Lock lock(mutex);
  auto found = blocks.upper_bound((uintptr_t)address);
  if (found == blocks.begin()) return 0;
  --found;
  if ((uintptr_t)address >= found->first + found->second.nbytes) return 0;
  if (base) *base = (void *)found->first;
  return found->second.nbytes;
}
EXPORT int card_owns(const void *address) {
  return range_start && (uintptr_t)address >= range_start && (uintptr_t)address < range_stop;
}
EXPORT int card_of(const void *address) {
  Lock lock(mutex);
  void *base;
  return card_block(address, &base) ? blocks[(uintptr_t)base].card : card_current();
}
EXPORT void card_memory(int index, uint64_t *free_bytes, uint64_t *total_bytes) {
  Lock lock(mutex);
  card_touch_context(index);
  uint64_t total = card_settings()->total_bytes, used = cards[index].used_bytes;
  *total_bytes = total;
  *free_bytes = used > total ? 0 : total - used;
}

EXPORT void *card_host_malloc(uint64_t nbytes) {
  Lock lock(mutex);
  uint64_t size = round_up(nbytes ? nbytes : 1, 4096);
  void *address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  host_blocks[(uintptr_t)address] = size;
  return address;
}
EXPORT int card_host_free(void *address) {
  Lock lock(mutex);
  auto found = host_blocks.find((uintptr_t)address);
  if (found == host_blocks.end()) return 1;
  munmap(address, found->second);
  host_blocks.erase(found);
  return 0;
}
EXPORT int card_host_owns(const void *address) {
  Lock lock(mutex);
  auto found = host_blocks.upper_bound((uintptr_t)address);
  if (found == host_blocks.begin()) return 0;
  --found;
  return (uintptr_t)address < found->first + found->second;
}
