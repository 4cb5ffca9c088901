#include <luna/models/beam_search.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <span>

#include "models/beams.h"
#include "models/recorded_search.h"
#include "ops/device_graph.h"

namespace luna::models {
namespace {

void check(const BeamOptions& options) {
  TORCH_CHECK_VALUE(options.beam >= 1,
                    "beam_search: beam: expected at least 1, got ",
                    options.beam);
  TORCH_CHECK_VALUE(options.n_best >= 1 && options.n_best <= options.beam,
                    "beam_search: n_best: expected 1 to the beam, ",
                    options.beam, ", got ", options.n_best);
  TORCH_CHECK_VALUE(
      options.max_ratio >= 0 && options.max_extra >= 0 &&
          options.max_ratio + static_cast<double>(options.max_extra) > 0,
      "beam_search: max_ratio and max_extra: expected room for a "
      "token, got ",
      options.max_ratio, " and ", options.max_extra);
}

/// As data::Sequences, with this many sentences of this many tokens; those
/// that are added have one.
data::Sequences padded(const data::Sequences& source, int64_t sentences,
                       int64_t tokens) {
  const auto& ids = source.ids;
  return {.ids = at::constant_pad_nd(
              ids, {0, tokens - ids.size(1), 0, sentences - ids.size(0)}, 0),
          .lengths = at::constant_pad_nd(source.lengths,
                                         {0, sentences - ids.size(0)}, 1)};
}

class Searcher {
 public:
  Searcher(Translator& model, const BeamOptions& options,
           const std::function<bool()>& stop)
      : model_(model), options_(options), stop_(stop) {}

  const SearchCost& cost() const { return cost_; }

  std::vector<std::vector<Hypothesis>> run(const data::Sequences& source) {
    const auto lengths = source.lengths.cpu().to(at::kDouble);
    std::vector<int64_t> longest;
    for (int64_t i = 0; i < lengths.numel(); ++i) {
      const double tokens = lengths[i].item<double>();
      longest.push_back(std::max<int64_t>(
          1, static_cast<int64_t>(options_.max_ratio * tokens) +
                 options_.max_extra));
    }
    results_.resize(longest.size());
    const c10::Device device = source.ids.device();
    if (!device.is_cpu() && !ops::has_graphs(device)) {
      TORCH_WARN_ONCE(
          "beam_search: steps are not recorded as CUDA graphs, which makes "
          "them slower: luna's library for this device is not loaded");
    }
    const bool done = ops::has_graphs(device) ? run_recorded(source, longest)
                                              : run_plain(source, longest);
    return done ? std::move(results_) : std::vector<std::vector<Hypothesis>>{};
  }

 private:
  bool stop() const { return stop_ && stop_(); }

  void count_step(int64_t row_bytes) {
    ++cost_.steps;
    cost_.state_bytes = std::max(cost_.state_bytes, row_bytes);
  }

  /// Piece by piece; sentences leave as soon as they are done. False: stopped.
  bool run_plain(const data::Sequences& source,
                 std::span<const int64_t> longest) {
    DecoderState state = model_.start(source);
    Beams beams = Beams::start(longest, std::ssize(longest), /*width=*/1,
                               kFirstRoom, options_, source.ids.device());
    while (!stop()) {
      if (cost_.steps == beams.room()) {
        beams = beams.with_room(2 * beams.room());
      }
      const auto logits = model_.step(beams.last.flatten(), state);
      count_step(state.bytes() / logits.size(0));
      const bool fits = beams.width() == options_.beam;
      auto rows = beams.advance(logits, options_);
      const bool all_live = beams.live() == beams.sentences();
      if (!all_live) {
        beams.collect(options_.n_best, results_);
        const auto live = beams.done.logical_not().nonzero().squeeze(1);
        if (live.numel() == 0) return true;
        rows =
            rows.view({beams.sentences(), -1}).index_select(0, live).flatten();
        beams = beams.some(live);
      }
      const bool same_source = fits && all_live;
      if (options_.beam > 1 || !same_source) state.reorder(rows, same_source);
    }
    return false;
  }

  /// By recorded steps, in sizes that repeat; now and then the host asks how
  /// many sentences are not done. False: stopped.
  bool run_recorded(const data::Sequences& source,
                    std::span<const int64_t> longest) {
    // To ask takes a small part of a step, and to ask late takes whole ones.
    constexpr int64_t kStepsBetweenReads = 2;
    const int64_t most = std::ranges::max(longest) + 1;
    auto search = start_recorded(source, longest);
    while (!stop()) {
      search->step();
      count_step(search->row_bytes(cost_.steps + 1));
      const bool is_last = cost_.steps == most;
      const bool is_full = cost_.steps == search->beams().room();
      if (!is_last && !is_full && cost_.steps % kStepsBetweenReads != 0) {
        continue;
      }
      const int64_t live = is_last ? 0 : search->beams().live();
      if (live == 0) {
        search->beams().collect(options_.n_best, results_);
        return true;
      }
      search = moved(search, live, is_full);
    }
    return false;
  }

  std::shared_ptr<RecordedSearch> start_recorded(
      const data::Sequences& source, std::span<const int64_t> longest) {
    const int64_t beam = options_.beam,
                  sentences = recorded_sentences(std::ssize(longest), beam);
    const DecoderState state = model_.start(
        padded(source, sentences, recorded_source(source.ids.size(1))));
    const auto search = RecordedSearches::of(model_).find(state, sentences,
                                                          kFirstRoom, options_);
    const auto row = at::arange(sentences, source.ids.options());
    search->load(state,
                 Beams::start(longest, sentences, beam, kFirstRoom, options_,
                              row.device()),
                 row.unsqueeze(1).expand({sentences, beam}).flatten());
    return search;
  }

  /// The search itself; or, where it has no room for a token more, or holds too
  /// few sentences that are not done, one that goes on in its place.
  std::shared_ptr<RecordedSearch> moved(
      const std::shared_ptr<RecordedSearch>& search, int64_t live,
      bool is_full) {
    const Beams& beams = search->beams();
    const int64_t beam = options_.beam;
    const int64_t sentences = fewer_sentences(beams.sentences(), live, beam);
    if (sentences == beams.sentences() && !is_full) return search;
    beams.collect(options_.n_best, results_);
    const auto next = RecordedSearches::of(model_).find(
        search->state(), sentences, is_full ? 2 * beams.room() : beams.room(),
        options_);
    const auto place =
        beams.done.to(at::kInt)
            .argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false)
            .narrow(0, 0, sentences);
    const auto first_row = place.unsqueeze(1) * beam;
    next->load(search->state(), beams.some(place),
               (first_row + at::arange(beam, place.options())).flatten());
    return next;
  }

  Translator& model_;
  BeamOptions options_;
  std::function<bool()> stop_;
  SearchCost cost_{};
  std::vector<std::vector<Hypothesis>> results_{};
};

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(
    Translator& model, const data::Sequences& source,
    const BeamOptions& options, SearchCost* cost,
    const std::function<bool()>& stop) {
  check(options);
  const at::NoGradGuard no_grad;
  model.eval();
  Searcher searcher(model, options, stop);
  auto found = searcher.run(source);
  if (cost != nullptr) *cost = searcher.cost();
  return found;
}

}  // namespace luna::models
