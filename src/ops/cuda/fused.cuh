#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/fused.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tile.cuh"

// What the fused kernels share. One block a multiprocessor; each of its
// warpgroups works alone on tiles of 64 tokens. Thread (g, t) of warp w has
// tokens 16 w + g and 16 w + g + 8 and projections 2 t and 2 t + 1: what one
// product leaves in its registers is what the next one wants there, if the
// features' order in a product's depth or columns is `place_of_feature`.

namespace luna::cuda::fused {

using namespace hopper;

constexpr int kWidth = 64;
constexpr int kChannels = 8;
constexpr int kProjections = 8;
constexpr int kFeatures = 64;
constexpr int kLd = kWidth + 1;
constexpr int kTokens = 64;  // a warpgroup's tile
constexpr int kRowBytes = 2 * kWidth;
constexpr int kTileBytes = kTokens * kRowBytes;
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kNarrowBytes = kTokens * 16;

/// Two numbers in one register, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float low_of(uint32_t x) {
  return __int_as_float(static_cast<int>(x << 16));
}
__device__ __forceinline__ float high_of(uint32_t x) {
  return __int_as_float(static_cast<int>(x & 0xffff0000u));
}
__device__ __forceinline__ float high_part(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}
/// The larger; a NaN stays one.
__device__ __forceinline__ float at_least(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(r) : "f"(x), "f"(y));
  return r;
}

__device__ __forceinline__ float2 halves(uint32_t x) {
  return __half22float2(*reinterpret_cast<const __half2*>(&x));
}
/// Stays in its register, where it would be made again each time.
__device__ __forceinline__ void keep(float& x) { asm volatile("" : "+f"(x)); }
/// Tells the compiler that all threads of the warp have this number.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

__device__ __forceinline__ int place_of_feature(int feature) {
  const int m = feature / kChannels, c = feature % kChannels;
  return 16 * (2 * (m % 2) + c / 4) + 8 * (c / 2 % 2) + 2 * (m / 2) + c % 2;
}
/// Columns in this order leave a thread 8 neighbours of a row, twice.
__device__ __forceinline__ int place_of_column(int column) {
  return 32 * (column / 32) + 8 * (column / 2 % 4) + 2 * (column / 8 % 4) +
         column % 2;
}
/// Where column c of row r stands in a swizzled operand, in bytes.
__device__ __forceinline__ int operand_at(int r, int c) {
  return r * kRowBytes + ((c / 8 ^ (r & 7)) << 4) + c % 8 * 2;
}

/// An operand of rows of `kNumbers` numbers, as the copy engine leaves them:
/// wide ones in pieces of 64 numbers, one piece after the other.
template <int kNumbers, int kRows = kTokens>
struct Block {
  static constexpr int kPieces = kNumbers > 64 ? kNumbers / 64 : 1;
  static constexpr int kPieceNumbers = kNumbers / kPieces;
  static constexpr int kRowBytes = 2 * kPieceNumbers;
  static constexpr int kPieceBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPieces * kPieceBytes;
  static constexpr int kSteps = kPieceNumbers / 16;  // of a deep piece
  static constexpr uint32_t kSwizzle = kPieceNumbers == 64 ? 1 : 2;
  static_assert(kPieceNumbers == 64 || kPieceNumbers == 32);

  /// Where numbers 8 i.. of row r stand, in bytes.
  __device__ __forceinline__ static int chunk_at(int r, int i) {
    constexpr int kChunks = kPieceNumbers / 8;
    const int turn = kPieceNumbers == 64 ? r & 7 : r / 2 & 3;
    return i / kChunks * kPieceBytes + r * kRowBytes +
           ((i % kChunks ^ turn) << 4);
  }
  __device__ __forceinline__ static int at(int r, int c) {
    return chunk_at(r, c / 8) + c % 8 * 2;
  }

  struct Deep {
    __device__ explicit Deep(uint32_t address) : first(address) {}
    __device__ __forceinline__ uint64_t step(int k) const {
      return first.step(k % kSteps) + k / kSteps * (kPieceBytes / 16);
    }
    hopper::Operand<32, 16, 8 * kRowBytes, kSwizzle> first;
  };
  struct Wide {
    __device__ explicit Wide(uint32_t address) : first(address) {}
    __device__ __forceinline__ uint64_t step(int k, int piece) const {
      return first.step(k) + piece * (kPieceBytes / 16);
    }
    hopper::Operand<16 * kRowBytes, kPieceBytes, 8 * kRowBytes, kSwizzle> first;
  };
};

