#include "models/beams.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace luna::models {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// x [S,n,...] -> [S,k,...]: of each sentence those at places [S,k].
at::Tensor pick(const at::Tensor& x, const at::Tensor& places) {
  if (x.dim() == 2) return x.gather(1, places);
  return x.gather(1, places.unsqueeze(-1).expand(
                         {places.size(0), places.size(1), x.size(2)}));
}

/// x [S,n] -> [S,columns], where there were fewer.
at::Tensor padded(const at::Tensor& x, int64_t columns, const at::Scalar& by) {
  if (x.size(1) >= columns) return x;
  return at::constant_pad_nd(x, {0, columns - x.size(1)}, by);
}

/// The `count` largest of each row and their places; the first of equal ones
/// stays first.
std::pair<at::Tensor, at::Tensor> largest(const at::Tensor& x, int64_t count) {
  const auto [values, places] =
      x.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  return {values.narrow(1, 0, count), places.narrow(1, 0, count)};
}

/// Which words would end an n-gram that is there already: bool [rows, words]
/// of ids [rows, room], of which the first `said` are real.
at::Tensor repeating(const at::Tensor& ids, const at::Tensor& said, int64_t n,
                     int64_t words) {
  const auto grams = ids.unfold(1, n, 1);
  const auto before = said - (n - 1) + at::arange(n - 1, said.options());
  const auto last = ids.index_select(1, before.clamp_min(0)).unsqueeze(1);
  const auto real = (at::arange(grams.size(1), said.options()) + n).le(said);
  const auto same = grams.narrow(2, 0, n - 1).eq(last).all(2).logical_and(real);
  // One word more, for those that rule out none.
  const auto ruled_out =
      grams.select(2, n - 1).masked_fill(same.logical_not(), words);
  return at::zeros({ids.size(0), words + 1}, ids.options().dtype(at::kBool))
      .scatter_(1, ruled_out, true)
      .narrow(1, 0, words);
}

/// What a score is divided by whose sentence has so many tokens: [1].
at::Tensor divisor(const at::Tensor& tokens, const BeamOptions& options) {
  return tokens.to(at::kDouble).pow(options.length_penalty);
}

}  // namespace

Beams Beams::start(std::span<const int64_t> longest, int64_t sentences,
                   int64_t width, int64_t room, const BeamOptions& options,
                   const c10::Device& device) {
  const int64_t real = std::ssize(longest), beam = options.beam;
  const auto integers = at::TensorOptions().dtype(at::kLong);
  const auto numbers = at::arange(sentences, integers);
  const auto filler = numbers.ge(real);
  const auto limits = at::ones({sentences}, integers);
  limits.narrow(0, 0, real)
      .copy_(
          at::tensor(at::ArrayRef(longest.data(), longest.size()), integers));
  const auto there = integers.device(device);
  const auto exact = there.dtype(at::kDouble);
  Beams beams{
      .sentence = numbers.masked_fill(filler, -1).to(device),
      .longest = limits.to(device),
      .done = filler.to(device),
      .said = at::zeros({1}, there),
      .scores = at::full({sentences, width}, kNever, exact),
      .ids = at::zeros({sentences, width, room}, there),
      .last = at::full({sentences, width}, options.start, there),
      .ended_scores = at::full({sentences, beam}, kNever, exact),
      .ended_lengths = at::full({sentences, beam}, -1, there),
      .ended_ids = at::zeros({sentences, beam, room}, there),
  };
  beams.scores.select(1, 0).zero_();
  return beams;
}

int64_t Beams::live() const { return done.logical_not().sum().item<int64_t>(); }

