#include "ops/heads.h"

#include <ATen/ATen.h>

namespace luna::ops {

at::Tensor empty_heads(const at::Tensor& x, const c10::SymInt& tokens,
                       const c10::SymInt& width) {
  const auto batch = x.sym_size(0), heads = x.sym_size(1);
  if (x.sym_stride(1) < x.sym_stride(2)) {
    return at::empty_symint({batch, tokens, heads, width}, x.options())
        .transpose(1, 2);
  }
  return at::empty_symint({batch, heads, tokens, width}, x.options());
}

std::array<at::Tensor, 3> empty_like_heads(const at::Tensor& query,
                                           const at::Tensor& key,
                                           const at::Tensor& value) {
  const int64_t batch = query.size(0), heads = query.size(1), n = query.size(2),
                width = query.size(3), row = heads * width;
  const std::array strides = {3 * n * row, width, 3 * row, int64_t{1}};
  bool beside =
      query.numel() > 0 && query.strides() == at::IntArrayRef(strides);
  int64_t offset = query.storage_offset();
  for (const at::Tensor& next : {key, value}) {
    offset += row;
    beside =
        beside && next.is_alias_of(query) && next.sizes() == query.sizes() &&
        next.strides() == query.strides() && next.storage_offset() == offset;
  }
  if (!beside) {
    return {empty_heads(query), empty_heads(key), empty_heads(value)};
  }
  const at::Tensor all =
      at::empty({batch, n, 3, heads, width}, query.options());
  const auto part = [&](int64_t i) { return all.select(2, i).transpose(1, 2); };
  return {part(0), part(1), part(2)};
}

}  // namespace luna::ops
