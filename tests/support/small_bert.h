#pragma once

#include <string>

namespace luna::testing {

/// A Hugging Face folder of a BERT with random weights: 2 layers, 2 heads of
/// width 8, a tokenizer of a few words. classes = 0: without a classifier.
void write_small_bert(const std::string& folder, int64_t classes);

/// SST-2's files: short sentences of the tokenizer's words, positive if there
/// are more of w0 ... w3 than of the others.
void write_small_sst2(const std::string& folder, int64_t train, int64_t test);

}  // namespace luna::testing
