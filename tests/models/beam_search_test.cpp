#include <luna/models/beam_search.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "models/recorded_search.h"
#include "models/small_translator.h"
#include "ops/device_graph.h"
#include "support/device.h"

// Beam search against a naive one, and its recorded form against the plain one.
// On the CPU, which has no graphs, a graph is work that is done again and must
// then be the same operations: all is tested there but the recording itself.

namespace luna::models {
namespace {

using luna::testing::DeviceTest;
using luna::testing::kSmallVocabulary;
using luna::testing::make_translator;
using luna::testing::random_sequences;
using luna::testing::small_translator;
using luna::testing::translator_kinds;
using Found = std::vector<std::vector<Hypothesis>>;

/// Of one sentence, without states, batches or tensors of beams: every word
/// behind every beam is scored by the parallel decoder.
class NaiveSearch {
 public:
  NaiveSearch(Translator& model, const data::Sequences& source,
              const BeamOptions& options)
      : model_(model), source_(source), options_(options) {}

  std::vector<Hypothesis> run(int64_t longest) {
    std::vector<Hypothesis> live{{}}, ended;
    while (!live.empty()) {
      std::vector<Hypothesis> next;
      for (const Hypothesis& beam : live) {
        const auto scores = next_scores(beam.ids);
        const bool over = std::ssize(beam.ids) == longest;
        for (int64_t id = 0; id < kSmallVocabulary; ++id) {
          if (over && id != options_.end) continue;
          auto ids = beam.ids;
          ids.push_back(id);
          if (!repeats(ids)) next.push_back({ids, beam.score + scores[id]});
        }
      }
      std::ranges::sort(next, std::greater{}, &Hypothesis::score);
      live.clear();
      for (size_t i = 0; i < next.size(); ++i) {
        Hypothesis& one = next[i];
        if (std::ssize(live) == options_.beam) break;
        if (one.ids.back() != options_.end) {
          live.push_back(one);
        } else if (std::cmp_less(i, options_.beam)) {
          ended.push_back({{one.ids.begin(), one.ids.end() - 1},
                           normalized(one.score, one.ids.size())});
        }
      }
      std::ranges::sort(ended, std::greater{}, &Hypothesis::score);
      if (!live.empty() && std::ssize(ended) >= options_.beam &&
          (options_.beam == 1 ||
           normalized(live[0].score, live[0].ids.size() + 1) <=
               ended[options_.beam - 1].score)) {
        break;
      }
    }
    ended.resize(std::min<size_t>(ended.size(), options_.n_best));
    return ended;
  }

 private:
  double normalized(double score, size_t tokens) const {
    return score /
           std::pow(static_cast<double>(tokens), options_.length_penalty);
  }

  /// Whether the last n-gram has been said before.
  bool repeats(const std::vector<int64_t>& ids) const {
    const int64_t n = options_.no_repeat_ngram;
    if (n == 0 || std::ssize(ids) <= n) return false;
    const auto last = ids.end() - n;
    return std::search(ids.begin(), ids.end() - 1, last, ids.end()) !=
           ids.end() - 1;
  }

  std::vector<double> next_scores(const std::vector<int64_t>& ids) {
    std::vector<int64_t> read{options_.start};
    read.insert(read.end(), ids.begin(), ids.end());
    const auto logits = model_.forward(
        {.first = source_,
         .second = data::Sequences{at::tensor(read).unsqueeze(0),
                                   at::tensor({std::ssize(read)}), true},
         .labels = at::Tensor()});
    const auto scores = at::log_softmax(logits[-1], 0);
    const double* const first = scores.const_data_ptr<double>();
    return {first, first + scores.numel()};
  }

  Translator& model_;
  data::Sequences source_;
  BeamOptions options_;
};

void expect_found(const Found& found, const Found& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), wanted[i].size()) << "sentence " << i;
    for (size_t n = 0; n < found[i].size(); ++n) {
      EXPECT_EQ(found[i][n].ids, wanted[i][n].ids) << "sentence " << i;
      EXPECT_NEAR(found[i][n].score, wanted[i][n].score, 1e-9);
    }
  }
}

