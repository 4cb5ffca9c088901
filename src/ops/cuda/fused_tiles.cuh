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

/// A tile on its way, told by the thread that asked for it. Before and after
/// are those of its walk.
struct Tile {
  int state;  ///< sequence * heads + head
  int batch, head, row, count;
  int offset;        ///< of its first token in the sequence
  bool first, last;  ///< of the run's tiles of its state
  bool fresh, end;   ///< nothing of its state comes before, after
  bool from_start;   ///< the run's tiles of its state began with a fresh one
};

/// Tiles of a worker's run one by one, from the end with `backwards`.
struct Walk {
  int sequence, head, tile, tiles, begin, length, left;
  bool first, backwards, from_start;

  /// The whole run.
  __device__ void start(const FusedTiles& p, int run, bool from_end = false) {
    backwards = from_end;
    first = true;
    const int all = all_tiles(p), each = run_length(p, all);
    const int64_t at = static_cast<int64_t>(run) * each;
    left =
        at >= all ? 0 : (all - at < each ? static_cast<int>(all - at) : each);
    if (left > 0) {
      seek(p, static_cast<int>(at) + (backwards ? left - 1 : 0));
    }
  }
  /// The tiles that the next run (the one before, with `to_start`) must know
  /// of, in their order.
  __device__ void start_end(const FusedTiles& p, int run, bool to_start) {
    start(p, run, !to_start);
    backwards = false;
    if (left == 0) return;
    if (to_start) {
      left = tile == 0 ? 0 : min(left, tiles - tile);
    } else {
      left = tile == tiles - 1 ? 0 : min(left, tile + 1);
      tile -= left - 1;
    }
  }

  __device__ Tile next(const FusedTiles& p) {
    Tile t;
    t.state = sequence * p.heads + head;
    t.batch = p.tiles.begin == nullptr ? sequence : 0;
    t.head = head;
    t.offset = tile * kTokens;
    t.row = begin + t.offset;
    const int rows = length - t.offset;
    t.count = rows < kTokens ? rows : kTokens;
    const int from = backwards ? tiles - 1 : 0, to = backwards ? 0 : tiles - 1;
    t.fresh = tile == from;
    t.first = first || t.fresh;
    t.end = tile == to;
    if (t.first) from_start = t.fresh;
    t.from_start = from_start;
    t.last = t.end || left == 1;
    first = false;
    --left;
    if (!t.end) {
      tile += backwards ? -1 : 1;
    } else if (left > 0) {
      const int step = backwards ? -1 : 1;
      head += step;
      if (head < 0 || head == p.heads) {
        head = backwards ? p.heads - 1 : 0;
        do {
          sequence += step;
          enter(p);
        } while (tiles == 0);
      }
      tile = backwards ? tiles - 1 : 0;
    }
    return t;
  }

