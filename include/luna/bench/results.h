#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "luna/bench/machine.h"
#include "luna/bench/timing.h"

namespace luna::bench {

/// The mechanism all others are held against.
constexpr std::string_view kReference = "softmax";
/// Peers that are no mechanisms of the registry.
constexpr std::string_view kPlainFormula = "plain";
constexpr std::string_view kSdpaPair = "sdpa-pair";

enum class Mode { kForward, kForwardBackward };

std::string_view mode_name(Mode mode);  ///< "forward", "forward+backward"

/// What is measured: `tokens` in all, as batch x length for every length.
struct Settings {
  std::int64_t tokens = 8192;
  std::int64_t heads = 8;
  std::int64_t width = 64;  ///< of a head
  std::vector<std::int64_t> lengths = {128, 256, 512, 1024, 2048, 4096, 8192};
  std::vector<std::string> attentions;
  std::vector<Mode> modes = {Mode::kForward, Mode::kForwardBackward};
  bool causal = false;
  std::int64_t packed_length = 16;  ///< l of nested
  std::string dtype = "float32";
  int repeat = 7;
  double budget = 180;         ///< seconds for everything
  std::string plain = "some";  ///< lengths with the plain formula: all, none
  std::string model{};         ///< a whole model's folder, and what it is
};

struct Measurement {
  std::string attention;
  Mode mode = Mode::kForward;
  std::int64_t length = 0;
  std::int64_t batch = 0;
  Timing time;
  std::int64_t peak = 0;  ///< bytes of tensors, inputs included
};

struct Skip {
  std::string attention;
  Mode mode = Mode::kForward;
  std::int64_t length = 0;
  std::string reason;
};

struct Results {
  std::string created;  ///< UTC, ISO 8601
  Machine machine;
  Settings settings;
  std::vector<Measurement> measurements;
  std::vector<Skip> skipped;
  bool complete = true;  ///< false: interrupted

  const Measurement* find(std::string_view attention, Mode mode,
                          std::int64_t length) const;
  /// Names in the order of their first measurement.
  std::vector<std::string> attentions() const;
  /// How much faster than softmax in the same run; nothing where one lacks.
  std::optional<double> speed_up(const Measurement& measurement) const;
};

/// Nothing measured yet: the time, this machine, the settings.
Results start_results(const Settings& settings);

std::string to_json(const Results& results);

/// Reads what to_json wrote. Throws ValueError that names `source` and what
/// is wrong with it.
Results results_from_json(const std::string& text, const std::string& source);

/// Where a mechanism overtakes softmax.
struct Crossover {
  enum class Kind { kFromTheStart, kBetween, kNotReached };
  std::string attention;
  Mode mode = Mode::kForward;
  Kind kind = Kind::kNotReached;
  /// The smallest length from which it is never slower: the first measured
  /// one, one between two measured (straight on log-log), or the last.
  double length = 0;
};

/// For every mechanism (peers left out) and mode with measurements.
std::vector<Crossover> crossovers(const Results& results);

struct Change {
  Measurement before, after;
  double ratio = 1;  ///< after / before; above 1 is slower
  bool slower = false, faster = false;
};

/// Pairs of measurements of the same thing. Slower: the median grew by more
/// than `threshold` (a share), and the quartiles do not touch.
std::vector<Change> compare(const Results& before, const Results& after,
                            double threshold);

/// What differs between the two runs so that their times should, too:
/// "threads: 2 before, 8 now".
std::vector<std::string> differences(const Results& before,
                                     const Results& after);

}  // namespace luna::bench
