#pragma once

#include <string>

#include "luna/bench/attention_bench.h"

namespace luna::bench {

/// Settings of `luna bench --model`: 4,096 tokens, forward, float32.
Settings model_settings(bool quick);

/// Races the model of a Hugging Face folder (BERT or ViT) with softmax and with
/// other attention, forward as in use: eval, no gradients, nothing padded.
///
/// Of the settings: model (the folder), tokens (batch = tokens / length, at
/// least 1), lengths, attentions (none: the folder's own, or universal if that
/// is softmax), dtype, repeat, budget. A ViT's lengths become those of the
/// nearest square of patches and [CLS]; a BERT's beyond its positions are left
/// out and said. Memory counts the weights.
Results bench_model(const Settings& settings, const Hooks& hooks = {});

}  // namespace luna::bench