TEST(BeamSearch, FindsWhatANaiveSearchFinds) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> lengths{5, 2, 9, 1};
  const auto source = random_sequences(lengths, 4);
  std::vector<BeamOptions> all;
  for (const int64_t beam : {1, 2, 5, 8}) {
    for (const double penalty : {0.0, 1.0, 2.5}) {
      all.push_back({.beam = beam,
                     .length_penalty = penalty,
                     .n_best = beam,
                     .max_ratio = 1.5,
                     .max_extra = 2});
    }
  }
  for (const int64_t n : {1, 2, 3}) {
    all.push_back({.beam = 3,
                   .n_best = 3,
                   .no_repeat_ngram = n,
                   .max_ratio = 0,
                   .max_extra = 20});
  }
  for (const char* attention : {"softmax", "linear"}) {
    const auto model = make_translator(small_translator(attention, "pre"));
    for (const BeamOptions& options : all) {
      SCOPED_TRACE(::testing::Message()
                   << attention << ", beam " << options.beam << ", penalty "
                   << options.length_penalty << ", n-grams "
                   << options.no_repeat_ngram);
      Found wanted;
      for (int64_t i = 0; i < std::ssize(lengths); ++i) {
        const auto longest =
            static_cast<int64_t>(options.max_ratio *
                                 static_cast<double>(lengths[i])) +
            options.max_extra;
        wanted.push_back(
            NaiveSearch(*model,
                        {source.ids.slice(0, i, i + 1).slice(1, 0, lengths[i]),
                         at::tensor({lengths[i]}), true},
                        options)
                .run(longest));
      }
      expect_found(beam_search(*model, source, options), wanted);
    }
  }
}

TEST(BeamSearch, EndsWhereItIsStopped) {
  const auto model = make_translator(small_translator("linear", "pre"));
  int64_t asked = 0;
  SearchCost cost;
  const auto found = beam_search(*model, random_sequences({5, 2}, 4), {}, &cost,
                                 [&] { return ++asked > 3; });
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(cost.steps, 3);
}

/// What runs while it lives: operations, sizes of their tensors, and numbers.
class Operations {
 public:
  Operations() {
    running() = &list_;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note).needsInputs(true).scopes(
            {at::RecordScope::FUNCTION}));
  }
  ~Operations() {
    at::removeCallback(handle_);
    running() = nullptr;
  }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  const std::vector<std::string>& list() const { return list_; }

 private:
  static std::vector<std::string>*& running() {
    static thread_local std::vector<std::string>* list = nullptr;
    return list;
  }
  static std::unique_ptr<at::ObserverContext> note(
      const at::RecordFunction& function) {
    std::ostringstream line;
    line << function.name();
#ifdef NDEBUG  // else a check asks for what a release of LibTorch leaves out
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor() && input.toTensor().defined()) {
        line << " " << input.toTensor().sizes();
      } else if (input.isInt() || input.isDouble() || input.isIntList()) {
        line << " " << input;
      }
    }
#endif
    running()->push_back(line.str());
    return nullptr;
  }

  std::vector<std::string> list_{};
  at::CallbackHandle handle_{};
};

/// Graphs for the CPU while it lives.
class HostGraphs {
 public:
  explicit HostGraphs(ops::CaptureGraph capture = again) {
    ops::register_graphs(c10::kCPU, capture);
  }
  ~HostGraphs() { ops::register_graphs(c10::kCPU, nullptr); }
  HostGraphs(const HostGraphs&) = delete;
  HostGraphs& operator=(const HostGraphs&) = delete;

