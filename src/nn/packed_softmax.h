#pragma once

#include <luna/nn/head_attention.h>

// softmax attention of packed sequences by torch's flash kernels, which read
// the offsets on the device.

namespace luna::nn {

/// On a GPU, bfloat16 or float16, heads of a width that is a multiple of 8 up
/// to 256, no key weights, and a longest sequence that the host knows.
bool packed_softmax_takes(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value,
                          const AttendOptions& options);

/// query [1,H,n,d], key and value [1,H,m,d] -> [1,H,n,d]. The same input gives
/// the same bits, gradients too.
at::Tensor packed_softmax(const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const AttendOptions& options,
                          double dropout);

}  // namespace luna::nn
