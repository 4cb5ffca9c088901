// The search of beam_search, as tensor operations on the model's device.
#pragma once

#include <luna/models/beam_search.h>

#include <span>
#include <vector>

namespace luna::models {

/// Tokens for which a search has room at first; doubled as needed.
inline constexpr int64_t kFirstRoom = 64;

/// Where the searches of S sentences are, w beams each: 1 before the first
/// step, or options.beam. They have said equally many tokens.
struct Beams {
  at::Tensor sentence{};  ///< int64 [S]: its number, or -1: none, a filler
  at::Tensor longest{};   ///< int64 [S]: so many tokens it may say
  at::Tensor done{};      ///< bool [S]; what is done does not change any more
  at::Tensor said{};      ///< int64 [1]: how many tokens
  at::Tensor scores{};    ///< float64 [S,w], the best first: log-probabilities,
                          ///< -inf where there is no beam
  at::Tensor ids{};       ///< int64 [S,w,room]: what they have said
  at::Tensor last{};      ///< int64 [S,w]: the decoder reads it next
  /// The best that have ended, the best first: [S,beam] and their ids
  /// [S,beam,room]. float64, as Hypothesis has it, -inf where there is none;
  /// int64, -1 where there is none.
  at::Tensor ended_scores{}, ended_lengths{}, ended_ids{};

  /// Nothing is said yet. longest[i]: of sentence i; behind those come fillers,
  /// up to `sentences`.
  static Beams start(std::span<const int64_t> longest, int64_t sentences,
                     int64_t width, int64_t room, const BeamOptions& options,
                     const c10::Device& device);

  int64_t sentences() const { return scores.size(0); }
  int64_t width() const { return scores.size(1); }
  int64_t room() const { return ids.size(2); }
  /// Sentences that are not done. Waits for the device.
  int64_t live() const;

  /// One token more, of logits [S w, vocabulary]: w becomes options.beam. What
  /// the decoder's rows, one a beam, must become: int64 [S beam]. Does not wait
  /// for the device, and makes new tensors.
  at::Tensor advance(const at::Tensor& logits, const BeamOptions& options);

  /// Some sentences alone, by their places.
  Beams some(const at::Tensor& places) const;
  /// With room for more tokens.
  Beams with_room(int64_t room) const;
  /// Writes another's numbers, of the same shapes, into these tensors.
  void copy(const Beams& from) const;

  /// Writes what has ended of the sentences that are done, each at its number.
  /// Waits for the device.
  void collect(int64_t n_best,
               std::vector<std::vector<Hypothesis>>& results) const;

 private:
  /// Those with a row for each sentence.
  std::vector<at::Tensor*> rows();
};

}  // namespace luna::models
