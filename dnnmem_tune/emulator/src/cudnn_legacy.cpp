// libcudnn: handles, versions, and the older interface with its descriptors.
#include "cudnn.h"
#include <algorithm>

struct Handle {
  void *stream = nullptr;
};
EXPORT int cudnnCreate(Handle **handle) { *handle = new Handle; return 0; }
EXPORT int cudnnDestroy(Handle *handle) { delete handle; return 0; }
EXPORT int cudnnSetStream(Handle *handle, void *stream) { handle->stream = stream; return 0; }
EXPORT int cudnnGetStream(Handle *handle, void **stream) { *stream = handle->stream; return 0; }
EXPORT size_t cudnnGetVersion(void) { return (size_t)card_settings()->cudnn_version; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
EXPORT int cudnnGetProperty(int which, int *value) {
  int version = card_settings()->cudnn_version; // 8.9.2 is 8902, 9.1.0 is 90100
  int major = version < 10000 ? version / 1000 : version / 10000;
  int minor = version / 100 % (version < 10000 ? 10 : 100);
  *value = which == 0 ? major : which == 1 ? minor : version % 100;
  return 0;
}
EXPORT const char *cudnnGetErrorString(int status) { return status ? "error of the emulated card" : "CUDNN_STATUS_SUCCESS"; }
EXPORT void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }

// ---- descriptors: what PyTorch sets can be read back -------------------------------------------------
struct ConvolutionDescriptor {
  int groups = 1;
  std::vector<int> strides;
};
struct PlainDescriptor {
  uint64_t words[16];
};
#define DESCRIPTOR(name, Type)                                                      \
  EXPORT int cudnnCreate##name##Descriptor(void **out) { *out = new Type(); return 0; } \
  EXPORT int cudnnDestroy##name##Descriptor(void *object) { delete (Type *)object; return 0; }
DESCRIPTOR(Tensor, TensorDescriptor)
DESCRIPTOR(Filter, TensorDescriptor)
DESCRIPTOR(Convolution, ConvolutionDescriptor)
DESCRIPTOR(Activation, PlainDescriptor)
DESCRIPTOR(Pooling, PlainDescriptor)
DESCRIPTOR(Dropout, PlainDescriptor)
DESCRIPTOR(CTCLoss, PlainDescriptor)
DESCRIPTOR(SpatialTransformer, PlainDescriptor)
EXPORT int cudnnSetTensorNdDescriptor(TensorDescriptor *t, int dtype, int rank, const int *extents, const int *strides) {
  t->dtype = dtype;
  t->extents.assign(extents, extents + rank);
  t->strides.assign(strides, strides + rank);
  return 0;
}
EXPORT int cudnnGetTensorNdDescriptor(TensorDescriptor *t, int want, int *dtype, int *rank, int *extents, int *strides) {
  *dtype = t->dtype;
  *rank = (int)t->extents.size();
  for (int i = 0; i < *rank && i < want; i++) {
    extents[i] = t->extents[i];
    if (strides) strides[i] = t->strides[i];
  }
  return 0;
}
EXPORT int cudnnSetFilterNdDescriptor(TensorDescriptor *t, int dtype, int format, int rank, const int *extents) {
  t->dtype = dtype;
  t->format = format;
  t->extents.assign(extents, extents + rank);
  return 0;
}
EXPORT int cudnnGetFilterNdDescriptor(TensorDescriptor *t, int want, int *dtype, int *format, int *rank, int *extents) {
  *dtype = t->dtype;
  *format = t->format;
  *rank = (int)t->extents.size();
  for (int i = 0; i < *rank && i < want; i++) extents[i] = t->extents[i];
  return 0;
}
EXPORT int cudnnSetConvolutionGroupCount(ConvolutionDescriptor *c, int groups) { c->groups = groups; return 0; }
EXPORT int cudnnSetConvolutionNdDescriptor(ConvolutionDescriptor *c, int rank, const int *, const int *strides, const int *, int, int) {
  c->strides.assign(strides, strides + rank);
  return 0;
}

