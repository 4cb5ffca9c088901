// Cuts psi's segments into pieces, some blocks for each side. Cutting a segment
// of width w into k pieces leaves errors of g w / k, so that of all ways to
// deal out the pieces the best has k as (density of u times w^2)^(1/3).

#include <cmath>

#include "ops/cuda/fused_pieces.cuh"

namespace luna::cuda {
namespace fused {
namespace {

constexpr int kBlock = 544;  // the usual 513 segments at once
constexpr int kWarps = kBlock / 32;
constexpr int kOwn = 2;     // segments of a thread: there are at most 1,024
constexpr int kBlocks = 8;  // of a side: each writes its share of the rows
constexpr int kSamples = 64;
constexpr int kMostProjections = 16;
constexpr int kMostWidth = 128;
constexpr float kReach = 16.f;  // deviations; nothing beyond is cut
constexpr float kGrid = 5.f;    // deviations with cells of their own
// The density's share of rare u, which falls as slowly as |u|^-3: pieces as
// wide as a part of |u|.
constexpr float kRare = 1e-3f;
static_assert(kWarps >= kMostProjections);

/// Of a projection's u.
struct Density {
  float mean[kMostProjections], deviation[kMostProjections];
};

/// The sum over the block, in all threads. `parts` are not those of the call
/// before.
__device__ __forceinline__ int block_sum(int x, int* parts) {
  const int lane = threadIdx.x % 32;
  const int warp_total = __reduce_add_sync(0xffffffffu, x);
  if (lane == 0) parts[threadIdx.x / 32] = warp_total;
  __syncthreads();
  return __reduce_add_sync(0xffffffffu, lane < kWarps ? parts[lane] : 0);
}

/// u of row number `sample` of kSamples, projection m.
__device__ float sampled(const FusedPieces& p, const FusedPieces::Side& side,
                         int sample, int m, const float4* weights) {
  const auto length = static_cast<uint32_t>(side.length);
  const auto heads = static_cast<uint32_t>(side.heads);
  const auto all = static_cast<uint32_t>(side.batch) * heads * length;
  if (all == 0) return 0.f;
  const auto at = static_cast<uint32_t>(
      (static_cast<uint64_t>(all) * (2 * sample + 1)) / (2 * kSamples));
  const uint32_t rest = at / length, row = at % length;
  const uint32_t batch = rest / heads, head = rest % heads;
  const auto* x = reinterpret_cast<const uint4*>(
      static_cast<const __nv_bfloat16*>(side.x.data) +
      row_at(side.x, batch, head, row));
  const auto width = static_cast<int>(p.map.width);
  const auto projections = static_cast<int>(p.map.projections);
  float u = p.map.bias[(p.map.per_head ? head * projections : 0) + m];
  const auto add = [&](const uint4& word, const float(&w)[8]) {
    const uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u = fmaf(low_of(pairs[j]), w[2 * j], u);
      u = fmaf(high_of(pairs[j]), w[2 * j + 1], u);
    }
  };
#pragma unroll 4
  for (int i = 0; i < width / 8; ++i) {
    float w[8];
    if (p.map.per_head) {
      const float* from = p.map.weight + (head * projections + m) * width;
#pragma unroll
      for (int j = 0; j < 8; ++j) w[j] = from[8 * i + j];
    } else {
      const float4 a = weights[2 * i], b = weights[2 * i + 1];
      w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
      w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    }
    add(x[i], w);
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
  extern __shared__ __align__(16) float memory[];
  __shared__ float u[kMostProjections][kSamples];
  __shared__ float4 weights[kMostProjections * (kMostWidth + 4) / 4];
  __shared__ Density density;
  __shared__ int parts[2][kWarps];
  __shared__ float totals[kWarps];
  wait_for_previous_launch();
  allow_next_launch();
  const FusedPieces::Side& side = p.sides[blockIdx.y];
  const FeatureMap<float>& map = p.map;
  const int segments = static_cast<int>(map.shape.knots) + 1;
  const int projections = static_cast<int>(map.projections);
  const int width = static_cast<int>(map.width);
  const int cells = static_cast<int>(map.shape.cells);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* cell_begin = reinterpret_cast<uint16_t*>(memory);
  float* knots = memory + cells / 2;  // knot i - 1 at i, with both infinities
  int* first = reinterpret_cast<int*>(knots + segments + 1);
  if (!map.per_head) {
    for (int i = threadIdx.x; i < projections * width; i += kBlock) {
      reinterpret_cast<float*>(weights)[i / width * (width + 4) + i % width] =
          map.weight[i];
    }
  }
  for (int i = threadIdx.x; i <= segments; i += kBlock) {
    knots[i] = i == 0 ? -INFINITY : map.table[map.shape.boundary_at + i - 1];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSamples * projections; i += kBlock) {
    const int m = i % projections, sample = i / projections;
    const FusedPieces::Side& from = p.joint ? p.sides[sample % 2] : side;
    u[m][sample] = sampled(p, from, sample, m, weights + m * (width + 4) / 4);
  }
  __syncthreads();
  if (warp < projections) {
    const float x = u[warp][lane], y = u[warp][lane + 32];
    static_assert(kSamples == 64);
    const float mean = warp_sum(x + y) / kSamples;
    const float squares =
        warp_sum((x - mean) * (x - mean) + (y - mean) * (y - mean));
    if (lane == 0) {
      density.mean[warp] = mean;
      density.deviation[warp] = sqrtf(squares / kSamples);
    }
  }
  __syncthreads();
  const bool own = lane < projections;
  const float share_of_one = 1.f / static_cast<float>(projections);
  const float middle = warp_sum(own ? density.mean[lane] : 0.f) * share_of_one;
  const float away = own ? density.mean[lane] - middle : 0.f;
  const float apart = own ? density.deviation[lane] : 0.f;
  const float spread =
      fmaxf(sqrtf(warp_sum(away * away + apart * apart) * share_of_one),
            fmaxf(1e-3f * fabsf(middle), 1e-6f));
  const float least = middle - kReach * spread, most = middle + kReach * spread;
  const auto segment_at = [&](int i) {
    return Segment(knots[i], knots[i + 1], least, most);
  };

  // Of a thread's segments: pieces wanted, at least, and besides.
  float wanted[kOwn];
  int fewest[kOwn], besides[kOwn];
  float all_wanted = 0.f;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int i = k * kBlock + threadIdx.x;
    wanted[k] = 0.f;
    fewest[k] = besides[k] = 0;
    if (i >= segments) continue;
    const Segment s = segment_at(i);
    const float w = (s.high - s.low) / spread;
    if (!(w > 0.f)) {
      besides[k] = 1;
      continue;
    }
    fewest[k] = 1;
    besides[k] = s.before() + s.after();
    const float x = fminf(fmaxf(middle, s.low), s.high);  // the most frequent
    float here = 0.f;
    for (int m = 0; m < projections; ++m) {
      const float inverse =
          __fdividef(1.f, fmaxf(density.deviation[m], .01f * spread));
      const float y = (x - density.mean[m]) * inverse;
      here += __expf(-.5f * y * y) * inverse;
    }
    const float z = (x - middle) / spread, r = rsqrtf(fmaf(z, z, 1.f));
    here = here * spread * share_of_one + kRare * r * r * r;
    wanted[k] = exp2f((__log2f(here) + 2.f * __log2f(w)) / 3.f);  // cube roots
    all_wanted += wanted[k];
  }
  all_wanted = warp_sum(all_wanted);
  if (lane == 0) totals[warp] = all_wanted;
  __syncthreads();
  all_wanted = warp_sum(lane < kWarps ? totals[lane] : 0.f);
  // The largest factor for which the pieces are not too many.
  float factor = 0.f, step = static_cast<float>(p.rows) / all_wanted;
  const auto count_of = [&](int k, float by) {
    return besides[k] + max(fewest[k], __float2int_ru(wanted[k] * by));
  };
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    step *= .5f;
    int count = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) count += count_of(k, factor + step);
    if (block_sum(count, parts[round % 2]) <= p.rows) factor += step;
  }
  int count = 0;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int i = k * kBlock + threadIdx.x;
    const int mine = count_of(k, factor);
    int through = mine;
    for (int step = 1; step < 32; step *= 2) {
      const int x = __shfl_up_sync(0xffffffffu, through, step);
      if (lane >= step) through += x;
    }
    __syncthreads();
    if (lane == 31) parts[0][warp] = through;
    __syncthreads();
    const int x = lane < kWarps ? parts[0][lane] : 0;
    const int earlier = __reduce_add_sync(0xffffffffu, lane < warp ? x : 0);
    if (i < segments) first[i] = count + earlier + through - mine;
    count += __reduce_add_sync(0xffffffffu, x);
  }
  if (threadIdx.x == 0) first[segments] = count;
  __syncthreads();

  const PieceImage image(side.image);
  const float grid[2] = {middle - kGrid * spread,
                         static_cast<float>(cells) / (2 * kGrid * spread)};
  Table table(map, image.table, p.rows, grid);
  const auto* lines =
      reinterpret_cast<const float4*>(map.table + map.shape.rows_at);
  // One block makes the cells, in its memory, the others rows.
  const bool with_cells = blockIdx.x == 0;
  const int each = (count + kBlocks - 2) / (kBlocks - 1);
  const int begin = with_cells ? 0 : (static_cast<int>(blockIdx.x) - 1) * each;
  const int end = with_cells ? count : min(count, begin + each);
  for (int r = begin + threadIdx.x; r < end; r += kBlock) {
    int i = 0, above = segments;
    while (above - i > 1) {
      const int half = (i + above) / 2;
      if (first[half] <= r) {
        i = half;
      } else {
        above = half;
      }
    }
    const Segment s = segment_at(i);
    const int j = r - first[i], pieces = first[i + 1] - first[i];
    const float from = j == 0 ? s.from : s.end(j - 1, pieces);
    const float to = s.end(j, pieces);
    if (with_cells) {
      const int last = table.cell_of(to);
      for (int c = r == 0 ? 0 : table.cell_of(from) + 1; c <= last; ++c) {
        cell_begin[c] = static_cast<uint16_t>(r);
      }
      continue;
    }
    float4 line[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) line[k] = lines[4 * i + k];
    table.build_row(r, line, from, to, map.factor);
    if (from == -INFINITY && to > -INFINITY) image.header->ends[0] = r;
    if (to == INFINITY && from < INFINITY) image.header->ends[1] = r;
  }
  if (!with_cells) return;
  // Images are copied in whole words: where nothing belongs, zeros.
  uint16_t* firsts = PieceImage::first_in(image.table, map.shape, p.rows);
  const int places = PieceImage::firsts(map.shape);
  for (int i = threadIdx.x; i < places; i += kBlock) {
    firsts[i] = static_cast<uint16_t>(i <= segments ? first[i] : 0);
  }
  for (int r = count + threadIdx.x; r < p.rows; r += kBlock) {
    table.slopes[r] = table.values[r] = make_uint4(0, 0, 0, 0);
    table.entry[r] = make_float2(0.f, 0.f);
  }
  if (threadIdx.x == 0) {
    if (p.rows % 2 == 1) table.entry[p.rows] = make_float2(0.f, 0.f);
    image.header->grid[0] = grid[0];
    image.header->grid[1] = grid[1];
  }
  __syncthreads();
  for (int i = threadIdx.x; i <= cells / 8; i += kBlock) {
    reinterpret_cast<uint4*>(table.cell_begin)[i] =
        i < cells / 8 ? reinterpret_cast<const uint4*>(cell_begin)[i]
                      : make_uint4(0, 0, 0, 0);
  }
}

}  // namespace
}  // namespace fused

int64_t fused_pieces_bytes(const TableShape& shape, int rows) {
  return static_cast<int64_t>(sizeof(fused::PieceImage::Header)) +
         fused::PieceImage::bytes(shape, rows);
}

void fused_pieces(const FusedPieces& p, cudaStream_t stream) {
  const auto memory =
      static_cast<size_t>(2 * p.map.shape.cells + 12 * (p.map.shape.knots + 2));
  launch_after(fused::pieces_kernel, dim3(fused::kBlocks, p.joint ? 1 : 2),
               fused::kBlock, memory, stream, "fused_pieces", p);
}

}  // namespace luna::cuda
