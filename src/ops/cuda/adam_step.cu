#include "ops/cuda/adam_step.h"

#include "ops/cuda/launch.h"

namespace luna::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kEach = FewTensors::kChunk / kThreads;  // numbers of a thread

/// The tensor that a chunk belongs to.
__device__ __forceinline__ int tensor_of(const FewTensors& t, int chunk) {
  int low = 0, high = t.count;  // first_chunk[low] <= chunk
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (t.first_chunk[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

/// To thread 0 of the block, always in the same order.
__device__ __forceinline__ float sum_of_block(float x,
                                              float (&shared)[kWarps]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < kWarps; ++w) x += shared[w];
  __syncthreads();
  return x;
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ NormOfFew p) {
  __shared__ float shared[kWarps];
  const int chunk = blockIdx.x;
  const int tensor = tensor_of(p.tensors, chunk);
  const int first =
      (chunk - p.tensors.first_chunk[tensor]) * FewTensors::kChunk;
  const int numbers = p.tensors.numbers[tensor];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = first + j * kThreads + static_cast<int>(threadIdx.x);
    const float x = i < numbers ? p.x[tensor][i] : 0.0f;
    sum += x * x;
  }
  sum = sum_of_block(sum, shared);
  if (threadIdx.x == 0) p.parts[chunk] = sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ NormOfFew p) {
  __shared__ float shared[kWarps];
  float sum = 0;
  for (int chunk = threadIdx.x; chunk < p.tensors.chunks; chunk += kThreads) {
    sum += p.parts[chunk];
  }
  sum = sum_of_block(sum, shared);
  if (threadIdx.x == 0) *p.norm = sqrtf(sum);
}

__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ AdamOfFew p) {
  __shared__ float correction[2];
  if (*p.skip == 1.0f) return;
  if (threadIdx.x < 2) {
    const double beta = threadIdx.x == 0 ? p.beta1 : p.beta2;
    const double rest = 1 - pow(beta, static_cast<double>(*p.updates));
    correction[threadIdx.x] =
        static_cast<float>(threadIdx.x == 0 ? rest : sqrt(rest));
  }
  const int chunk = blockIdx.x, tensor = tensor_of(p.tensors, chunk);
  const int first =
      (chunk - p.tensors.first_chunk[tensor]) * FewTensors::kChunk;
  const int numbers = p.tensors.numbers[tensor];
  float w[kEach], g[kEach], m[kEach], v[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = first + j * kThreads + static_cast<int>(threadIdx.x);
    const bool there = i < numbers;
    w[j] = there ? p.parameter[tensor][i] : 0.0f;
    g[j] = there ? p.gradient[tensor][i] : 0.0f;
    m[j] = there ? p.first[tensor][i] : 0.0f;
    v[j] = there ? p.second[tensor][i] : 0.0f;
  }
  const float lr = *p.lr, scale = *p.scale;
  const auto beta1 = static_cast<float>(p.beta1),
             beta2 = static_cast<float>(p.beta2);
  __syncthreads();
  const float step = lr / correction[0];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = first + j * kThreads + static_cast<int>(threadIdx.x);
    if (i >= numbers) break;
    float grad = g[j] / scale, weight = w[j];
    if (p.decoupled) {
      weight -= lr * p.weight_decay * weight;
    } else {
      grad += weight * p.weight_decay;
    }
    const float mean = fmaf(beta1, m[j], fmaf(-beta1, grad, grad));
    const float square = grad * grad;
    const float squares = fmaf(beta2, v[j], fmaf(-beta2, square, square));
    const float size = sqrtf(squares) / correction[1] + p.eps;
    p.parameter[tensor][i] = weight - step * mean / size;
    p.first[tensor][i] = mean;
    p.second[tensor][i] = squares;
  }
}

}  // namespace

void norm_of_few(const NormOfFew& p, cudaStream_t stream) {
  if (p.tensors.chunks > 0) {
    norm_kernel<<<static_cast<unsigned>(p.tensors.chunks), kThreads, 0,
                  stream>>>(p);
    check_launch("norm_of_few");
  }
  finish_kernel<<<1, kThreads, 0, stream>>>(p);
  check_launch("norm_of_few");
}

void adam_of_few(const AdamOfFew& p, cudaStream_t stream) {
  if (p.tensors.chunks == 0) return;
  adam_kernel<<<static_cast<unsigned>(p.tensors.chunks), kThreads, 0, stream>>>(
      p);
  check_launch("adam_step");
}

}  // namespace luna::cuda
