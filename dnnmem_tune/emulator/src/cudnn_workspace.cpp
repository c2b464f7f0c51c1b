// libcudnn: the workspace policies. The real library picks an engine by heuristics that are not
// public, and that engine states its workspace; here the settings say what it is.
#include "cudnn.h"
#include <algorithm>

uint64_t element_bytes(int dtype) {
  switch (dtype) { // cudnnDataType_t
  case 0: case 4: return 4;  // float, int32
  case 1: case 10: return 8; // double, int64
  case 2: case 9: return 2;  // half, bfloat16
  default: return 1;
  }
}
uint64_t policy_bytes(const WorkspacePolicy &policy, uint64_t operand_bytes) {
  uint64_t nbytes = policy.base_bytes + (uint64_t)(policy.factor * (double)operand_bytes);
  return policy.cap_bytes ? std::min(nbytes, policy.cap_bytes) : nbytes;
}

static uint64_t volume(const std::vector<int64_t> &extents) {
  uint64_t elements = 1;
  for (int64_t extent : extents) elements *= (uint64_t)extent;
  return elements;
}
static const WorkspacePolicy &policy_for(bool is_grouped, bool is_pointwise, ConvPass pass) {
  const CardSettings &s = *card_settings();
  if (is_grouped) return s.conv_grouped;
  if (is_pointwise) return s.conv_pointwise;
  return pass == kForward ? s.conv_forward : pass == kData ? s.conv_data : s.conv_filter;
}
uint64_t conv_workspace(const std::vector<int64_t> &x, const std::vector<int64_t> &w, const std::vector<int64_t> &y, int dtype, ConvPass pass) {
  if (w.size() < 3 || x.size() < 3 || y.size() < 3) return 0;
  uint64_t window = 1;
  for (size_t i = 2; i < w.size(); i++) window *= (uint64_t)w[i];
  uint64_t nbytes = policy_bytes(policy_for(w[1] != x[1], window == 1, pass), element_bytes(dtype) * (volume(x) + volume(y)));
  const WorkspacePolicy &unrolled = card_settings()->conv_im2col;
  if (unrolled.factor > 0 && window > 1) {
    uint64_t columns = volume(y) / (uint64_t)y[1];
    nbytes += policy_bytes(unrolled, columns * (uint64_t)w[1] * window * element_bytes(dtype));
  }
  return nbytes;
}
