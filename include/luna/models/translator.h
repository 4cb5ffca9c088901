#pragma once

#include <luna/models/decoder_layer.h>
#include <luna/models/encoder.h>

#include <memory>
#include <vector>

namespace luna::models {

class RecordedSearches;

/// Streams of target sentences, one a row of the batch.
struct DecoderState {
  std::vector<DecoderLayerState> layers{};
  at::Tensor positions{};  ///< their embeddings, as many as were needed yet
  int64_t length = 0;      ///< tokens read so far
  /// Of a fixed state, in place of `length`: the same as int64 [1], and the
  /// positions up to there, bool [1,room].
  at::Tensor place{}, taken{};

  /// Row i of the batch becomes row rows[i] of what it was. `same_source`:
  /// that row has the same source, so that only the target's part moves.
  void reorder(const at::Tensor& rows, bool same_source = false);
  /// A state for so many rows and tokens whose steps always do the same work on
  /// the same memory, as a recording needs it: nothing in it grows, and what
  /// it has read is counted on the device. Shaped as this one, empty.
  DecoderState fixed(int64_t rows, int64_t room) const;
  /// Of a fixed state, in place: row i becomes row rows[i] of `from`, which is
  /// fixed, with no more room, or has read nothing yet. `same_source` as in
  /// reorder.
  void take(const DecoderState& from, const at::Tensor& rows,
            bool same_source = false);
  /// What all layers remember, of all rows.
  int64_t bytes() const;
};

/// An encoder, and a decoder of as many layers over what it gives. One table
/// embeds source and target and gives the logits. Mechanisms with a memory P
/// carry it through the encoder's layers and on through the decoder's.
///
/// Names: those of Encoder, and decoder.N.*; pre-norm: decoder_norm.*; with a
/// memory that is not contextual: decoder_memory [layers,l,D]
class Translator : public Encoder {
 public:
  /// `vocabulary`: ids of both languages and specials. The config's positions
  /// must be sinusoidal; its pooling and head are not read.
  Translator(const ModelConfig& config, int64_t vocabulary);

  /// Of a batch of make_translation_batch, or of its packed form: logits
  /// [labels, vocabulary], a row for each label.
  at::Tensor forward(const data::Batch& batch) override;
  std::string refuses_packed() const override { return refuses_packed_; }

  /// Reads the source; the target starts from nothing.
  DecoderState start(const data::Sequences& source);
  /// The next token of each row, ids [B] -> logits [B, vocabulary] of the one
  /// behind it. Inference only. Equal to what forward gives at this position.
  at::Tensor step(const at::Tensor& ids, DecoderState& state);

  /// How much each row of the memory read of each position of the source, in
  /// the last layer of the decoder: [B,l,m], the mean of its heads, rows of
  /// padding 0. Nothing where the mechanism has no memory.
  std::optional<at::Tensor> memory_attention(const data::Sequences& source);

  std::vector<DecoderLayer> decoder{};
  torch::nn::LayerNorm decoder_norm{nullptr};
  at::Tensor decoder_memory{};
  /// What beam_search has recorded of this model on a GPU.
  std::shared_ptr<RecordedSearches> recorded{};

 private:
  struct Source {
    DecoderSource source{};
    std::optional<at::Tensor> memory{};
  };
  Source read(const data::Sequences& sequences);
  /// What reads the result of the decoder's layer i.
  NextNorm next_norm(size_t i) const;
  /// What the decoder's layer i reads: `before`, or its own.
  std::optional<at::Tensor> memory_of(int64_t i,
                                      const std::optional<at::Tensor>& before,
                                      const Masks& masks,
                                      const data::Sequences& source);
  /// Of x after the last norm.
  at::Tensor logits(const at::Tensor& x);

  std::string refuses_packed_;
};

}  // namespace luna::models
