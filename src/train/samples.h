#pragma once

#include <luna/data/batch.h>
#include <luna/data/translation.h>
#include <luna/models/model.h>

#include <string>

namespace luna::train {

/// samples.json: a few samples of a data set, readable, with what the model
/// makes of them.
std::string samples_text(models::Model& model, const data::Dataset& data,
                         const data::BatchOptions& form);

/// The same of translations, found greedily.
std::string translation_samples_text(models::Model& model,
                                     const data::TranslationDataset& data);

}  // namespace luna::train
