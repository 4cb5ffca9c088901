// Steps of beam_search as graphs of a device, which are launched as a whole.
#pragma once

#include <memory>
#include <vector>

#include "models/beams.h"
#include "ops/device_graph.h"

namespace luna::models {

/// Sizes that repeat, so that few recordings serve many batches: at least what
/// is asked for.
int64_t recorded_sentences(int64_t sentences, int64_t beam);
int64_t recorded_source(int64_t tokens);
/// Where a search of `sentences` goes on of which `live` are not done: a
/// quarter of it as long as that is enough, but not from 64 rows (one a beam)
/// on, which take a GPU no longer than fewer.
int64_t fewer_sentences(int64_t sentences, int64_t live, int64_t beam);

/// A search in tensors that stay where they are, and its step: the decoder's
/// token, what the beams make of it, and the rows in their new order.
class RecordedSearch {
 public:
  /// Shaped as `state` (of any number of rows) for so many sentences and
  /// tokens.
  RecordedSearch(Translator& model, const DecoderState& state,
                 int64_t sentences, int64_t room, const BeamOptions& options);

  /// Goes on from there: beams of these sentences, whose rows of `state` are
  /// `rows`; as DecoderState::take and Beams::copy need them.
  void load(const DecoderState& state, const Beams& beams,
            const at::Tensor& rows);
  /// Does not wait. The first is launched piece by piece, and recorded.
  void step();

  const DecoderState& state() const { return state_; }
  const Beams& beams() const { return beams_; }
  bool is_recorded() const { return graph_ != nullptr; }
  /// Of its tensors on the device.
  int64_t bytes() const { return bytes_; }
  /// Of the decoder's state for one row that has read so many tokens.
  int64_t row_bytes(int64_t tokens);

 private:
  void compute();

  Translator& model_;
  BeamOptions options_;
  DecoderState state_;
  Beams beams_;
  int64_t bytes_ = 0;
  bool tried_ = false;
  std::unique_ptr<ops::DeviceGraph> graph_{};
};

/// Those of one model. What was not used for longest goes when they become too
/// many, or too large.
class RecordedSearches {
 public:
  /// The model's own: model.recorded. Empty if its weights have moved in memory
  /// since: recordings read them where they were.
  static RecordedSearches& of(Translator& model);

  /// As RecordedSearch's constructor.
  std::shared_ptr<RecordedSearch> find(const DecoderState& state,
                                       int64_t sentences, int64_t room,
                                       const BeamOptions& options);
  /// How many there are, and how many of them are recorded.
  int64_t count() const { return std::ssize(searches_); }
  int64_t recorded() const;

 private:
  explicit RecordedSearches(Translator& model);

  struct Entry {
    std::vector<double> key{};
    std::shared_ptr<RecordedSearch> search{};
  };
  Translator& model_;
  std::vector<const void*> weights_;
  std::vector<Entry> searches_{};  ///< the one that was used last is last
};

}  // namespace luna::models
