#pragma once

#include "ops/cuda/fused_numbers.cuh"

namespace luna::cuda::fused {

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
  /// The same in two steps, where other work can come between: refill comes
  /// after the next tile's wait_for_others.
  __device__ void release_only() {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&control.empty[slot]));
  }
  __device__ void refill() {
    if (threadIdx.x % kGroup == 0) ask(slot == 0 ? kStages - 1 : slot - 1);
    __syncwarp();
  }
  /// The tile after this one; for a barrier of the warpgroup after its refill.
  __device__ Tile next() const {
    return control.tiles[slot + 1 == kStages ? 0 : slot + 1];
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

}  // namespace luna::cuda::fused