// --- The table ---------------------------------------------------------

/// psi's table as the look-up wants it: rows of 8 slopes and of 8 values at
/// the segment's reference point, float16, each row with a scale of its own,
/// so that no number is too large for it. The reference is near the point of
/// the segment nearest to 0: digits are lost to distance alone.
struct Table {
  uint4* slopes;
  uint4* values;
  float2* entry;  ///< the segment's end; its reference, with the scale's
                  ///< exponent for its last 8 bits
  uint16_t* cell_begin;
  float low, scale, last_cell;
  float least;  ///< of a feature

  __host__ __device__ static int64_t bytes(const TableShape& s) {
    return (s.knots + 1) * 40 + (s.cells + 8) / 8 * 16;
  }

  __device__ Table(const FeatureMap<float>& map, unsigned char* memory) {
    const int64_t rows = map.shape.knots + 1;
    slopes = reinterpret_cast<uint4*>(memory);
    values = slopes + rows;
    cell_begin = reinterpret_cast<uint16_t*>(values + rows);
    entry = reinterpret_cast<float2*>(memory + rows * 32 +
                                      (map.shape.cells + 8) / 8 * 16);
    last_cell = static_cast<float>(map.shape.cells - 1);
    least = map.nonneg ? 0.f : -INFINITY;
    low = map.table[0];
    scale = map.table[1];
    keep(last_cell);
    keep(least);
  }

  /// By the whole block; a barrier comes after. All loads of the usual sizes
  /// are on their way before the first is used.
  template <int kThreads>
  __device__ void build(const FeatureMap<float>& map) {
    const TableShape& s = map.shape;
    const int rows = static_cast<int>(s.knots) + 1;
    const int cells = static_cast<int>(s.cells) + 1;
    const auto* begins =
        reinterpret_cast<const int*>(map.table + s.cell_begin_at);
    constexpr int kAhead = 4096 / kThreads + 1;
    for (int base = 0; base < cells; base += kAhead * kThreads) {
      int begin[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        begin[j] = i < cells ? begins[i] : 0;
      }
      if (base == 0) build_rows<kThreads>(map, rows);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < cells) cell_begin[i] = static_cast<uint16_t>(begin[j]);
      }
    }
  }

  /// Segments and references of four numbers at once, so that their loads
  /// overlap: few cells hold more than two boundaries.
  __device__ __forceinline__ void find(const float (&u)[4], int (&segment)[4],
                                       float (&point)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // A NaN lands in cell 0.
      const float at = fminf(fmaxf((u[i] - low) * scale, 0.f), last_cell);
      segment[i] = cell_begin[static_cast<int>(at)];
    }
    bool more[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 e = entry[segment[i]];
      point[i] = e.y;
      more[i] = e.x < u[i];
    }
    while (more[0] || more[1] || more[2] || more[3]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        segment[i] += more[i] ? 1 : 0;
        if (more[i]) {
          const float2 e = entry[segment[i]];
          point[i] = e.y;
          more[i] = e.x < u[i];
        }
      }
    }
    __syncwarp();
  }

  /// Features of four numbers times their rows' weights, as pairs of channels,
  /// with their slopes and the slopes' units.
  __device__ __forceinline__ void look_up(
      const float (&u)[4], const float (&weight)[2], int (&segment)[4],
      uint32_t (&phi)[4][4], uint4 (&slope)[4], float (&unit)[4]) const {
    float point[4];
    find(u, segment, point);
    uint4 value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      slope[i] = slopes[segment[i]];
      value[i] = values[segment[i]];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = u[i] - point[i];
      unit[i] = __int_as_float(__float_as_int(point[i]) << 23 & 0x7f800000);
      const float factor = unit[i] * weight[i / 2];
      const uint32_t as[4] = {slope[i].x, slope[i].y, slope[i].z, slope[i].w};
      const uint32_t bs[4] = {value[i].x, value[i].y, value[i].z, value[i].w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 a = halves(as[c]), b = halves(bs[c]);
        phi[i][c] = pack(at_least(fmaf(a.x, x, b.x), least) * factor,
                         at_least(fmaf(a.y, x, b.y), least) * factor);
      }
    }
  }

 private:
  template <int kThreads>
  __device__ void build_rows(const FeatureMap<float>& map, int rows) {
    const float* sorted = map.table + map.shape.boundary_at;
    const float4* from =
        reinterpret_cast<const float4*>(map.table + map.shape.rows_at);
    constexpr int kAhead = 2;
    for (int base = 0; base < rows; base += kAhead * kThreads) {
      float4 line[kAhead][4];
      float begin[kAhead], end[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i >= rows) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) line[j][k] = from[4 * i + k];
        begin[j] = i == 0 ? -INFINITY : sorted[i - 1];
        end[j] = sorted[i];  // infinity after the last
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = base + j * kThreads + threadIdx.x;
        if (i < rows) build_row(i, line[j], begin[j], end[j], map.factor);
      }
    }
  }

  __device__ void build_row(int i, const float4 (&line)[4], float from,
                            float to, float factor) {
    float a[kChannels], b[kChannels];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 x = line[j], y = line[2 + j];
      a[4 * j] = x.x, a[4 * j + 1] = x.y;
      a[4 * j + 2] = x.z, a[4 * j + 3] = x.w;
      b[4 * j] = y.x, b[4 * j + 1] = y.y;
      b[4 * j + 2] = y.z, b[4 * j + 3] = y.w;
    }
    float point = from > 0 ? from : (to < 0 ? to : 0.f);
    if (!isfinite(point)) point = 0.f;
    float top = 0;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      top = fmaxf(top, fmaxf(fabsf(a[c]), fabsf(fmaf(a[c], point, b[c]))));
    }
    // A power of two, so that dividing by it loses nothing.
    const int exponent =
        top > 1e-30f && top < 1e30f ? __float_as_int(top) >> 23 : 127;
    const float inverse = __int_as_float((254 - exponent) << 23) * factor;
    point = __int_as_float((__float_as_int(point) & ~0xff) | exponent);
    __half2 x[4], y[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float p = fmaf(a[2 * c], point, b[2 * c]);
      const float q = fmaf(a[2 * c + 1], point, b[2 * c + 1]);
      x[c] = __floats2half2_rn(a[2 * c] * inverse, a[2 * c + 1] * inverse);
      y[c] = __floats2half2_rn(p * inverse, q * inverse);
    }
    slopes[i] = *reinterpret_cast<uint4*>(x);
    values[i] = *reinterpret_cast<uint4*>(y);
    entry[i] = make_float2(to, point);
  }
};