 private:
  class Again : public ops::DeviceGraph {
   public:
    explicit Again(std::function<void()> work) : work_(std::move(work)) {}
    void replay() override {
      const Operations operations;
      work_();
      if (first_.empty()) first_ = operations.list();
      EXPECT_FALSE(first_.empty());
      EXPECT_EQ(operations.list(), first_);
      for (const std::string& one : first_) {
        EXPECT_FALSE(one.starts_with("aten::_local_scalar_dense") ||
                     one.starts_with("aten::nonzero"))
            << "a recording cannot wait for " << one;
      }
    }

   private:
    std::function<void()> work_;
    std::vector<std::string> first_{};
  };
  static std::unique_ptr<ops::DeviceGraph> again(
      const c10::Device&, const std::function<void()>& work) {
    return std::make_unique<Again>(work);
  }
};

class RecordedSearchTest : public DeviceTest {
 protected:
  /// By graphs on the device; the model comes back to the CPU.
  Found recorded(Translator& model, const data::Sequences& source,
                 const BeamOptions& options, SearchCost* cost = nullptr) {
    std::optional<HostGraphs> graphs;
    if (device().is_cpu()) graphs.emplace();
    auto there = source;
    there.ids = source.ids.to(device());
    there.lengths = source.lengths.to(device());
    model.to(device());
    const auto found = beam_search(model, there, options, cost);
    EXPECT_TRUE(model.recorded && model.recorded->count() > 0);
    EXPECT_EQ(model.recorded->recorded(), model.recorded->count());
    model.to(at::kCPU);
    return found;
  }

  void expect_the_same(Translator& model, const data::Sequences& source,
                       const BeamOptions& options) {
    SearchCost plain, there;
    const auto wanted = beam_search(model, source, options, &plain);
    expect_found(recorded(model, source, options, &there), wanted);
    // A step too many before the host sees that all are done.
    EXPECT_LE(plain.steps, there.steps);
    EXPECT_LE(there.steps, plain.steps + 1);
  }
};

TEST_P(RecordedSearchTest, FindsWhatThePlainOneFinds) {
  // Short ones are done early, so that the others move to fewer rows; long
  // ones say more than there is room for at first.
  std::vector<int64_t> lengths(20, 1);
  for (int64_t i = 0; i < 7; ++i) lengths[3 * i] = 3 + i;
  const auto source = random_sequences(lengths, 4);
  const BeamOptions options{.beam = 4,
                            .length_penalty = 1.5,
                            .n_best = 3,
                            .max_ratio = 8,
                            .max_extra = 3};
  ASSERT_EQ(recorded_sentences(20, options.beam), 32);
  ASSERT_EQ(fewer_sentences(32, 7, options.beam), 8);
  int64_t most_shapes = 0;
  for (const auto& kind : translator_kinds()) {
    SCOPED_TRACE(::testing::PrintToString(kind));
    const auto model = make_translator(kind.config());
    expect_the_same(*model, source, options);
    most_shapes = std::max(most_shapes, model->recorded->count());
  }
  EXPECT_EQ(most_shapes, 3);
}

TEST_P(RecordedSearchTest, FindsItWhateverTheOptions) {
  const auto source = random_sequences({5, 2, 9, 1, 7}, 4);
  for (const char* attention : {"softmax", "nested", "universal"}) {
    for (const int64_t beam : {1, 3, 20}) {
      for (const int64_t n : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message()
                     << attention << ", beam " << beam << ", n-grams " << n);
        const auto model = make_translator(small_translator(attention, "post"));
        expect_the_same(*model, source,
                        {.beam = beam,
                         .no_repeat_ngram = n,
                         .max_ratio = 2,
                         .max_extra = 1});
      }
    }
  }
}

