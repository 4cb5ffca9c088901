#include <luna/models/beam_search.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace luna::models {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

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

struct Beam {
  std::vector<int64_t> ids{};
  double score = 0;  ///< log-probability
  int64_t row = 0;   ///< of the decoder's state that has read ids
};

/// One sentence's search.
struct Search {
  int64_t longest = 0;
  std::vector<Beam> live{};
  std::vector<Hypothesis> finished{};
};

/// The most probable continuations, most probable first.
struct Candidates {
  at::Tensor scores, ids;  ///< [rows, some] on the CPU
};

Candidates best_tokens(const at::Tensor& logits, int64_t count) {
  const auto [scores, ids] = at::log_softmax(logits.to(at::kDouble), -1)
                                 .topk(std::min(count, logits.size(1)));
  return {scores.cpu(), ids.cpu()};
}

/// Whether `next` behind `ids` would end an n-gram that is there already.
bool repeats(const std::vector<int64_t>& ids, int64_t next, int64_t n) {
  const int64_t count = std::ssize(ids);
  if (n == 0 || count < n) return false;
  const auto last = ids.end() - (n - 1);
  for (auto at = ids.begin(); at + n <= ids.end(); ++at) {
    if (at[n - 1] == next && std::equal(last, ids.end(), at)) return true;
  }
  return false;
}

class Searcher {
 public:
  Searcher(Translator& model, const BeamOptions& options,
           const std::function<bool()>& stop)
      : model_(model), options_(options), stop_(stop) {}

  const SearchCost& cost() const { return cost_; }

  std::vector<std::vector<Hypothesis>> run(const data::Sequences& source) {
    const auto lengths = source.lengths.cpu();
    std::vector<Search> searches(source.ids.size(0));
    for (int64_t i = 0; i < std::ssize(searches); ++i) {
      const auto tokens = lengths[i].item<int64_t>();
      searches[i].longest = std::max<int64_t>(
          1, static_cast<int64_t>(options_.max_ratio *
                                  static_cast<double>(tokens)) +
                 options_.max_extra);
      searches[i].live.push_back({.row = i});
      sentences_.push_back(i);
    }
    device_ = source.ids.device();
    state_ = model_.start(source);
    std::vector<int64_t> tokens(searches.size(), options_.start);
    while (!tokens.empty()) {
      if (stop_ && stop_()) return {};
      const auto logits =
          model_.step(at::tensor(tokens, at::kLong).to(device_), state_);
      ++cost_.steps;
      cost_.state_bytes =
          std::max(cost_.state_bytes, state_.bytes() / std::ssize(tokens));
      advance(searches, logits);
      tokens = reorder(searches);
    }
    std::vector<std::vector<Hypothesis>> results;
    for (Search& search : searches) results.push_back(best(search));
    return results;
  }

 private:
  void advance(std::vector<Search>& searches, const at::Tensor& logits) {
    const auto ends = at::log_softmax(logits.to(at::kDouble), -1)
                          .select(1, options_.end)
                          .cpu();
    // Of those that the n-grams rule out there are at most as many as tokens.
    const int64_t spare = options_.no_repeat_ngram > 0 ? cost_.steps : 0;
    const Candidates best = best_tokens(logits, 2 * options_.beam + spare);
    const auto scores = best.scores.accessor<double, 2>();
    const auto ids = best.ids.accessor<int64_t, 2>();
    const auto end_scores = ends.accessor<double, 1>();
    for (Search& search : searches) {
      if (search.live.empty()) continue;
      if (std::ssize(search.live.front().ids) == search.longest) {
        for (const Beam& beam : search.live) {
          finish(search, beam, beam.score + end_scores[beam.row]);
        }
        search.live.clear();
        continue;
      }
      struct Next {
        const Beam* beam;
        double score;
        int64_t id;
      };
      std::vector<Next> next;
      for (const Beam& beam : search.live) {
        for (int64_t i = 0; i < scores.size(1); ++i) {
          if (repeats(beam.ids, ids[beam.row][i], options_.no_repeat_ngram)) {
            continue;
          }
          next.push_back(
              {&beam, beam.score + scores[beam.row][i], ids[beam.row][i]});
        }
      }
      std::ranges::stable_sort(next, std::greater{}, &Next::score);
      std::vector<Beam> live;
      for (size_t i = 0; i < next.size(); ++i) {
        if (std::ssize(live) == options_.beam || next[i].score == kNever) break;
        const auto& [beam, score, id] = next[i];
        if (id == options_.end) {
          // An end counts only if it is among the best.
          if (std::cmp_less(i, options_.beam)) finish(search, *beam, score);
          continue;
        }
        live.push_back({beam->ids, score, beam->row});
        live.back().ids.push_back(id);
      }
      search.live = std::move(live);
      if (is_done(search)) search.live.clear();
    }
  }

  /// Greedy search ends with its first end; a wider one when as many as the
  /// beam have ended, all with better scores than the best that is still going
  /// has as it stands: early ends of bad beams must not end the others.
  bool is_done(const Search& search) const {
    const int64_t beam = options_.beam;
    if (std::ssize(search.finished) < beam || search.live.empty()) return false;
    if (beam == 1) return true;
    std::vector<double> scores;
    for (const Hypothesis& h : search.finished) scores.push_back(h.score);
    std::ranges::nth_element(scores, scores.begin() + beam - 1, std::greater{});
    const Beam& best = search.live.front();
    return normalized(best, best.score) <= scores[beam - 1];
  }

  double normalized(const Beam& beam, double score) const {
    const auto tokens = static_cast<double>(beam.ids.size() + 1);
    return score / std::pow(tokens, options_.length_penalty);
  }

  void finish(Search& search, const Beam& beam, double score) {
    search.finished.push_back({beam.ids, normalized(beam, score)});
  }

  /// Puts the live rows of the state in the order of the beams; their tokens.
  std::vector<int64_t> reorder(std::vector<Search>& searches) {
    std::vector<int64_t> rows, tokens, sentences;
    for (Search& search : searches) {
      for (Beam& beam : search.live) {
        rows.push_back(beam.row);
        sentences.push_back(&search - searches.data());
        beam.row = std::ssize(rows) - 1;
        tokens.push_back(beam.ids.back());
      }
    }
    std::vector<int64_t> as_they_are(sentences_.size());
    std::iota(as_they_are.begin(), as_they_are.end(), int64_t{0});
    if (!rows.empty() && rows != as_they_are) {
      state_.reorder(at::tensor(rows, at::kLong).to(device_),
                     /*same_source=*/sentences == sentences_);
    }
    sentences_ = std::move(sentences);
    return tokens;
  }

  std::vector<Hypothesis> best(Search& search) const {
    std::ranges::stable_sort(search.finished, std::greater{},
                             &Hypothesis::score);
    if (std::ssize(search.finished) > options_.n_best) {
      search.finished.resize(options_.n_best);
    }
    return std::move(search.finished);
  }

  Translator& model_;
  BeamOptions options_;
  std::function<bool()> stop_;
  DecoderState state_{};
  SearchCost cost_{};
  std::vector<int64_t> sentences_{};  ///< of the state's rows
  c10::Device device_{at::kCPU};
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