// ---- convolution ---------------------------------------------------------------------------------------
static int workspace(ConvolutionPass pass, const ConvolutionDescriptor *c, const TensorDescriptor *input, const TensorDescriptor *weight, const TensorDescriptor *output, size_t *nbytes) {
  Convolution convolution{};
  convolution.pass = pass;
  convolution.dtype = input->dtype;
  convolution.rank = (int)input->extents.size();
  convolution.groups = c->groups;
  convolution.channels_last = input->strides[1] == 1 && input->extents[1] > 1;
  std::copy_n(input->extents.begin(), input->extents.size(), convolution.input);
  std::copy_n(weight->extents.begin(), weight->extents.size(), convolution.weight);
  std::copy_n(output->extents.begin(), output->extents.size(), convolution.output);
  std::copy_n(c->strides.begin(), c->strides.size(), convolution.stride);
  *nbytes = card_convolution_bytes(&convolution);
  return 0;
}
EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void *, TensorDescriptor *x, TensorDescriptor *w, ConvolutionDescriptor *c, TensorDescriptor *y, int, size_t *n) { return workspace(kForward, c, x, w, y, n); }
EXPORT int cudnnGetConvolutionBackwardDataWorkspaceSize(void *, TensorDescriptor *w, TensorDescriptor *dy, ConvolutionDescriptor *c, TensorDescriptor *dx, int, size_t *n) { return workspace(kInputGradient, c, dx, w, dy, n); }
EXPORT int cudnnGetConvolutionBackwardFilterWorkspaceSize(void *, TensorDescriptor *x, TensorDescriptor *dy, ConvolutionDescriptor *c, TensorDescriptor *dw, int, size_t *n) { return workspace(kWeightGradient, c, x, dw, dy, n); }
struct Performance {
  int algorithm, status;
  float milliseconds;
  size_t workspace_bytes;
  int determinism, math_mode, reserved[3];
};
static int one_algorithm(int want, int *count, Performance *out) {
  if (want < 1) return 3; // CUDNN_STATUS_BAD_PARAM
  memset(out, 0, sizeof *out);
  out->algorithm = 1;
  *count = 1;
  return 0;
}
#define CONVOLUTION(pass)                                                                                             \
  EXPORT int cudnnGetConvolution##pass##Algorithm_v7(void *, void *, void *, void *, void *, int want, int *count,    \
                                                     Performance *out) { return one_algorithm(want, count, out); }    \
  EXPORT int cudnnFindConvolution##pass##AlgorithmEx(void *, void *, void *, void *, void *, void *, void *, void *,  \
                                                     int want, int *count, Performance *out, void *, size_t) {        \
    return one_algorithm(want, count, out);                                                                           \
  }
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)

// ---- POLICY: batch normalisation and CTC loss take no workspace and keep no reserve ---------------------
static int none(size_t *nbytes) { *nbytes = 0; return 0; }
EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *, int, int, void *, void *, void *, void *, void *, size_t *n) { return none(n); }
EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *, int, int, void *, void *, void *, void *, void *, void *, void *, size_t *n) { return none(n); }
EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *, int, int, void *, void *, size_t *n) { return none(n); }
EXPORT int cudnnGetCTCLossWorkspaceSize(void *, void *, void *, const int *, const int *, const int *, int, void *, size_t *n) { return none(n); }
EXPORT int cudnnGetCTCLossWorkspaceSize_v8(void *, int, void *, void *, void *, size_t *n) { return none(n); }

// POLICY: one generator state of 16 bytes for each thread that can be resident.
EXPORT int cudnnDropoutGetStatesSize(void *, size_t *nbytes) {
  *nbytes = (size_t)card_settings()->num_sms * (size_t)card_settings()->threads_per_sm * 16;
  return 0;
}