// --- Tiles -------------------------------------------------------------

__device__ __forceinline__ int all_tiles(const FusedTiles& p) {
  const int64_t tiles = p.tiles.first == nullptr
                            ? p.tiles.sequences * p.tiles.per_sequence
                            : p.tiles.first[p.tiles.sequences];
  return static_cast<int>(tiles) * p.heads;
}
/// Tiles of a worker's run.
__device__ __forceinline__ int run_length(const FusedTiles& p, int all) {
  return (all + p.workers - 1) / p.workers;
}

/// A tile on its way, told by the thread that asked for it.
struct Tile {
  int state;  ///< sequence * heads + head
  int batch, head, row, count;
  /// Of the run's tiles of this state, the first or last; and whether they
  /// begin and end with the state's own.
  bool first, last, from_start, to_end;
};

/// A worker's run, tile by tile.
struct Walk {
  int sequence, head, tile, tiles, begin, length, left;
  bool first, from_start;

  __device__ void start(const FusedTiles& p, int worker) {
    const int all = all_tiles(p), run = run_length(p, all);
    const int64_t at = static_cast<int64_t>(worker) * run;
    left = at >= all ? 0 : (all - at < run ? static_cast<int>(all - at) : run);
    if (left == 0) return;
    if (p.tiles.first == nullptr) {
      sequence = static_cast<int>(at) /
                 (static_cast<int>(p.tiles.per_sequence) * p.heads);
    } else {
      const int64_t wanted = at / p.heads;
      int below = 0, above = static_cast<int>(p.tiles.sequences);
      while (above - below > 1) {
        const int middle = (below + above) / 2;
        if (p.tiles.first[middle] <= wanted) {
          below = middle;
        } else {
          above = middle;
        }
      }
      sequence = below;
    }
    enter(p);
    const int rest =
        static_cast<int>(at - first_piece(p.tiles, sequence) * p.heads);
    head = rest / tiles;
    tile = rest % tiles;
    first = true;
  }

