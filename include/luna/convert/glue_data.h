#pragma once

#include <luna/data/glue.h>
#include <luna/data/splits.h>
#include <luna/models/bert.h>
#include <luna/text/wordpiece.h>

#include <string>

namespace luna::convert {

struct GlueDataOptions {
  int64_t max_length = 0;  ///< cut to so many ids, the longer of a pair first;
                           ///< 0: what the model can take
  int64_t samples = 0;     ///< at most so many in each split; 0: all
};

/// What is to be known of a task of GLUE whose texts a BERT reads.
data::TaskInfo glue_info(const data::GlueTask& task,
                         const models::BertConfig& bert);

/// A task's files in `folder` as a BERT reads them (models::BertClassifier has
/// the ids). The published labels stop at the validation file: that one is
/// `test`, and `validation` is a tenth of the training file, always the same.
data::Splits open_glue(const std::string& task, const std::string& folder,
                       const text::WordPiece& tokenizer,
                       const models::BertConfig& bert,
                       const GlueDataOptions& options = {});

}  // namespace luna::convert
