#pragma once

#include <luna/data/image_processor.h>
#include <luna/models/vit.h>

#include <string>
#include <vector>

namespace luna::convert {

/// Writes a ViT with a classifier that did not come from a Hugging Face folder
/// as one (ViTForImageClassification, with the pre-processor's file), in place
/// of what is there. `labels`: names of the classes.
void write_vit_folder(const std::string& folder, const models::Vit& vit,
                      const std::vector<std::string>& labels,
                      const data::ImageProcessorOptions& processor = {});

}  // namespace luna::convert
