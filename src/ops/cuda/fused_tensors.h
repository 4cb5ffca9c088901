#pragma once

#include "ops/cuda/fused_pieces.h"
#include "ops/cuda/tensors.h"

// From tensors to what the fused kernels' copy engine reads.

namespace luna::cuda {

/// x [batch, heads, length, width], or a copy whose rows the engine can read.
inline at::Tensor readable(const at::Tensor& x) {
  bool good = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 &&
              x.stride(3) == 1;
  for (int i = 0; i < 3; ++i) {
    good =
        good && (x.size(i) <= 1 || (x.stride(i) > 0 && x.stride(i) % 8 == 0));
  }
  return good ? x : x.clone(at::MemoryFormat::Contiguous);
}

inline CUtensorMap map_of(const at::Tensor& x) {
  return fused_rows(rows_of(x), x.size(0), x.size(1), x.size(2), x.size(3));
}

/// Cut tables [2, fused_pieces_bytes] for both sides of a backward, or [1, ...]
/// for the two together.
inline at::Tensor cut_pieces(const FeatureMap<float>& map, int rows,
                             const at::Tensor& query, const at::Tensor& key,
                             bool joint, cudaStream_t stream) {
  at::Tensor images =
      at::empty({joint ? 1 : 2, fused_pieces_bytes(map.shape, rows)},
                query.options().dtype(at::kByte));
  auto* image = images.data_ptr<uint8_t>();
  const auto side = [&](const at::Tensor& x, uint8_t* to) {
    return FusedPieces::Side{rows_of(x), x.size(0), x.size(1), x.size(2), to};
  };
  fused_pieces({{side(query, image),
                 side(key, joint ? image : image + images.stride(0))},
                map,
                rows,
                joint},
               stream);
  return images;
}

}  // namespace luna::cuda
