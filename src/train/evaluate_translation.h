#pragma once

#include <luna/data/translation.h>
#include <luna/train/evaluate.h>

#include <span>

namespace luna::train {

/// Loss and accuracy of the next token, given those before it, and BLEU of what
/// the model says by itself against the data's targets, of the pairs
/// `indices`. Nothing if `options.stop` said so.
std::optional<Evaluation> evaluate_translation(
    models::Model& model, const data::TranslationDataset& data,
    std::span<const int64_t> indices, const EvaluateOptions& options);

}  // namespace luna::train
