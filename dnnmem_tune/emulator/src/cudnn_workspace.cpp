// libcudnn: sizes. The real library picks an engine by heuristics that are not public, and that engine
// states its workspace; here the settings say what it is.
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