  __device__ Tile next(const FusedTiles& p) {
    Tile t;
    t.state = sequence * p.heads + head;
    t.batch = p.tiles.begin == nullptr ? sequence : 0;
    t.head = head;
    t.row = begin + tile * kTokens;
    const int rows = length - tile * kTokens;
    t.count = rows < kTokens ? rows : kTokens;
    if (first || tile == 0) from_start = tile == 0;
    t.first = first || tile == 0;
    t.from_start = from_start;
    t.to_end = tile == tiles - 1;
    t.last = t.to_end || left == 1;
    first = false;
    --left;
    if (++tile == tiles && left > 0) {
      tile = 0;
      if (++head == p.heads) {
        head = 0;
        do {
          ++sequence;
          enter(p);
        } while (tiles == 0);
      }
    }
    return t;
  }

 private:
  __device__ void enter(const FusedTiles& p) {
    if (p.tiles.begin == nullptr) {
      begin = 0;
      length = static_cast<int>(p.tiles.length);
      tiles = static_cast<int>(p.tiles.per_sequence);
    } else {
      begin = static_cast<int>(p.tiles.begin[sequence]);
      length = static_cast<int>(p.tiles.begin[sequence + 1]) - begin;
      tiles = (length + kTokens - 1) / kTokens;
    }
  }
};

/// A warpgroup's tiles of one or two tensors, `kStages` ahead. All its threads
/// see them; its thread 0 asks for them.
/// A stage may have room for more after its tiles.
template <int kTensors, int kStages, int kNumbers = kWidth, int kRoom = 0>
struct Stages {
  using Rows = Block<kNumbers>;
  static constexpr int kStageBytes = kTensors * Rows::kBytes + kRoom;
  static constexpr int kBytes = kStages * kStageBytes;
  struct Control {
    uint64_t full[kStages], empty[kStages];
    Tile tiles[kStages];
    Walk walk;
    int count;  ///< of the run's tiles
  };

  __device__ Stages(unsigned char* memory, Control& control,
                    const FusedTiles& work, const CUtensorMap* x,
                    const CUtensorMap* y, const Factor<float>& factor)
      : rows(shared_address(memory)),
        control(control),
        work(work),
        x(x),
        y(y),
        factor(factor) {}
  /// By thread 0; a barrier of the block comes after.
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&control.full[i]), 1);
      barrier_init(shared_address(&control.empty[i]), 4);
    }
    barrier_init_fence();
  }
  /// By thread 0.
  __device__ void begin(int worker) {
    control.walk.start(work, worker);
    control.count = control.walk.left;
    for (int i = 0; i < kStages; ++i) ask(i);
  }

  __device__ Tile arrived() const {
    wait(shared_address(&control.full[slot]), phase);
    return control.tiles[slot];
  }
  __device__ uint32_t x_rows() const { return rows + slot * kStageBytes; }
  __device__ uint32_t y_rows() const { return x_rows() + Rows::kBytes; }
  /// Every warp is done with the stage; it is filled again.
  __device__ void release() {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&control.empty[slot]));
    if (threadIdx.x % kGroup == 0 && control.walk.left > 0) {
      wait(shared_address(&control.empty[slot]), phase);
      ask(slot);
    }
    __syncwarp();
  }
  /// Every warp has released the tile before this one.
  __device__ void wait_for_others() const {
    const int before = slot == 0 ? kStages - 1 : slot - 1;
    wait(shared_address(&control.empty[before]), slot == 0 ? phase ^ 1 : phase);
  }
  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }

  uint32_t rows;
  Control& control;
  const FusedTiles& work;
  const CUtensorMap *x, *y;
  const Factor<float>& factor;  ///< a number for each row, fetched to L2 ahead
  int slot = 0;
  uint32_t phase = 0;

 private:
  __device__ void ask(int stage) {
    if (control.walk.left == 0) return;
    const Tile tile = control.walk.next(work);
    control.tiles[stage] = tile;
    const uint32_t to = rows + stage * kStageBytes;
    const uint32_t full = shared_address(&control.full[stage]);
    arrive_expecting(full, kTensors * Rows::kBytes);
#pragma unroll
    for (int i = 0; i < Rows::kPieces; ++i) {
      copy_columns(to + i * Rows::kPieceBytes, x, i * Rows::kPieceNumbers,
                   tile.row, tile.head, tile.batch, full);
    }
    if (kTensors == 2) {
#pragma unroll
      for (int i = 0; i < Rows::kPieces; ++i) {
        copy_columns(to + Rows::kBytes + i * Rows::kPieceBytes, y,
                     i * Rows::kPieceNumbers, tile.row, tile.head, tile.batch,
                     full);
      }
    }
    if (factor.data != nullptr) {
      const float* at = factor.data + tile.batch * factor.batch +
                        tile.head * factor.head + tile.row;
      fetch_ahead(at);
      fetch_ahead(at + tile.count - 1);
    }
  }
};

