// Shared by the sources of the stub of libcudnn.
#pragma once
#include "card.h"
#include <vector>

struct TensorDescriptor {
  int dtype = 0, format = 0;
  std::vector<int> extents, strides;
};

uint64_t element_bytes(int dtype);
uint64_t policy_bytes(const WorkspacePolicy &policy, uint64_t operand_bytes);

enum ConvPass { kForward, kData, kFilter };
// Workspace of a convolution of input x with filter w to output y (extents: batch, channels, space...).
uint64_t conv_workspace(const std::vector<int64_t> &x, const std::vector<int64_t> &w, const std::vector<int64_t> &y, int dtype, ConvPass pass);
