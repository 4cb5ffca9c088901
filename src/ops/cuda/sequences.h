#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace luna::cuda {

/// Offsets of packed sequences, made safe: begin[i] never falls and stays
/// within [0, total] whatever cu_seqlens holds. firsts[j][i], for each of the
/// `cuts` piece sizes, counts the pieces before sequence i.
struct SequencePlan {
  const void* cu_seqlens;
  bool is_int64;
  int64_t sequences, total;
  int64_t* begin;  ///< [sequences + 1]
  static constexpr int kCuts = 3;
  int cuts;
  int64_t sizes[kCuts];
  int64_t* firsts[kCuts];  ///< [sequences + 1] each
};

void plan_sequences(const SequencePlan& plan, cudaStream_t stream);

}  // namespace luna::cuda
