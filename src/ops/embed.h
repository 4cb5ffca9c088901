#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// (tokens[id] + positions[i]) with dropout, 0 where the mask is: one pass.

namespace luna::ops {

struct EmbedOptions {
  std::optional<at::Tensor> mask{};  ///< [B,n] bool: which are real
  double dropout_p = 0.0;
  std::optional<at::Tensor> seed{};  ///< int64 [2], where dropout_p > 0
  /// Packed sequences, see data::Packing: then ids are [1,T], there is no mask,
  /// and positions has a row for each place in the longest. What comes back
  /// for the filler is not added to the gradients.
  std::optional<at::Tensor> starts{};
};

/// ids [B,n] int64; tokens [V,D] and positions [at least n,D] float32.
at::Tensor embed(const at::Tensor& ids, const at::Tensor& tokens,
                 const at::Tensor& positions, const EmbedOptions& options);

/// Whether the CUDA kernels take these: on a GPU, float32, and kEmbedColumns of
/// the table of tokens fit in a block's shared memory.
bool embed_is_fused(const at::Tensor& ids, const at::Tensor& tokens,
                    const at::Tensor& positions);

void check_embed(const at::Tensor& ids, const at::Tensor& tokens,
                 const at::Tensor& positions, const EmbedOptions& options);

/// [T]: each token's place in its sequence, of the filler 0.
at::Tensor places_of(const at::Tensor& starts, int64_t tokens);

}  // namespace luna::ops