at::Tensor Beams::advance(const at::Tensor& logits,
                          const BeamOptions& options) {
  const int64_t beam = options.beam, words = logits.size(1);
  const auto by_beam = [&](const at::Tensor& x) {
    return x.view({sentences(), width(), -1});
  };
  auto score = at::log_softmax(logits.to(at::kDouble), -1);
  const auto end_scores =
      scores + by_beam(score.select(1, options.end)).squeeze(-1);
  auto allowed = logits;
  if (const int64_t n = options.no_repeat_ngram; n > 0 && n <= room()) {
    const auto out = repeating(ids.flatten(0, 1), said, n, words);
    allowed = logits.masked_fill(out, kNever);
    score.masked_fill_(out, kNever);
  }

  // The best of each beam, then of each sentence. Twice as many as beams: an
  // end for each of them at most, and as many that go on.
  const int64_t most = 2 * beam, each = std::min(most, words);
  const auto best = std::get<1>(allowed.topk(each));
  const auto sums =
      (scores.unsqueeze(-1) + by_beam(score.gather(1, best))).flatten(1);
  const auto [found, places] = largest(padded(sums, most, kNever), most);
  const auto parent = places.div(each, "floor").clamp_max(width() - 1);
  const auto word = pick(padded(best.view({sentences(), -1}), most, 0), places);
  const auto is_end = word.eq(options.end);

  // Ends count among the best alone. Who may say no more ends as it is.
  const auto over = said.eq(longest).unsqueeze(1);
  const auto ends = found.masked_fill(is_end.logical_not(), kNever);
  const auto own = at::arange(beam, said.options()).clamp_max(width() - 1);
  const auto ended =
      at::where(over, padded(end_scores, beam, kNever), ends.narrow(1, 0, beam))
          .masked_fill(done.unsqueeze(1), kNever);
  const auto ended_parent = at::where(over, own, parent.narrow(1, 0, beam));
  const auto lengths = said.expand_as(ended).masked_fill(ended.eq(kNever), -1);
  const auto [ended_best, kept] = largest(
      at::cat({ended_scores, ended / divisor(said + 1, options)}, 1), beam);
  ended_scores = ended_best;
  ended_lengths = pick(at::cat({ended_lengths, lengths}, 1), kept);
  ended_ids = pick(at::cat({ended_ids, pick(ids, ended_parent)}, 1), kept);

  const auto [next_scores, next] =
      largest(found.masked_fill(is_end, kNever), beam);
  const auto next_parent = pick(parent, next);
  const auto first_row =
      at::arange(sentences(), said.options()).unsqueeze(1) * width();
  scores = next_scores;
  last = pick(word, next);
  ids = pick(ids, next_parent).index_copy(2, said, last.unsqueeze(-1));

  // Greedy search ends with its first end; a wider one when as many as the
  // beam have ended, all with better scores than the best that is still going
  // has as it stands: early ends of bad beams must not end the others.
  const auto front = scores.select(1, 0);
  auto enough = ended_lengths.select(1, beam - 1).ge(0);
  if (beam > 1) {
    enough = enough.logical_and((front / divisor(said + 2, options))
                                    .le(ended_scores.select(1, beam - 1)));
  }
  done = done.logical_or(over.squeeze(1))
             .logical_or(enough)
             .logical_or(front.eq(kNever));
  said = said + 1;
  return (first_row + next_parent).flatten();
}

std::vector<at::Tensor*> Beams::rows() {
  return {&sentence, &longest,      &done,          &scores,   &ids,
          &last,     &ended_scores, &ended_lengths, &ended_ids};
}

Beams Beams::some(const at::Tensor& places) const {
  Beams taken = *this;
  for (at::Tensor* tensor : taken.rows()) {
    *tensor = tensor->index_select(0, places);
  }
  return taken;
}

Beams Beams::with_room(int64_t room) const {
  Beams wider = *this;
  for (at::Tensor* tensor : {&wider.ids, &wider.ended_ids}) {
    *tensor = at::constant_pad_nd(*tensor, {0, room - tensor->size(2)}, 0);
  }
  return wider;
}

void Beams::copy(const Beams& from) const {
  Beams to = *this, other = from;
  const auto written = to.rows(), read = other.rows();
  for (size_t i = 0; i < written.size(); ++i) written[i]->copy_(*read[i]);
  said.copy_(from.said);
}

void Beams::collect(int64_t n_best,
                    std::vector<std::vector<Hypothesis>>& results) const {
  const auto finished = done.cpu(), numbers = sentence.cpu(),
             lengths = ended_lengths.cpu(), found = ended_scores.cpu(),
             tokens = ended_ids.cpu().contiguous();
  const auto length = lengths.accessor<int64_t, 2>();
  const auto score = found.accessor<double, 2>();
  const auto number = numbers.accessor<int64_t, 1>();
  const auto is_done = finished.accessor<bool, 1>();
  for (int64_t i = 0; i < sentences(); ++i) {
    if (!is_done[i] || number[i] < 0) continue;
    std::vector<Hypothesis>& result = results[number[i]];
    result.clear();
    for (int64_t n = 0; n < n_best && length[i][n] >= 0; ++n) {
      const int64_t* const said_ids = tokens[i][n].const_data_ptr<int64_t>();
      result.push_back({{said_ids, said_ids + length[i][n]}, score[i][n]});
    }
  }
}

}  // namespace luna::models
