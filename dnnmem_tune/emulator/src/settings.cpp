// The settings of the card, its counters, and the calls that only need those.
#include "card.h"
#include <mutex>
#include <set>
#include <string>

namespace {
constexpr uint64_t kMiB = 1 << 20;

CardSettings default_settings() {
  CardSettings s{};
  snprintf(s.name, sizeof s.name, "NVIDIA A100-SXM4-40GB");
  s.num_cards = 1;
  s.major = 8;
  s.num_sms = 108;
  s.threads_per_sm = 2048;
  s.blocks_per_sm = 32;
  s.shared_bytes_per_sm = 164 << 10;
  s.shared_bytes_per_block = 163 << 10;
  s.total_bytes = 42505273344ull;
  s.context_bytes = 430 * kMiB;
  s.page_bytes = 2 * kMiB;
  s.addresses_descend = 1;
  snprintf(s.kernel_archs, sizeof s.kernel_archs, "80");
  s.cudnn_version = 92400;
  s.rnn_reserve_factor = 1.0;
  return s;
}

// Never destroyed, like every static here: threads of PyTorch still call in while the process exits.
CardSettings &settings = *new CardSettings(default_settings());
CardCounters counters;
std::string &bad_line = *new std::string;
void (*read_observer)(uint64_t) = nullptr;
uint64_t (*convolution_question)(const Convolution *) = nullptr;
void (*convolution_observer)(const Convolution *) = nullptr;

WorkspacePolicy parse_policy(const std::string &text) {
  WorkspacePolicy policy{0, 0, 0};
  unsigned long long base = 0, cap = 0;
  sscanf(text.c_str(), "%lf,%llu,%llu", &policy.factor, &base, &cap);
  policy.base_bytes = base;
  policy.cap_bytes = cap;
  return policy;
}

bool set(const std::string &key, const std::string &value) {
  auto number = [&] { return strtoull(value.c_str(), nullptr, 10); };
  auto text = [&](char *field, size_t size) { snprintf(field, size, "%s", value.c_str()); };
  if (key == "name") text(settings.name, sizeof settings.name);
  else if (key == "num_cards") settings.num_cards = (int)number();
  else if (key == "major") settings.major = (int)number();
  else if (key == "minor") settings.minor = (int)number();
  else if (key == "num_sms") settings.num_sms = (int)number();
  else if (key == "threads_per_sm") settings.threads_per_sm = (int)number();
  else if (key == "blocks_per_sm") settings.blocks_per_sm = (int)number();
  else if (key == "shared_bytes_per_sm") settings.shared_bytes_per_sm = number();
  else if (key == "shared_bytes_per_block") settings.shared_bytes_per_block = number();
  else if (key == "total_bytes") settings.total_bytes = number();
  else if (key == "capacity_bytes") settings.capacity_bytes = number();
  else if (key == "context_bytes") settings.context_bytes = number();
  else if (key == "page_bytes") settings.page_bytes = number();
  else if (key == "addresses_descend") settings.addresses_descend = (int)number();
  else if (key == "kernel_archs") text(settings.kernel_archs, sizeof settings.kernel_archs);
  else if (key == "cudnn_version") settings.cudnn_version = (int)number();
  else if (key == "attention") settings.attention = parse_policy(value);
  else if (key == "rnn_reserve_factor") settings.rnn_reserve_factor = strtod(value.c_str(), nullptr);
  else if (key == "cublas_handle_bytes") settings.cublas_handle_bytes = number();
  else if (key == "communicator_bytes") settings.communicator_bytes = number();
  else return false;
  return true;
}
} // namespace

EXPORT const char *card_configure(const char *lines) {
  settings = default_settings();
  std::string rest = lines;
  while (!rest.empty()) {
    size_t end = rest.find('\n');
    std::string line = rest.substr(0, end);
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
    size_t equals = line.find('=');
    if (line.empty()) continue;
    if (equals == std::string::npos || !set(line.substr(0, equals), line.substr(equals + 1))) {
      bad_line = line;
      return bad_line.c_str();
    }
  }
  return nullptr;
}
EXPORT const CardSettings *card_settings(void) { return &settings; }
EXPORT CardCounters *card_counters(void) { return &counters; }
EXPORT void card_watch_reads(void (*observer)(uint64_t)) { read_observer = observer; }
EXPORT void card_report_read(uint64_t nbytes) {
  counters.host_reads++;
  counters.host_read_bytes += nbytes;
  if (read_observer) read_observer(nbytes);
}
EXPORT void card_ask_convolutions(uint64_t (*ask)(const Convolution *)) { convolution_question = ask; }
EXPORT uint64_t card_convolution_bytes(const Convolution *convolution) {
  return convolution_question ? convolution_question(convolution) : 0;
}
EXPORT void card_watch_convolutions(void (*observer)(const Convolution *)) { convolution_observer = observer; }
EXPORT void card_convolution_ran(const Convolution *convolution) {
  if (convolution_observer) convolution_observer(convolution);
}

// DNNMEM_EMULATOR_LOG names each symbol that has no more than a generated stub, once.
EXPORT int card_stub_called(const char *symbol, int status) {
  static auto &mutex = *new std::mutex;
  static auto &seen = *new std::set<std::string>;
  static const bool log = getenv("DNNMEM_EMULATOR_LOG") != nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  counters.stub_calls++;
  if (log && seen.insert(symbol).second) fprintf(stderr, "emulated card: stub of %s returns %d\n", symbol, status);
  return status;
}
