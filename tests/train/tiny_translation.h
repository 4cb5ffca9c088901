#pragma once

// Sentences, a model and a config so small that a run takes a second.

#include <luna/data/translation.h>
#include <luna/train/trainer.h>

#include <string>

namespace luna::testing {

/// Short sentences and their words in the opposite order, in other letters.
data::ParallelText tiny_sentences(int count);

/// `count` of them for training, the first `judged` for validation and test.
train::Splits tiny_translation(int count, int judged);

/// 8 steps of 64 tokens; a validation every 4, a checkpoint every 2.
train::TrainConfig tiny_translation_config(const std::string& attention);

}  // namespace luna::testing
