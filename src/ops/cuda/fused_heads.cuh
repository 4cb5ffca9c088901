#pragma once

#include "ops/cuda/fused_short.h"
#include "ops/cuda/fused_tiles.cuh"

// Whole heads as a warpgroup's work: the tiles of one side of a head, then
// those of the other, then the next head.

namespace luna::cuda::fused {

__host__ __device__ constexpr int tiles_in(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}
/// Heads of a worker: each in its turn takes one.
__device__ __forceinline__ int heads_of(const FusedHeads& p, int worker) {
  const int all = p.sequences * p.heads;
  return worker < all ? (all - worker + p.workers - 1) / p.workers : 0;
}

struct HeadTile : Tile {
  bool keys;
};

template <bool kKeysFirst>
struct HeadWalk {
  int state, batch, head, tile, left;
  int batches, heads;  ///< from a head to the worker's next
  bool keys;

  __device__ void start(const FusedHeads& p, int worker) {
    state = worker;
    batch = worker / p.heads;
    head = worker % p.heads;
    batches = p.workers / p.heads;
    heads = p.workers % p.heads;
    tile = 0;
    keys = kKeysFirst;
    left = heads_of(p, worker) * (tiles_in(p.queries) + tiles_in(p.keys));
  }
  __device__ HeadTile next(const FusedHeads& p) {
    const int length = keys ? p.keys : p.queries;
    HeadTile t;
    t.state = state;
    t.batch = batch;
    t.head = head;
    t.row = t.offset = tile * kTokens;
    t.count = min(length - t.row, kTokens);
    t.first = t.fresh = tile == 0;
    t.last = t.end = tile == tiles_in(length) - 1;
    t.from_start = true;
    t.keys = keys;
    --left;
    ++tile;
    if (t.last) {
      tile = 0;
      if (keys != kKeysFirst) {
        state += p.workers;
        batch += batches;
        head += heads;
        if (head >= p.heads) {
          head -= p.heads;
          ++batch;
        }
      }
      keys = !keys;
    }
    return t;
  }
};

/// Another warp in each warpgroup, since warps of one number share a scheduler.
__device__ __forceinline__ int asker_of_group() {
  return static_cast<int>(threadIdx.x / kGroup % 4 * 32);
}

/// Keys with values, then queries alone.
struct ForwardHeads {
  using Tile = HeadTile;
  using Walk = HeadWalk<true>;
  __device__ static int tensors(const Tile& tile) { return tile.keys ? 2 : 1; }
  __device__ const CUtensorMap* map(const Tile& tile, int tensor) const {
    return tensor == 1 ? value : tile.keys ? key : query;
  }
  __device__ Factor<float> row(const Tile& tile) const {
    return tile.keys ? weight : Factor<float>{};
  }
  __device__ static int asker() { return asker_of_group(); }

  const FusedHeads& work;
  const CUtensorMap *query, *key, *value;
  Factor<float> weight;
};

/// Queries with the output's gradients, then keys with values.
struct BackwardHeads {
  using Tile = HeadTile;
  using Walk = HeadWalk<false>;
  __device__ static constexpr int tensors(const Tile&) { return 2; }
  __device__ const CUtensorMap* map(const Tile& tile, int tensor) const {
    const FusedBackward& p = tile.keys ? keys : queries;
    return tensor == 0 ? &p.x : &p.y;
  }
  __device__ const Factor<float>& row(const Tile& tile) const {
    return tile.keys ? keys.row : queries.row;
  }
  __device__ static int asker() { return asker_of_group(); }

  const FusedHeads& work;
  const FusedBackward &queries, &keys;
};

}  // namespace luna::cuda::fused
