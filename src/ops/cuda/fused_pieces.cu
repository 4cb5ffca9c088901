// Cuts psi's segments into pieces, a block for each side. Cutting a segment of
// width w into k pieces leaves errors of g w / k, so that of all ways to deal
// out the pieces the best has k as (density of u times w^2)^(1/3).

#include <cmath>

#include "ops/cuda/fused_pieces.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kBlock = 1024;
constexpr int kWarps = kBlock / 32;
constexpr int kSamples = 128;
constexpr int kMostProjections = 16;
constexpr int kMostWidth = 128;
constexpr float kReach = 16.f;  // deviations; nothing beyond is cut
constexpr float kGrid = 5.f;    // deviations with cells of their own
// The density's share of rare u, which falls as slowly as |u|^-3: pieces as
// wide as a part of |u|.
constexpr float kRare = 1e-3f;

struct Density {
  float mean[kMostProjections], deviation[kMostProjections];
};

/// The sum over the block, in all threads. `parts` are not those of the call
/// before.
__device__ int block_sum(int x, int* parts) {
  const int warp_total = __reduce_add_sync(0xffffffffu, x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = warp_total;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, parts[threadIdx.x % 32]);
}

/// u of row number `sample` of kSamples, projection m.
__device__ float sampled(const FusedPieces& p, const FusedPieces::Side& side,
                         int sample, int m, const float* weights) {
  const int64_t all = side.batch * side.heads * side.length;
  if (all == 0) return 0.f;
  const int64_t at = (all * sample + all / 2) / kSamples;
  const int64_t row = at % side.length, rest = at / side.length;
  const int64_t head = rest % side.heads, batch = rest / side.heads;
  const auto* x = reinterpret_cast<const uint4*>(
      static_cast<const __nv_bfloat16*>(side.x.data) +
      row_at(side.x, batch, head, row));
  const auto width = static_cast<int>(p.map.width);
  float u = p.map.bias[(p.map.per_head ? head * p.map.projections : 0) + m];
  if (p.map.per_head) {
    weights = p.map.weight + (head * p.map.projections + m) * width;
  }
  for (int i = 0; i < width / 8; ++i) {
    const uint4 word = x[i];
    const uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u = fmaf(low_of(pairs[j]), weights[8 * i + 2 * j], u);
      u = fmaf(high_of(pairs[j]), weights[8 * i + 2 * j + 1], u);
    }
  }
  return fabsf(u) < 1e15f ? u : 0.f;
}

/// A segment between two knots: what lies within reach is cut, and a piece goes
/// to what lies before and after it.
struct Segment {
  float from, to, low, high;

  __device__ Segment(float from, float to, float least, float most)
      : from(from),
        to(to),
        low(fminf(fmaxf(from, least), most)),
        high(fminf(fmaxf(to, least), most)) {}
  __device__ int before() const { return from < low ? 1 : 0; }
  __device__ int after() const { return to > high ? 1 : 0; }
  __device__ int pieces(float wanted) const {
    return high > low
               ? before() + max(1, static_cast<int>(ceilf(wanted))) + after()
               : 1;
  }
  /// The end of piece i of `count`.
  __device__ float end(int i, int count) const {
    if (i == count - 1) return to;
    const int cuts = count - before() - after(), at = i + 1 - before();
    return at == cuts
               ? high
               : fmaf(high - low,
                      static_cast<float>(at) / static_cast<float>(cuts), low);
  }
};

