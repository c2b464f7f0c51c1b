// libcudnn: recurrent networks. Weight layout is cuDNN's, reserve and workspace are a policy.
#include "cudnn.h"

struct RnnDescriptor {
  int mode = 0, bias = 2, is_bidirectional = 0, dtype = 0, input = 0, hidden = 0, projection = 0, num_layers = 1;
  uint64_t directions() const { return is_bidirectional ? 2 : 1; }
  uint64_t pseudo_layers() const { return directions() * (uint64_t)num_layers; }
  uint64_t gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  uint64_t output() const { return is_projected() ? projection : hidden; }
  bool is_projected() const { return projection > 0 && projection < hidden; }
  uint64_t input_of(int pseudo) const { return pseudo < (int)directions() ? input : output() * directions(); }
  uint64_t weights_of(int pseudo) const {
    return gates() * hidden * (input_of(pseudo) + output()) + (is_projected() ? hidden * output() : 0);
  }
  uint64_t weights() const {
    uint64_t elements = 0;
    for (uint64_t p = 0; p < pseudo_layers(); p++) elements += weights_of((int)p);
    return elements;
  }
  uint64_t biases() const { return pseudo_layers() * gates() * hidden * (bias == 2 ? 2 : bias == 0 ? 0 : 1); }
  enum { kLstm = 2, kGru = 3 };
};
struct RnnData {
  int dtype = 0, length = 0, batch = 0;
};
EXPORT int cudnnCreateRNNDescriptor(void **out) { *out = new RnnDescriptor; return 0; }
EXPORT int cudnnDestroyRNNDescriptor(void *object) { delete (RnnDescriptor *)object; return 0; }
EXPORT int cudnnCreateRNNDataDescriptor(void **out) { *out = new RnnData; return 0; }
EXPORT int cudnnDestroyRNNDataDescriptor(void *object) { delete (RnnData *)object; return 0; }
EXPORT int cudnnSetRNNDescriptor_v8(RnnDescriptor *r, int, int mode, int bias, int direction, int, int dtype, int, int, int input, int hidden, int projection, int layers, void *, unsigned) {
  r->mode = mode;
  r->bias = bias;
  r->is_bidirectional = direction;
  r->dtype = dtype;
  r->input = input;
  r->hidden = hidden;
  r->projection = projection;
  r->num_layers = layers;
  return 0;
}
EXPORT int cudnnSetRNNDataDescriptor(RnnData *d, int dtype, int, int length, int batch, int, const int *, void *) {
  d->dtype = dtype;
  d->length = length;
  d->batch = batch;
  return 0;
}
EXPORT int cudnnGetRNNWeightSpaceSize(void *, RnnDescriptor *r, size_t *nbytes) {
  *nbytes = (r->weights() + r->biases()) * element_bytes(r->dtype);
  return 0;
}
static void describe(TensorDescriptor *t, int dtype, int rows, int columns) {
  if (!t) return;
  t->dtype = dtype;
  t->extents = {1, rows, columns};
  t->strides = {rows * columns, columns, 1};
}
// Where matrix and bias number `which` of a pseudo layer lie: input matrices of all gates, then recurrent
// ones, then the projection; biases follow all matrices.
EXPORT int cudnnGetRNNWeightParams(void *, RnnDescriptor *r, int pseudo, size_t, const void *space, int which, TensorDescriptor *matrix, void **matrix_address, TensorDescriptor *bias, void **bias_address) {
  void *unused;
  if (!matrix_address) matrix_address = &unused;
  if (!bias_address) bias_address = &unused;
  *matrix_address = *bias_address = nullptr;
  auto at = [&](uint64_t element) { return (char *)space + element * element_bytes(r->dtype); };
  int gates = (int)r->gates();
  uint64_t offset = 0, hidden = (uint64_t)r->hidden;
  for (int p = 0; p < pseudo; p++) offset += r->weights_of(p);
  if (which < 2 * gates) {
    bool is_recurrent = which >= gates;
    offset += (uint64_t)(is_recurrent ? gates : which) * hidden * r->input_of(pseudo);
    if (is_recurrent) offset += (uint64_t)(which - gates) * hidden * r->output();
    *matrix_address = at(offset);
    describe(matrix, r->dtype, r->hidden, (int)(is_recurrent ? r->output() : r->input_of(pseudo)));
    if (r->bias != 2) {
      describe(bias, r->dtype, 0, 0);
      return 0;
    }
    *bias_address = at(r->weights() + ((uint64_t)pseudo * 2 * r->gates() + (uint64_t)which) * hidden);
    describe(bias, r->dtype, r->hidden, 1);
  } else if (r->is_projected()) {
    *matrix_address = at(offset + r->gates() * hidden * (r->input_of(pseudo) + r->output()));
    describe(matrix, r->dtype, (int)r->output(), r->hidden);
    describe(bias, r->dtype, 0, 0);
  }
  return 0;
}
// POLICY: the reserve keeps the activated gates, the cell state and the output of every step of every
// layer; the workspace holds the gates of one layer before activation.
static int spaces(const RnnDescriptor *r, uint64_t steps, bool is_training, size_t *workspace, size_t *reserve) {
  uint64_t per_gate = steps * (uint64_t)r->hidden * element_bytes(r->dtype);
  uint64_t kept = r->gates() + (r->mode == RnnDescriptor::kLstm) + 1;
  if (workspace) *workspace = per_gate * r->gates() * r->directions();
  if (reserve) *reserve = is_training ? (size_t)(card_settings()->rnn_reserve_factor * (double)(per_gate * r->pseudo_layers() * kept)) : 0;
  return 0;
}
EXPORT int cudnnGetRNNTempSpaceSizes(void *, RnnDescriptor *r, int is_training, RnnData *x, size_t *workspace, size_t *reserve) {
  return spaces(r, (uint64_t)x->length * (uint64_t)x->batch, is_training, workspace, reserve);
}