/// Rows that belong to the next sequence become zeros.
template <int kNumbers = kWidth>
__device__ __forceinline__ void clear_rows(unsigned char* tile, int from) {
  using Rows = Block<kNumbers>;
#pragma unroll
  for (int piece = 0; piece < Rows::kPieces; ++piece) {
    uint4* at = reinterpret_cast<uint4*>(tile + piece * Rows::kPieceBytes +
                                         from * Rows::kRowBytes);
    for (int i = threadIdx.x % kGroup;
         i < (kTokens - from) * (Rows::kRowBytes / 16); i += kGroup) {
      at[i] = make_uint4(0, 0, 0, 0);
    }
  }
}

// --- Operands ----------------------------------------------------------

/// W's high and low parts as rows 0-7 and 8-15 of an operand. By a warpgroup;
/// reading comes first, so that other loads can come between.
template <int kNumbers>
struct ProjectionRowsOf {
  static constexpr int kEach = kProjections * kNumbers / kGroup;
  using Rows = Block<kNumbers, 2 * kProjections>;
  float w[kEach];

  __device__ __forceinline__ ProjectionRowsOf(const FeatureMap<float>& map,
                                              int head) {
    const float* from =
        map.weight + (map.per_head ? head : 0) * kProjections * kNumbers;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      w[i] = from[i * kGroup + threadIdx.x % kGroup];
    }
  }
  __device__ __forceinline__ void write(bool columns_in_place,
                                        unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kGroup + threadIdx.x % kGroup;
      const int m = at / kNumbers, column = at % kNumbers;
      const int place = columns_in_place ? column : place_of_column(column);
      const float high = high_part(w[i]);
      *reinterpret_cast<__nv_bfloat16*>(to + Rows::at(m, place)) =
          __float2bfloat16_rn(high);
      *reinterpret_cast<__nv_bfloat16*>(to + Rows::at(m + 8, place)) =
          __float2bfloat16_rn(w[i] - high);
    }
  }
};
using ProjectionRows = ProjectionRowsOf<kWidth>;

/// S [64, width + 1]'s first columns as operands of 64 rows, features in their
/// places: with columns as they come, and with columns in their places; either
/// may be null. By a warpgroup.
template <int kNumbers = kWidth>
__device__ __forceinline__ void write_state(const float* __restrict__ state,
                                            unsigned char* plain,
                                            unsigned char* placed) {
  using Rows = Block<kNumbers>;
  constexpr int kTogether = kGroup / kNumbers;  // rows
  const int column = threadIdx.x % kNumbers;
  const int row = threadIdx.x % kGroup / kNumbers;
  const int place = place_of_column(column);
#pragma unroll
  for (int i = 0; i < kFeatures; i += 16 * kTogether) {
    float s[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      s[j] = state[(i + kTogether * j + row) * (kNumbers + 1) + column];
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int r = place_of_feature(i + kTogether * j + row);
      const __nv_bfloat16 x = __float2bfloat16_rn(s[j]);
      if (plain != nullptr) {
        *reinterpret_cast<__nv_bfloat16*>(plain + Rows::at(r, column)) = x;
      }
      if (placed != nullptr) {
        *reinterpret_cast<__nv_bfloat16*>(placed + Rows::at(r, place)) = x;
      }
    }
  }
}

/// u = x W^T + b of two tokens: [token 0: projections 2 t, 2 t + 1; token 1].
__device__ __forceinline__ void project(const DeepOperand& x,
                                        const DeepOperand& w,
                                        float (&sums)[8]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply<false, false>(sums, x.step(k), w.step(k), k > 0);
  }
  products_commit();
}
template <int kNumbers>
__device__ __forceinline__ void project_rows(
    const typename Block<kNumbers>::Deep& x,
    const typename Block<kNumbers, 2 * kProjections>::Deep& w,
    float (&sums)[8]) {
#pragma unroll
  for (int k = 0; k < kNumbers / 16; ++k) {
    multiply<false, false>(sums, x.step(k), w.step(k), k > 0);
  }
  products_commit();
}
__device__ __forceinline__ void finish_projection(const float (&sums)[8],
                                                  const float (&bias)[2],
                                                  float (&u)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) u[i] = sums[i] + sums[4 + i] + bias[i % 2];
}