__global__ void __launch_bounds__(kBlock)
    pieces_kernel(const __grid_constant__ FusedPieces p) {
  extern __shared__ float memory[];
  __shared__ float u[kMostProjections][kSamples];
  __shared__ float weights[kMostProjections * (kMostWidth + 1)];
  __shared__ Density density;
  __shared__ int parts[2][kWarps];
  __shared__ float totals[kWarps];
  wait_for_previous_launch();
  allow_next_launch();
  const FusedPieces::Side& side = p.sides[blockIdx.x];
  const FeatureMap<float>& map = p.map;
  const int segments = static_cast<int>(map.shape.knots) + 1;
  const int projections = static_cast<int>(map.projections);
  const int width = static_cast<int>(map.width);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* knots = memory;  // knot i - 1 at i, with both infinities
  float* wanted = knots + segments + 1;
  float* ends = wanted + segments;
  int* first = reinterpret_cast<int*>(ends + p.rows);
  for (int i = threadIdx.x; i <= segments; i += kBlock) {
    knots[i] = i == 0 ? -INFINITY : map.table[map.shape.boundary_at + i - 1];
  }
  if (!map.per_head) {
    for (int i = threadIdx.x; i < projections * width; i += kBlock) {
      weights[i / width * (width + 1) + i % width] = map.weight[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSamples * projections; i += kBlock) {
    const int m = i % projections, sample = i / projections;
    u[m][sample] = sampled(p, side, sample, m, weights + m * (width + 1));
  }
  __syncthreads();
  if (warp < projections) {
    float sum = 0.f, squares = 0.f;
#pragma unroll
    for (int i = 0; i < kSamples; i += 32) sum += u[warp][i + lane];
    const float mean = warp_sum(sum) / kSamples;
#pragma unroll
    for (int i = 0; i < kSamples; i += 32) {
      const float x = u[warp][i + lane] - mean;
      squares = fmaf(x, x, squares);
    }
    squares = warp_sum(squares);
    if (lane == 0) {
      density.mean[warp] = mean;
      density.deviation[warp] = sqrtf(squares / kSamples);
    }
  }
  __syncthreads();
  float middle = 0.f, spread = 0.f;
  for (int m = 0; m < projections; ++m) middle += density.mean[m];
  middle /= static_cast<float>(projections);
  for (int m = 0; m < projections; ++m) {
    const float x = density.mean[m] - middle, y = density.deviation[m];
    spread += x * x + y * y;
  }
  spread = sqrtf(spread / static_cast<float>(projections));
  spread = fmaxf(spread, fmaxf(1e-3f * fabsf(middle), 1e-6f));
  const float least = middle - kReach * spread, most = middle + kReach * spread;
  const auto segment_at = [&](int i) {
    return Segment(knots[i], knots[i + 1], least, most);
  };

  float all_wanted = 0.f;
  for (int i = threadIdx.x; i < segments; i += kBlock) {
    const Segment s = segment_at(i);
    const float x = fminf(fmaxf(middle, s.low), s.high);  // the most frequent
    float here = 0.f;
    for (int m = 0; m < projections; ++m) {
      const float deviation = fmaxf(density.deviation[m], .01f * spread);
      const float y = (x - density.mean[m]) / deviation;
      here += __expf(-.5f * y * y) / deviation;
    }
    const float z = (x - middle) / spread, r = rsqrtf(fmaf(z, z, 1.f));
    here = here * spread / static_cast<float>(projections) + kRare * r * r * r;
    const float w = cbrtf((s.high - s.low) / spread);
    const float share = cbrtf(here) * w * w;
    wanted[i] = share > 0.f ? fminf(share, 1e6f) : 0.f;
    all_wanted += wanted[i];
  }
  // The largest factor for which the pieces are not too many.
  all_wanted = warp_sum(all_wanted);
  if (lane == 0) totals[warp] = all_wanted;
  __syncthreads();
  all_wanted = warp_sum(totals[lane]);
  float factor = 0.f, step = static_cast<float>(p.rows) / all_wanted;
  if (!(step < 1e12f)) step = 0.f;
  const auto count_of = [&](int i, float by) {
    return segment_at(i).pieces(wanted[i] * by);
  };
  for (int round = 0; round < 16; ++round) {
    step *= .5f;
    int count = 0;
    for (int i = threadIdx.x; i < segments; i += kBlock) {
      count += count_of(i, factor + step);
    }
    if (block_sum(count, parts[round % 2]) <= p.rows) factor += step;
  }
  __syncthreads();
  int before = 0;
  for (int base = 0; base < segments; base += kBlock) {
    const int i = base + threadIdx.x;
    const int own = i < segments ? count_of(i, factor) : 0;
    int through = own;
    for (int step = 1; step < 32; step *= 2) {
      const int x = __shfl_up_sync(0xffffffffu, through, step);
      if (lane >= step) through += x;
    }
    if (lane == 31) parts[0][warp] = through;
    __syncthreads();
    const int x = parts[0][lane];
    const int earlier = __reduce_add_sync(0xffffffffu, lane < warp ? x : 0);
    if (i < segments) first[i] = before + earlier + through - own;
    before += __reduce_add_sync(0xffffffffu, x);
    __syncthreads();
  }
  const int count = before;
  if (threadIdx.x == 0) first[segments] = count;
  __syncthreads();

  const PieceImage image(side.image, map.shape, p.rows);
  const float grid[2] = {
      middle - kGrid * spread,
      static_cast<float>(map.shape.cells) / (2 * kGrid * spread)};
  Table table(map, image.table, p.rows, grid);
  const auto* lines =
      reinterpret_cast<const float4*>(map.table + map.shape.rows_at);
  for (int r = threadIdx.x; r < count; r += kBlock) {
    int i = 0, above = segments;
    while (above - i > 1) {
      const int half = (i + above) / 2;
      if (first[half] <= r) {
        i = half;
      } else {
        above = half;
      }
    }
    float4 line[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) line[k] = lines[4 * i + k];
    const Segment s = segment_at(i);
    const int j = r - first[i], pieces = first[i + 1] - first[i];
    const float from = j == 0 ? s.from : s.end(j - 1, pieces);
    const float to = s.end(j, pieces);
    ends[r] = to;
    table.build_row(r, line, from, to, map.factor);
    if (from == -INFINITY && to > -INFINITY) image.header->ends[0] = r;
    if (to == INFINITY && from < INFINITY) image.header->ends[1] = r;
  }
  for (int i = threadIdx.x; i <= segments; i += kBlock) {
    image.first[i] = static_cast<uint16_t>(first[i]);
  }
  if (threadIdx.x == 0) {
    image.header->grid[0] = grid[0];
    image.header->grid[1] = grid[1];
    image.header->count = count;
  }
  __syncthreads();
  const int cells = static_cast<int>(map.shape.cells);
  for (int c = threadIdx.x; c < cells; c += kBlock) {
    int from = 0, to = count - 1;
    while (from < to) {
      const int half = (from + to) / 2;
      if (table.cell_of(ends[half]) < c) {
        from = half + 1;
      } else {
        to = half;
      }
    }
    table.cell_begin[c] = static_cast<uint16_t>(from);
  }
}

}  // namespace
}  // namespace fused

int64_t fused_pieces_bytes(const TableShape& shape, int rows) {
  return (fused::PieceImage::bytes(shape, rows) + 15) / 16 * 16;
}

void fused_pieces(const FusedPieces& p, cudaStream_t stream) {
  const auto memory =
      static_cast<size_t>(4 * (3 * (p.map.shape.knots + 2) + p.rows));
  launch_after(fused::pieces_kernel, 2, fused::kBlock, memory, stream,
               "fused_pieces", p);
}

}  // namespace luna::cuda