 private:
  __device__ void seek(const FusedTiles& p, int at) {
    if (p.tiles.first == nullptr) {
      sequence = at / (static_cast<int>(p.tiles.per_sequence) * p.heads);
    } else {
      const int wanted = at / p.heads;
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
        at - static_cast<int>(first_piece(p.tiles, sequence)) * p.heads;
    head = rest / tiles;
    tile = rest % tiles;
  }
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

/// Those of a tile's rows, to L2.
__device__ __forceinline__ void fetch_factors(const Factor<float>& factor,
                                              const Tile& tile) {
  if (factor.data == nullptr) return;
  const float* at = factor.data + tile.batch * factor.batch +
                    tile.head * factor.head + tile.row;
  fetch_ahead(at);
  fetch_ahead(at + tile.count - 1);
}

/// Where a worker's tiles come from: its run of one side's.
template <int kTensors>
struct OneSide {
  using Tile = fused::Tile;
  using Walk = fused::Walk;
  __device__ static constexpr int tensors(const Tile&) { return kTensors; }
  __device__ const CUtensorMap* map(const Tile&, int tensor) const {
    return maps[tensor];
  }
  __device__ const Factor<float>& row(const Tile&) const { return factor; }
  /// The thread of a warpgroup that asks for its tiles.
  __device__ static int asker() { return 0; }

  const FusedTiles& work;
  const CUtensorMap* maps[kTensors];
  Factor<float> factor;  ///< a number for each row, fetched to L2 ahead
};

/// A warpgroup's tiles of some tensors, `kStages` ahead. All its threads see
/// them; one of them, or one of a warp beside (`ask_for_tiles`), asks for them.
/// A stage may have room for more after its tiles.
template <int kTensors, int kStages, int kNumbers = kWidth, int kRoom = 0,
          typename Source = OneSide<kTensors>>
struct Stages {
  using Rows = Block<kNumbers>;
  using Tile = typename Source::Tile;
  static constexpr int kTiles = kTensors * Rows::kBytes;
  static constexpr int kStageBytes = kTiles + kRoom;
  static constexpr int kBytes = kStages * kStageBytes;
  struct Control {
    uint64_t full[kStages], empty[kStages];
    Tile tiles[kStages];
    typename Source::Walk walk;
    int count;  ///< of the walk's tiles
  };

  /// By one thread; a barrier of the block comes after.
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&control.full[i]), 1);
      barrier_init(shared_address(&control.empty[i]), 4);
    }
    barrier_init_fence();
  }
  /// By the same, when the walk has started.
  __device__ void begin() {
    control.count = control.walk.left;
    for (int i = 0; i < kStages; ++i) ask(i);
  }
  __device__ void begin(int worker) {
    control.walk.start(source.work, worker);
    begin();
  }

  /// Until it is released.
  __device__ const Tile& arrived() const {
    wait(shared_address(&control.full[slot]), phase);
    return control.tiles[slot];
  }
  __device__ unsigned char* rows(int tensor) const {
    return memory + slot * kStageBytes + tensor * Rows::kBytes;
  }
  __device__ uint32_t at(int tensor) const {
    return shared_address(rows(tensor));
  }
  /// Every warp is done with the stage; it is filled again.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared_address(&control.empty[slot]));
    if (asks() && control.walk.left > 0) {
      wait(shared_address(&control.empty[slot]), phase);
      ask(slot);
    }
    __syncwarp();
  }
  /// The same in two steps, where other work can come between: refill comes
  /// after the next tile's wait_for_others. With a warp that asks, the first is
  /// all.
  __device__ void release_only() {
    if (threadIdx.x % 32 == 0) arrive(shared_address(&control.empty[slot]));
  }
  __device__ void refill() {
    if (asks()) ask(slot == 0 ? kStages - 1 : slot - 1);
    __syncwarp();
  }
  /// By a thread of a warp beside: asks for one tile more, if its stage is
  /// free. `asked` are those before it; false: there is none.
  __device__ bool refill_free(int& asked) {
    if (control.walk.left == 0) return false;
    const int stage = asked % kStages;
    if (is_over(shared_address(&control.empty[stage]), asked / kStages & 1)) {
      ask(stage);
      ++asked;
    }
    return true;
  }
  /// Until the tile after this one has arrived; where its first tensor is.
  __device__ uint32_t next_arrived() const {
    const bool turn = slot + 1 == kStages;
    const int next = turn ? 0 : slot + 1;
    wait(shared_address(&control.full[next]), turn ? phase ^ 1 : phase);
    return shared_address(memory) + next * kStageBytes;
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

  unsigned char* memory;
  Control& control;
  Source source;
  int slot = 0;
  uint32_t phase = 0;

 private:
  __device__ static bool asks() {
    return threadIdx.x % kGroup == Source::asker();
  }
  __device__ void ask(int stage) {
    if (control.walk.left == 0) return;
    const Tile tile = control.walk.next(source.work);
    control.tiles[stage] = tile;
    const uint32_t to = shared_address(memory) + stage * kStageBytes;
    const uint32_t full = shared_address(&control.full[stage]);
    const int tensors = source.tensors(tile);
    arrive_expecting(full, tensors * Rows::kBytes);
#pragma unroll
    for (int i = 0; i < kTensors * Rows::kPieces; ++i) {
      if (i / Rows::kPieces >= tensors) break;
      copy_columns(to + i * Rows::kPieceBytes,
                   source.map(tile, i / Rows::kPieces),
                   i % Rows::kPieces * Rows::kPieceNumbers, tile.row, tile.head,
                   tile.batch, full);
    }
    fetch_factors(source.row(tile), tile);
  }
};

/// By a block's last warp: thread g asks for the tiles of warpgroup g, which
/// only releases them. Asking takes a quarter as many instructions as a tile of
/// the forward. kEarly: the tiles need not wait for the launch before.
template <int kGroups, bool kEarly, typename StagesOf>
__device__ __forceinline__ void ask_for_tiles(const StagesOf& stages_of) {
  const int lane = threadIdx.x % 32;
  bool more = lane < kGroups;
  auto stages = stages_of(lane % kGroups);
  if (more) stages.init();
  __syncwarp();  // no lane arrives at a barrier that is not there yet
  if (!kEarly) wait_for_previous_launch();
  if (more) stages.begin(lane * gridDim.x + blockIdx.x);
  if (kEarly) wait_for_previous_launch();
  allow_next_launch();
  __syncthreads();
  for (int asked = 0; more; __nanosleep(20)) more = stages.refill_free(asked);
}

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
