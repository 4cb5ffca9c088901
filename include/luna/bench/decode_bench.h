#pragma once

#include <luna/bench/machine.h>
#include <luna/bench/timing.h>
#include <luna/models/model_config.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace luna::bench {

/// Which steps of decoders are timed. Times do not depend on the weights,
/// which are random.
struct DecodeSettings {
  std::vector<std::string> attentions{};  ///< none: all that can decode
  std::vector<int64_t> positions{64, 512, 2048, 8192};
  std::vector<int64_t> batches{1, 64};
  int64_t layers = 6, width = 512, ffn = 2048, heads = 8;
  int64_t memory_length = 16;
  int64_t vocabulary = 8000;
  int64_t source = 32;  ///< tokens of the source
  std::string device = "cpu";
  std::string dtype = "float32";
  int repeat = 7;          ///< samples of each
  int64_t steps = 16;      ///< of a sample
  double cache_gib = 2.0;  ///< a key-value cache that needs more is left out
};

/// One token of every sentence of a batch.
struct DecodeRow {
  std::string attention{};
  int64_t batch = 0, position = 0;
  Timing time{};
  int64_t state_bytes = 0;  ///< of a sentence
  bool graph = false;       ///< launched as one CUDA graph
  std::string skipped{};    ///< why there is no time
};

struct DecodeResults {
  DecodeSettings settings{};
  Machine machine{};
  std::vector<DecodeRow> rows{};
};

/// Softmax has a key-value cache that is filled up to the position; the other
/// mechanisms a state of constant size. `progress` is told what is measured;
/// `stop` asked before it is.
DecodeResults decode_bench(
    const DecodeSettings& settings,
    const std::function<void(const std::string&)>& progress = {},
    const std::function<bool()>& stop = {});

std::string to_json(const DecodeResults& results);
/// What to_json wrote; `where` starts the messages. Of the settings it has what
/// describes the work, not how often it was repeated.
DecodeResults decode_results_from_json(const std::string& text,
                                       const std::string& where);

}  // namespace luna::bench
