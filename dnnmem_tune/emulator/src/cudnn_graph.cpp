// libcudnn: the graph interface. Descriptors are typed attribute tables; any graph is accepted.
//
// Each graph has two engines: number 0 with the policy's workspace, and number 1 without any. As with
// the real library, a convolution whose workspace does not fit falls back instead of failing.
#include "cudnn.h"
#include <algorithm>
#include <map>
#include <memory>

namespace {
// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t and cudnnBackendAttributeType_t (cudnn_graph.h).
enum DescriptorType { kEngine = 2, kEngineConfig = 3, kEngineHeuristics = 4, kMatmul = 19, kAttentionForward = 41 };
enum AttributeName {
  kHeurMode = 200, kHeurGraph = 201, kHeurResults = 202,
  kConfigEngine = 300, kConfigWorkspace = 303, kConfigSharedMemory = 304,
  kPlanConfig = 401, kPlanWorkspace = 402, kPlanJson = 405,
  kStrides = 103,
  kConvForward = 702, kConvInputGradient = 708, kConvWeightGradient = 714, // the descriptor; then W, X and Y
  kGraphOperations = 801, kGraphEngineCount = 802,
  kTensorDtype = 901, kTensorExtents = 902, kTensorStrides = 903, kTensorVirtual = 907, kTensorByValue = 908,
  kEngineGraph = 1300, kEngineIndex = 1301,
};
enum AttributeType { kHandle = 0, kBoolean = 2, kInt64 = 3, kDouble = 5, kPointer = 6, kDescriptor = 15, kChar = 24, kFraction = 26 };
enum { kHeurFallback = 2 };

struct Body;
using Ref = std::shared_ptr<Body>;
struct Attribute {
  int type = 0;
  int64_t count = 0;
  std::vector<uint8_t> raw;
  std::vector<Ref> refs;
};
struct Body {
  int type = 0;
  std::map<int, Attribute> attributes;
};
struct Descriptor {
  Ref body;
};

size_t attribute_bytes(int type) {
  switch (type) {
  case kHandle: case kPointer: case kDescriptor: case kInt64: case kDouble: case kFraction: return 8;
  case kBoolean: case kChar: return 1;
  default: return 4;
  }
}
const Attribute *find(const Ref &body, int name) {
  if (!body) return nullptr;
  auto found = body->attributes.find(name);
  return found == body->attributes.end() ? nullptr : &found->second;
}
Ref reference(const Ref &body, int name) {
  const Attribute *a = find(body, name);
  return a && !a->refs.empty() ? a->refs[0] : nullptr;
}
template <class T> T scalar(const Ref &body, int name) {
  const Attribute *a = find(body, name);
  T value{};
  if (a && a->raw.size() >= sizeof value) memcpy(&value, a->raw.data(), sizeof value);
  return value;
}
std::vector<int64_t> numbers(const Ref &body, int name) {
  const Attribute *a = find(body, name);
  std::vector<int64_t> values(a ? a->raw.size() / 8 : 0);
  if (a) memcpy(values.data(), a->raw.data(), 8 * values.size());
  return values;
}
uint64_t tensor_bytes(const Ref &tensor) {
  uint64_t nbytes = element_bytes(scalar<int>(tensor, kTensorDtype));
  for (int64_t extent : numbers(tensor, kTensorExtents)) nbytes *= (uint64_t)extent;
  return nbytes;
}

// Attention comes as one operation, or as a chain with two or more matrix products.
uint64_t attention_workspace(const std::vector<Ref> &operations) {
  int products = 0;
  for (const Ref &op : operations)
    if (op) products += op->type == kAttentionForward ? 2 : op->type == kMatmul;
  if (products < 2) return 0;
  std::map<Body *, uint64_t> operands; // the operations share their tensors
  for (const Ref &op : operations)
    if (op)
      for (const auto &[name, attribute] : op->attributes)
        for (const Ref &tensor : attribute.refs)
          if (find(tensor, kTensorExtents) && !scalar<uint8_t>(tensor, kTensorVirtual) && !scalar<uint8_t>(tensor, kTensorByValue))
            operands[tensor.get()] = tensor_bytes(tensor);
  uint64_t total = 0;
  for (const auto &[tensor, nbytes] : operands) total += nbytes;
  return policy_bytes(card_settings()->attention, total);
}
bool describe(const Ref &operation, int first, int pass, Convolution *out) {
  Ref weight = reference(operation, first + 1), input = reference(operation, first + 2), output = reference(operation, first + 3);
  if (!weight || !input || !output) return false;
  auto copy = [](const std::vector<int64_t> &values, int64_t *target) { std::copy_n(values.begin(), std::min<size_t>(values.size(), 8), target); };
  std::vector<int64_t> extents = numbers(input, kTensorExtents), strides = numbers(input, kTensorStrides);
  *out = Convolution{};
  out->pass = pass;
  out->dtype = scalar<int>(input, kTensorDtype);
  out->rank = (int)extents.size();
  out->channels_last = strides.size() > 1 && strides[1] == 1 && extents[1] > 1;
  copy(extents, out->input);
  copy(numbers(weight, kTensorExtents), out->weight);
  copy(numbers(output, kTensorExtents), out->output);
  copy(numbers(reference(operation, first), kStrides), out->stride);
  out->groups = out->weight[1] ? (int)(out->input[1] / out->weight[1]) : 1;
  return true;
}
template <class F> void for_each_convolution(const Ref &graph, F call) {
  const Attribute *operations = find(graph, kGraphOperations);
  Convolution convolution;
  for (const Ref &op : operations ? operations->refs : std::vector<Ref>{})
    for (auto [first, pass] : {std::pair{kConvForward, kForward}, {kConvInputGradient, kInputGradient}, {kConvWeightGradient, kWeightGradient}})
      if (describe(op, first, pass, &convolution)) call(&convolution);
}
uint64_t graph_workspace(const Ref &graph) {
  const Attribute *operations = find(graph, kGraphOperations);
  uint64_t nbytes = operations ? attention_workspace(operations->refs) : 0;
  for_each_convolution(graph, [&](const Convolution *c) { nbytes += card_convolution_bytes(c); });
  return nbytes;
}
Ref graph_of_plan(const Ref &plan) { return reference(reference(reference(plan, kPlanConfig), kConfigEngine), kEngineGraph); }

Ref make_config(const Ref &graph, int64_t index) {
  Ref engine = std::make_shared<Body>(), config = std::make_shared<Body>();
  engine->type = kEngine;
  engine->attributes[kEngineGraph] = Attribute{kDescriptor, 1, {}, {graph}};
  auto *bytes = (const uint8_t *)&index;
  engine->attributes[kEngineIndex] = Attribute{kInt64, 1, {bytes, bytes + 8}, {}};
  config->type = kEngineConfig;
  config->attributes[kConfigEngine] = Attribute{kDescriptor, 1, {}, {engine}};
  return config;
}
Attribute ask_heuristics(const Ref &query) {
  Ref graph = reference(query, kHeurGraph);
  bool fallback = scalar<int>(query, kHeurMode) == kHeurFallback;
  Attribute results{kDescriptor, 0, {}, {}};
  if (!fallback) results.refs.push_back(make_config(graph, 0));
  if (fallback || graph_workspace(graph)) results.refs.push_back(make_config(graph, 1));
  results.count = (int64_t)results.refs.size();
  return results;
}
template <class T> int answer(T value, int64_t want, int64_t *got, void *out) {
  if (got) *got = 1;
  if (out && want > 0) memcpy(out, &value, sizeof value);
  return 0;
}
} // namespace

