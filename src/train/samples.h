#pragma once

#include <luna/data/batch.h>
#include <luna/models/model.h>

#include <string>

namespace luna::train {

/// samples.json: a few samples of a data set, readable, with what the model
/// makes of them.
std::string samples_text(models::Model& model, const data::Dataset& data,
                         const data::BatchOptions& form);

}  // namespace luna::train
