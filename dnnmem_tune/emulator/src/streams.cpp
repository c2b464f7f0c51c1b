// Streams. Work on them is done the moment it is enqueued; what is kept is whether one captures a graph.
#include "card.h"
#include <mutex>
#include <set>

namespace {
struct Stream {
  int priority = 0;
  unsigned long long capture = 0;
  void *graph = nullptr;
};
std::mutex &mutex = *new std::mutex; // never destroyed, as in memory.cpp
Stream &default_stream = *new Stream;
std::set<Stream *> &streams = *new std::set<Stream *>{&default_stream};
unsigned long long next_capture = 1;

bool is_default(void *stream) { return (uintptr_t)stream <= 2; } // null, legacy and per-thread
Stream *as_stream(void *stream) { return is_default(stream) ? &default_stream : (Stream *)stream; }
using Lock = std::lock_guard<std::mutex>;
} // namespace

EXPORT void *card_stream_new(int priority) {
  Lock lock(mutex);
  auto *stream = new Stream{priority};
  streams.insert(stream);
  return stream;
}
EXPORT void card_stream_delete(void *stream) {
  Lock lock(mutex);
  if (is_default(stream)) return;
  streams.erase((Stream *)stream);
  delete (Stream *)stream;
}
EXPORT int card_stream_priority(void *stream) { return as_stream(stream)->priority; }
EXPORT int card_capture_begin(void *stream, void *graph) {
  Lock lock(mutex);
  Stream *target = as_stream(stream);
  if (target->capture) return 1;
  target->capture = next_capture++;
  target->graph = graph;
  return 0;
}
EXPORT int card_capture_end(void *stream, void **graph) {
  Lock lock(mutex);
  Stream *target = as_stream(stream);
  unsigned long long id = target->capture;
  if (!id) return 1;
  *graph = target->graph;
  for (Stream *each : streams)
    if (each->capture == id) {
      each->capture = 0;
      each->graph = nullptr;
    }
  return 0;
}
EXPORT unsigned long long card_capture_state(void *stream, void **graph) {
  if (graph) *graph = as_stream(stream)->graph;
  return as_stream(stream)->capture;
}
EXPORT void card_capture_join(void *stream, unsigned long long id, void *graph) {
  Lock lock(mutex);
  as_stream(stream)->capture = id;
  as_stream(stream)->graph = graph;
}
