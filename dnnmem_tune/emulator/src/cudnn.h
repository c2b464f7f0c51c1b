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

enum ConvolutionPass { kForward, kInputGradient, kWeightGradient };