/// Sums of features by columns, as the products leave them: to the state, or
/// to a part.
template <int kNumbers>
struct SumsOf {
  using Rows = Block<kNumbers>;
  static constexpr int kPiece = Rows::kPieceNumbers / 2;
  static constexpr int kEach = kNumbers / 2;
  float s[kEach] = {};
  float z[4] = {};  ///< columns 0 and 1 are the last column's two parts

  __device__ __forceinline__ float (&piece(int i))[kPiece] {
    return *reinterpret_cast<float(*)[kPiece]>(s + i * kPiece);
  }
  __device__ __forceinline__ void write(const Tile& tile, float* states,
                                        float* parts, int worker) {
    constexpr int kLd = kNumbers + 1;
    const int thread = threadIdx.x % kGroup;
    const int g = thread % 32 / 4, t = thread % 4;
    const float z0 = z[0] + z[1], z1 = z[2] + z[3];
    if (tile.from_start && tile.to_end) {
      const int row = thread / 32 * 16 + g;
      float* at = states + static_cast<int64_t>(tile.state) * kFeatures * kLd +
                  row * kLd;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        at[(i / 2 % 2) * 8 * kLd + i / 4 * 8 + 2 * t + i % 2] = s[i];
      }
      if (t == 0) {
        at[kNumbers] = z0;
        at[8 * kLd + kNumbers] = z1;
      }
    } else {
      float* at =
          parts +
          (2 * static_cast<int64_t>(worker) + (tile.from_start ? 1 : 0)) *
              fused_part(kNumbers) +
          thread;
#pragma unroll
      for (int i = 0; i < kEach; ++i) at[i * kGroup] = s[i];
      at[kEach * kGroup] = z0;
      at[(kEach + 1) * kGroup] = z1;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) s[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] = 0.f;
  }
};
using Sums = SumsOf<kWidth>;

/// Rows 16 w + g and 16 w + g + 8 of a tile, where `count` has them: thread t
/// of a quad has numbers 8 t.., 32 + 8 t.. of them, as products leave them.
struct TileRows {
  __device__ TileRows(const Rows& rows, const Tile& tile)
      : row(static_cast<int>(threadIdx.x % kGroup / 32 * 16 +
                             threadIdx.x % 32 / 4)),
        count(tile.count),
        stride(rows.row),
        at(reinterpret_cast<uint4*>(
               static_cast<__nv_bfloat16*>(rows.data) +
               row_at(rows, tile.batch, tile.head, tile.row + row)) +
           threadIdx.x % 4) {}
  /// Numbers 2 kCount.. of the rows, from a piece on.
  template <int kCount>
  __device__ __forceinline__ void store(const float (&c)[kCount], float factor0,
                                        float factor1, int piece = 0) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= count) break;
      const float factor = r == 0 ? factor0 : factor1;
      uint4* to = at + r * stride + piece * 8;  // 8 rows of 8 numbers a word
#pragma unroll
      for (int part = 0; part < kCount / 16; ++part) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = (4 * part + j) * 4 + 2 * r;
          x[j] = pack(c[i] * factor, c[i + 1] * factor);
        }
        to[4 * part] = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }
  int row, count;
  int64_t stride;
  uint4* at;
};

// --- Launches ----------------------------------------------------------

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, number = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&number, attribute, device);
  return number;
}
inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}
/// A block for each multiprocessor, where there is work for it.
inline int blocks_of(const FusedTiles& tiles) {
  const int64_t all = tiles.tiles.bound * tiles.heads, most = multiprocessors();
  return static_cast<int>(all < most ? all : most);
}

/// Calls `body` with the width as a constant: 32, 64 or 128.
template <typename Body>
auto for_width(int64_t width, Body body) {
  if (width == 32) return body.template operator()<32>();
  if (width == 64) return body.template operator()<64>();
  return body.template operator()<128>();
}

size_t forward_memory(const TableShape& shape, int64_t width);

}  // namespace luna::cuda::fused
