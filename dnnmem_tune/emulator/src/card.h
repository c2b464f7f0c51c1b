// The emulated card: what every stub library knows about device memory.
//
// Nothing here executes device code. Memory is bookkeeping over a range of addresses that
// no one can read or write; capacity, context and policies come from the settings.
// The implementation is linked into the stub of libcudart, the first library to be loaded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bytes = factor * (bytes of input + bytes of output), at most cap_bytes, and base_bytes on top.
struct WorkspacePolicy {
  double factor;
  uint64_t base_bytes;
  uint64_t cap_bytes; // 0: no cap
};

struct CardSettings {
  char name[256];
  int num_cards;
  int major, minor; // compute capability
  int num_sms, threads_per_sm, blocks_per_sm;
  uint64_t shared_bytes_per_sm, shared_bytes_per_block; // the latter with opt-in
  uint64_t total_bytes;                                 // what cudaMemGetInfo calls total
  uint64_t capacity_bytes;                              // what there is in fact; 0: the same
  uint64_t context_bytes;                               // taken when the context comes up
  uint64_t page_bytes;                                  // unit of the driver's physical memory
  int addresses_descend;
  char kernel_archs[256]; // capabilities the build has kernels for: "75,80,86"
  int cudnn_version;
  // Policies for libraries whose choices are not public.
  WorkspacePolicy attention; // the engine's own, beside the frontend's buffers
  double rnn_reserve_factor;
  uint64_t cublas_handle_bytes, communicator_bytes; // outside the framework's allocator
};

struct CardCounters {
  uint64_t launches, mallocs, frees, failed_mallocs, copies, host_reads, host_read_bytes;
  uint64_t products, convolutions, stub_calls;
};

// One convolution of cuDNN's, as the layer has it: in the gradients too, input and output are those of the layer.
struct Convolution {
  int pass;  // 0: forward, 1: gradient of the input, 2: gradient of the weight
  int dtype; // cudnnDataType_t
  int rank;  // of the tensors: batch, channels, extents
  int groups;
  int channels_last;
  int64_t input[8], weight[8], output[8], stride[8];
};

extern "C" {
// Settings arrive as lines "key=value". They may change until the card's context exists.
// Returns null, or the first line that could not be read.
const char *card_configure(const char *lines);
const CardSettings *card_settings(void);
CardCounters *card_counters(void);
uint64_t card_peak_bytes(int card); // largest use so far, context included
// Called after each read of device memory by the host, in the reading thread.
void card_watch_reads(void (*observer)(uint64_t nbytes));
void card_report_read(uint64_t nbytes);
// Asked for the workspace of a convolution, whose choice of algorithm is not public; 0 where nobody asks.
void card_ask_convolutions(uint64_t (*ask)(const Convolution *));
uint64_t card_convolution_bytes(const Convolution *convolution);
// Called each time a convolution runs, after its workspace was allocated, in the running thread.
void card_watch_convolutions(void (*observer)(const Convolution *));
void card_convolution_ran(const Convolution *convolution);

// Device memory. Status 0, or 2 for out of memory, or 1 for an unknown address.
int card_malloc(int card, uint64_t nbytes, void **out);
int card_free(void *address);
uint64_t card_block(const void *address, void **base); // its bytes; 0 when unknown
int card_owns(const void *address);
int card_of(const void *address);
void card_memory(int card, uint64_t *free_bytes, uint64_t *total_bytes);
void card_touch_context(int card);
int card_take(int card, uint64_t nbytes); // physical memory without an address
void card_give(int card, uint64_t nbytes);
void *card_reserve(uint64_t nbytes, uint64_t alignment); // an address without memory
void card_release(void *address, uint64_t nbytes);
int card_current(void);
void card_select(int card);

// Page-locked host memory.
void *card_host_malloc(uint64_t nbytes);
int card_host_free(void *address);
int card_host_owns(const void *address);

// Streams, and the capture of graphs on them.
void *card_stream_new(int priority);
void card_stream_delete(void *stream);
int card_stream_priority(void *stream);
int card_capture_begin(void *stream, void *graph);
int card_capture_end(void *stream, void **graph);
unsigned long long card_capture_state(void *stream, void **graph); // id of the capture; 0: none
void card_capture_join(void *stream, unsigned long long id, void *graph);

// Where every generated stub ends: counts the call and returns `status`.
int card_stub_called(const char *symbol, int status);
}
