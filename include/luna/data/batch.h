#pragma once

#include <ATen/core/Tensor.h>
#include <luna/data/dataset.h>

#include <optional>
#include <vector>

namespace luna::data {

/// How B sequences lie one after the other in one row of T tokens.
struct Packing {
  /// [B+2] int64, never falling, from 0 to T: sequence i is the tokens from
  /// starts[i] to before starts[i+1]. Sequence B is the filler, pad_ids that
  /// make the row as long as somebody wants it; it may be empty. Attention
  /// treats it as a sequence, and nobody reads what comes of it.
  at::Tensor starts;
  /// Known on the host: no sequence is longer, the filler included.
  int64_t longest = 0;

  int64_t sequences() const { return starts.size(0) - 1; }  ///< B + 1
  int64_t samples() const { return starts.size(0) - 2; }    ///< B
};

/// What the host knows of tokens that a model may put one after the other: so
/// many with a filler, and no filler is longer.
struct Room {
  int64_t tokens = 0, filler = 0;
};

/// Sequences side by side, padded on the right; or, where `packed` is there,
/// one after the other. Which tokens are real is said by the lengths, never by
/// the ids.
struct Sequences {
  at::Tensor ids;      ///< [B,n] int64; pad_id beyond the length. Packed: [1,T]
  at::Tensor lengths;  ///< [B] int64, [CLS] counted, the filler's not there
  bool full = false;   ///< known on the host: every length is n, so that no
                       ///< mask is needed
  std::optional<Packing> packed{};
  /// Of pictures, for models to which black is padding: room for the pixels
  /// that are not, where `full`. They then leave out the others, which changes
  /// no result.
  std::optional<Room> room{};
};

struct Batch {
  Sequences first{};
  std::optional<Sequences> second{};  ///< pairs only
  at::Tensor labels;                  ///< [B] int64; of scores, float32
  /// Known on the host: there is a label for every position of `second`, of
  /// padding kNoLabel. Else labels are those of real positions alone.
  bool padded_labels = false;
  at::Tensor blends{};  ///< [B,6] float32, see data/blend.h; undefined: none
  std::vector<int64_t> indices{};  ///< of the samples, in the data set
};

/// What a loss leaves out.
inline constexpr int64_t kNoLabel = -100;

struct BatchOptions {
  bool cls = false;        ///< [CLS] in front of each sequence
  int64_t max_length = 0;  ///< cut on the right to this many data ids; 0: not
  int64_t pad_to = 0;      ///< every batch this long, [CLS] counted; 0: as
                           ///< its longest sample
  bool augment = false;    ///< pictures: flip and shift by up to 4 pixels
  double mixup = 0;        ///< pictures: the share that is mixed with another
  double cutmix = 0;       ///< that has a piece of another
};

/// The samples `indices` of a data set as one batch. Augmentation is a pure
/// function of (seed, position in the run), so that a resumed run sees the
/// same pictures; `position` is that of the first sample, step * batch.
Batch make_batch(const Dataset& data, std::span<const int64_t> indices,
                 const BatchOptions& options, uint64_t seed = 0,
                 int64_t position = 0);

/// The order in which a run sees its samples: epoch after epoch, each a
/// permutation that depends on (seed, epoch) alone. A pure function: a
/// resumed run asks for step 1,000 and gets what it would have got.
class DataOrder {
 public:
  DataOrder(int64_t size, int64_t batch, uint64_t seed);

  /// Indices of batch `step` (from 0); a batch may straddle two epochs.
  std::vector<int64_t> batch(int64_t step);
  int64_t epoch(int64_t step) const;

 private:
  const std::vector<int64_t>& permutation(int64_t epoch);

  int64_t size_, batch_;
  uint64_t seed_;
  int64_t cached_epoch_ = -1;
  std::vector<int64_t> cached_{};
};

}  // namespace luna::data