TEST_P(RecordedSearchTest, ReadsTheWeightsAsTheyAreNow) {
  const at::NoGradGuard no_grad;
  for (const char* attention : {"softmax", "nested", "universal"}) {
    SCOPED_TRACE(attention);
    const auto model = make_translator(small_translator(attention, "pre"));
    const auto source = random_sequences({5, 2, 9}, 4);
    const BeamOptions options{.beam = 2, .max_extra = 5};
    // On the device they change in place, as an optimizer changes them.
    std::optional<HostGraphs> graphs;
    if (device().is_cpu()) graphs.emplace();
    auto there = source;
    there.ids = source.ids.to(device());
    there.lengths = source.lengths.to(device());
    model->to(device());
    const auto before = beam_search(*model, there, options);
    const int64_t count = model->recorded->count();
    for (auto& p : model->parameters()) p.mul_(1.3).add_(0.01);
    const auto after = beam_search(*model, there, options);
    EXPECT_EQ(model->recorded->count(), count);
    graphs.reset();
    model->to(at::kCPU);
    expect_found(after, beam_search(*model, source, options));
    EXPECT_NE(before[0][0].score, after[0][0].score);
  }
}

TEST_P(RecordedSearchTest, OneRecordingServesManyBatches) {
  const auto model = make_translator(small_translator("softmax", "pre"));
  const BeamOptions options{.beam = 2, .max_extra = 5};
  std::optional<HostGraphs> graphs;
  if (device().is_cpu()) graphs.emplace();
  model->to(device());
  const auto search = [&](const std::vector<int64_t>& lengths,
                          const BeamOptions& how) {
    auto source = random_sequences(lengths, lengths.size());
    source.ids = source.ids.to(device());
    source.lengths = source.lengths.to(device());
    beam_search(*model, source, how);
    return model->recorded->count();
  };
  EXPECT_EQ(search({5, 2, 9}, options), 1);
  EXPECT_EQ(search({16}, options), 1);
  EXPECT_EQ(search({1, 2, 3, 4, 5, 6, 7, 8}, options), 1);
  EXPECT_EQ(search({17}, options), 2);
  BeamOptions other = options;
  other.length_penalty = 0.5;
  EXPECT_EQ(search({16}, other), 3);
  // Memory is bounded.
  for (int i = 0; i < 60; ++i) {
    other.length_penalty = 2 + i;
    EXPECT_LT(search({1}, other), 60);
  }
  // Other places of the weights: nothing that was recorded is true any more.
  model->to(at::kFloat);
  EXPECT_EQ(search({16}, options), 1);
}

LUNA_EVERY_DEVICE(RecordedSearchTest);

TEST(RecordedSearch, HasFewSizes) {
  EXPECT_EQ(recorded_sentences(1, 1), 16);
  EXPECT_EQ(recorded_sentences(17, 1), 32);
  EXPECT_EQ(recorded_sentences(1, 4), 4);
  EXPECT_EQ(recorded_sentences(64, 4), 64);
  EXPECT_EQ(recorded_sentences(1, 100), 1);
  EXPECT_EQ(recorded_source(3), 16);
  EXPECT_EQ(recorded_source(33), 64);
  EXPECT_EQ(fewer_sentences(256, 65, 1), 256);
  EXPECT_EQ(fewer_sentences(256, 64, 1), 64);
  EXPECT_EQ(fewer_sentences(256, 3, 1), 64);
  EXPECT_EQ(fewer_sentences(256, 3, 4), 16);
  EXPECT_EQ(fewer_sentences(1, 1, 100), 1);
}

TEST(RecordedSearch, GoesOnWhereNothingCanBeRecorded) {
  const auto model = make_translator(small_translator("nested", "pre"));
  const auto source = random_sequences({5, 2, 9}, 4);
  const auto wanted = beam_search(*model, source);
  const HostGraphs graphs(
      [](const c10::Device&,
         const std::function<void()>&) -> std::unique_ptr<ops::DeviceGraph> {
        TORCH_CHECK(false, "not recorded");
      });
  expect_found(beam_search(*model, source), wanted);
  EXPECT_GT(model->recorded->count(), 0);
  EXPECT_EQ(model->recorded->recorded(), 0);
}

}  // namespace
}  // namespace luna::models