// ---- cuDNN 8's older interface ---------------------------------------------------------------------------
EXPORT int cudnnSetRNNDescriptor_v6(void *, RnnDescriptor *r, int hidden, int layers, void *, int, int direction, int mode, int, int dtype) {
  *r = RnnDescriptor{};
  r->hidden = hidden;
  r->num_layers = layers;
  r->is_bidirectional = direction;
  r->mode = mode;
  r->dtype = dtype;
  return 0;
}
EXPORT int cudnnSetRNNProjectionLayers(void *, RnnDescriptor *r, int projection, int) { r->projection = projection; return 0; }
EXPORT int cudnnSetRNNBiasMode(RnnDescriptor *r, int bias) { r->bias = bias; return 0; }
EXPORT int cudnnGetRNNParamsSize(void *, RnnDescriptor *r, TensorDescriptor *x, size_t *nbytes, int dtype) {
  r->input = x->extents[1];
  r->dtype = dtype;
  return cudnnGetRNNWeightSpaceSize(nullptr, r, nbytes);
}
static int old_spaces(RnnDescriptor *r, int length, TensorDescriptor **x, size_t *workspace, size_t *reserve) {
  uint64_t steps = 0; // the batch of a packed sequence shrinks with time
  for (int i = 0; i < length; i++) steps += (uint64_t)x[i]->extents[0];
  r->input = x[0]->extents[1];
  r->dtype = x[0]->dtype;
  return spaces(r, steps, true, workspace, reserve);
}
EXPORT int cudnnGetRNNWorkspaceSize(void *, RnnDescriptor *r, int length, TensorDescriptor **x, size_t *n) { return old_spaces(r, length, x, n, nullptr); }
EXPORT int cudnnGetRNNTrainingReserveSize(void *, RnnDescriptor *r, int length, TensorDescriptor **x, size_t *n) { return old_spaces(r, length, x, nullptr, n); }
static int old_weights(RnnDescriptor *r, int pseudo, TensorDescriptor *x, const void *space, int which, TensorDescriptor *out, void **address, bool wants_bias) {
  r->input = x->extents[1];
  TensorDescriptor matrix, bias;
  void *matrix_address = nullptr, *bias_address = nullptr;
  cudnnGetRNNWeightParams(nullptr, r, pseudo, 0, space, which, &matrix, &matrix_address, &bias, &bias_address);
  out->dtype = r->dtype;
  out->format = 0;
  out->extents = wants_bias ? bias.extents : matrix.extents;
  *address = wants_bias ? bias_address : matrix_address;
  return 0;
}
EXPORT int cudnnGetRNNLinLayerMatrixParams(void *, RnnDescriptor *r, int layer, TensorDescriptor *x, void *, const void *space, int which, TensorDescriptor *out, void **address) { return old_weights(r, layer, x, space, which, out, address, false); }
EXPORT int cudnnGetRNNLinLayerBiasParams(void *, RnnDescriptor *r, int layer, TensorDescriptor *x, void *, const void *space, int which, TensorDescriptor *out, void **address) { return old_weights(r, layer, x, space, which, out, address, true); }