EXPORT int cudnnBackendCreateDescriptor(int type, void **out) {
  auto *descriptor = new Descriptor{std::make_shared<Body>()};
  descriptor->body->type = type;
  *out = descriptor;
  return 0;
}
EXPORT int cudnnBackendInitialize(void *) { return 0; }
EXPORT int cudnnBackendDestroyDescriptor(void *descriptor) { delete (Descriptor *)descriptor; return 0; }
EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
  Attribute a{type, count, {}, {}};
  if (type == kDescriptor) {
    for (int64_t i = 0; i < count; i++) {
      Descriptor *each = ((Descriptor **)values)[i];
      a.refs.push_back(each ? each->body : nullptr);
    }
  } else if (values) {
    auto *bytes = (const uint8_t *)values;
    a.raw.assign(bytes, bytes + (size_t)count * attribute_bytes(type));
  }
  ((Descriptor *)descriptor)->body->attributes[name] = std::move(a);
  return 0;
}
EXPORT int cudnnBackendFinalize(void *descriptor) {
  Ref &body = ((Descriptor *)descriptor)->body;
  if (body->type == kEngineHeuristics) body->attributes[kHeurResults] = ask_heuristics(body);
  return 0;
}
EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int, int64_t want, int64_t *got, void *out) {
  Ref &body = ((Descriptor *)descriptor)->body;
  switch (name) {
  case kPlanWorkspace:
  case kConfigWorkspace: {
    Ref engine = reference(name == kPlanWorkspace ? reference(body, kPlanConfig) : body, kConfigEngine);
    bool wants = engine && scalar<int64_t>(engine, kEngineIndex) == 0;
    return answer<int64_t>(wants ? (int64_t)graph_workspace(reference(engine, kEngineGraph)) : 0, want, got, out);
  }
  case kConfigSharedMemory: return answer<int32_t>(0, want, got, out); // left unset, the caller rules the engine out
  case kGraphEngineCount: return answer<int64_t>(2, want, got, out);
  case kPlanJson:
    if (got) *got = 3;
    if (out && want >= 3) memcpy(out, "{}", 3);
    return 0;
  }
  const Attribute *a = find(body, name);
  int64_t count = a ? (out && want < a->count ? want : a->count) : 0;
  if (got) *got = count;
  if (!out || !a) return 0;
  if (a->type != kDescriptor) {
    memcpy(out, a->raw.data(), (size_t)count * attribute_bytes(a->type));
    return 0;
  }
  for (int64_t i = 0; i < count; i++) {
    Descriptor *target = ((Descriptor **)out)[i];
    if (target && a->refs[i]) target->body = a->refs[i];
  }
  return 0;
}
EXPORT int cudnnBackendExecute(void *, Descriptor *plan, void *) {
  card_counters()->convolutions++;
  for_each_convolution(graph_of_plan(plan->body), card_convolution_ran);
  return 0;
}
