#include "ops/cuda/nested_calls.h"

#include <algorithm>

#include "ops/cuda/linear_sums.h"
#include "ops/cuda/nested_mma.h"
#include "ops/cuda/softmax_problem.h"
#include "ops/gpu_paths.h"

namespace luna::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

const float* numbers_of(const OptionalTensor& x, Tensor& holder) {
  if (!x.has_value()) return nullptr;
  holder = x->contiguous();
  return holder.const_data_ptr<float>();
}

/// The kernels' arguments and what they point into.
struct Call {
  explicit Call(const NestedInputs& in)
      : query(in_words(in.query)),
        pack_key(in_words(in.pack_key)),
        key(in_words(in.key)),
        value(in_words(in.value)),
        packed(in_words(in.packed_query)),
        groups(nested_mma_groups(in.packed_query.size(2))),
        tokens(
            in.query, in.cu_seqlens, in.query.size(0), in.query.size(2),
            {even_piece(in.query.size(0) * in.query.size(1), in.query.size(2),
                        std::max<int64_t>(8 / groups, 2))}),
        options(in.query.options().dtype(at::kFloat)),
        stream(c10::cuda::getCurrentCUDAStream()) {
    p.pieces = tokens.cut(0);
    p.heads = query.size(1);
    p.slots = packed.size(2);
    p.depth = query.size(3);
    p.width = value.size(3);
    p.query = rows_of(query);
    p.pack_key = rows_of(pack_key);
    p.key = rows_of(key);
    p.value = rows_of(value);
    p.packed = rows_of(packed);
    if (packed.size(0) == 1) p.packed.batch = 0;
    if (in.count.has_value()) {
      count = in.count->contiguous();
      p.count = count.const_data_ptr<int64_t>();
    }
    if (in.packed_mask.has_value()) {
      mask = in.packed_mask->contiguous();
      p.mask = mask.const_data_ptr<bool>();
    }
    p.scale = static_cast<float>(in.scale);
    p.elu = in.activation == "elu";
    p.pack_dropout =
        dropout_of(in.dropout_p, in.seed, ops::DropoutMap::kCausalPack, seed);
    p.unpack_dropout =
        dropout_of(in.dropout_p, in.seed, ops::DropoutMap::kCausalUnpack, seed);
    states = empty_states();
    p.states = states.data_ptr<float>();
  }

  Tensor empty_states() const {
    return at::empty({p.pieces.bound, p.heads, nested_mma_state(p.slots)},
                     options);
  }
  void scan(float* parts, bool backwards, const OptionalTensor& key_start,
            const OptionalTensor& value_start, float* key_total,
            float* value_total) const {
    Tensor key_holder, value_holder;
    nested_mma_scan(
        {p.pieces, p.heads, p.slots, p.depth, p.width, backwards, parts,
         numbers_of(key_start, key_holder),
         numbers_of(value_start, value_holder), key_total, value_total},
        stream);
  }

  Tensor query, pack_key, key, value, packed;
  int64_t groups;
  Sequences tokens;
  at::TensorOptions options;
  cudaStream_t stream;
  Tensor count, mask, seed, states;
  NestedMma p = {};
};

}  // namespace

bool by_tensor_cores(const NestedInputs& in) {
  const int64_t slots = in.packed_query.size(2), depth = in.query.size(3),
                width = in.value.size(3);
  const auto fits = [](int64_t x) {
    return x >= 8 && x % 8 == 0 && x <= ops::kNestedMmaWidth;
  };
  return in.query.scalar_type() == at::kBFloat16 && slots >= 1 &&
         slots <= ops::kNestedMmaSlots && fits(depth) && fits(width) &&
         has_room_for_mma();
}

void nested_by_tensor_cores(const NestedInputs& in, NestedOutputs& out) {
  Call call(in);
  call.p.out = rows_of(out.output);
  nested_mma_sums(call.p, call.stream);
  call.scan(call.p.states, false, in.key_state, in.value_state,
            out.key_state.data_ptr<float>(), out.value_state.data_ptr<float>());
  nested_mma_forward(call.p, call.stream);
}

void nested_backward_by_tensor_cores(const NestedInputs& in,
                                     const Tensor& grad_output,
                                     const OptionalTensor& grad_key_state,
                                     const OptionalTensor& grad_value_state,
                                     NestedGradients& out) {
  Call call(in);
  NestedMma& p = call.p;
  const Tensor upstream = in_words(grad_output);
  p.grad_out = rows_of(upstream);
  p.grad_query = rows_of(out.query);
  p.grad_pack_key = rows_of(out.pack_key);
  p.grad_key = rows_of(out.key);
  p.grad_value = rows_of(out.value);
  const Tensor rests = call.empty_states();
  p.rests = rests.data_ptr<float>();
  const Tensor maps = at::empty(
      {p.pieces.bound * p.heads * nested_mma_map_bytes(p.slots, p.pieces.size)},
      call.options.dtype(at::kByte));
  p.maps = maps.data_ptr();
  const Tensor parts =
      at::empty({p.pieces.bound, p.heads, p.slots, p.depth}, call.options);
  p.packed_parts = parts.data_ptr<float>();
  nested_mma_sums(p, call.stream);
  call.scan(p.states, false, in.key_state, in.value_state, nullptr, nullptr);
  nested_mma_backward_queries(p, call.stream);
  const int64_t sequences = call.tokens.count();
  out.key_state =
      at::empty({sequences, p.heads, p.depth, p.slots}, call.options);
  out.value_state =
      at::empty({sequences, p.heads, p.slots, p.width}, call.options);
  call.scan(p.rests, true, grad_key_state, grad_value_state,
            out.key_state.data_ptr<float>(), out.value_state.data_ptr<float>());
  nested_mma_backward_keys(p, call.stream);
  const Tensor sums =
      at::empty({sequences, p.heads, p.slots, p.depth}, call.options);
  AddParts<float> add = {};
  add.pieces = p.pieces;
  add.heads = p.heads;
  add.size = p.slots * p.depth;
  add.parts = p.packed_parts;
  add.total = sums.data_ptr<float>();
  add_parts(add, call.stream);
  out.packed =
      (in.packed_query.size(0) == 1 ? sums.sum(0, /*keepdim=*/true) : sums)
          .to(in.packed_query.scalar_type());
}

}  // namespace luna::cuda
