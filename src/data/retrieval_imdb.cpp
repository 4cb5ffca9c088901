#include <c10/util/Exception.h>
#include <luna/data/memory_dataset.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "data/imdb.h"
#include "data/loaders.h"
#include "data/order.h"
#include "data/random.h"
#include "data/subsets.h"

// Which pairs of reviews are of the same movie? Every review that has a
// sibling is first of one positive pair, with a sibling drawn at random. The
// negative pairs are the same firsts and the same seconds, shuffled among
// pairs of the same two ratings until the movies differ. So neither text
// alone nor whether both praise tells the label.

namespace luna::data {
namespace {

using Reviews = std::vector<const Review*>;
using Pair = std::pair<const Review*, const Review*>;

constexpr uint64_t kPairSeed = 2021;

/// Reviews whose text is not among `seen`, which they join: a text that is
/// there twice would make a pair of itself, or be in two splits.
Reviews distinct(const std::vector<Review>& reviews,
                 std::set<std::string_view>& seen) {
  Reviews out;
  for (const Review& review : reviews) {
    if (seen.insert(review.text).second) out.push_back(&review);
  }
  return out;
}

/// Swaps seconds at random within `group` until no pair has one movie; pairs
/// for which that cannot be are taken out.
void shuffle_seconds(std::vector<Pair>& group, uint64_t stream) {
  const auto size = std::ssize(group);
  const auto bad = [](const Pair& a, const Pair& b) {
    return a.first->movie == b.second->movie;
  };
  const std::vector<int64_t> order = permutation(size, kPairSeed, stream);
  std::vector<Pair> mixed = group;
  for (int64_t i = 0; i < size; ++i) {
    mixed[i].second = group[order[i]].second;
  }
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t step = 1; step < size && bad(mixed[i], mixed[i]); ++step) {
      Pair& other = mixed[(i + step) % size];
      if (!bad(mixed[i], other) && !bad(other, mixed[i])) {
        std::swap(mixed[i].second, other.second);
      }
    }
  }
  std::erase_if(mixed, [&](const Pair& p) { return bad(p, p); });
  group = std::move(mixed);
}

/// Positive pairs, then negative ones: as many of each.
std::shared_ptr<Dataset> make_pairs(const Reviews& reviews, uint64_t stream,
                                    const TaskInfo& info, int64_t max_length) {
  std::map<std::string_view, Reviews> by_movie;
  for (const Review* review : reviews) {
    by_movie[review->movie].push_back(review);
  }
  std::vector<Pair> positive;
  Random random(kPairSeed, stream << 32);
  for (const auto& [movie, siblings] : by_movie) {
    const auto count = std::ssize(siblings);
    if (count < 2) continue;
    for (int64_t i = 0; i < count; ++i) {
      // Any but itself.
      const int64_t step = random.between(1, count - 1);
      positive.emplace_back(siblings[i], siblings[(i + step) % count]);
    }
  }
  std::array<std::vector<Pair>, 4> groups;
  for (const Pair& p : positive) {
    groups[2 * p.first->label + p.second->label].push_back(p);
  }
  std::vector<Pair> negative;
  uint64_t shuffle = stream << 32;
  for (auto& group : groups) {
    shuffle_seconds(group, ++shuffle);
    negative.insert(negative.end(), group.begin(), group.end());
  }
  // Small sets may have lost some.
  positive.resize(std::min(positive.size(), negative.size()));

  auto data = std::make_shared<MemoryDataset>(info);
  for (const int64_t label : {1, 0}) {
    for (const auto& [a, b] : label == 1 ? positive : negative) {
      data->add({.ids = text_ids(a->text, max_length),
                 .second = text_ids(b->text, max_length),
                 .label = label});
    }
  }
  return data;
}

/// Keeps the reviews of some movies out of the rest: whole movies, so that no
/// review and no movie is on both sides.
std::pair<Reviews, Reviews> split_by_movie(const Reviews& reviews,
                                           double share) {
  std::set<std::string_view> movies;
  for (const Review* review : reviews) movies.insert(review->movie);
  const std::vector<std::string_view> names(movies.begin(), movies.end());
  std::set<std::string_view> held;
  const auto indices = hold_out(std::ssize(names), share).second;
  for (const int64_t index : indices) held.insert(names[index]);
  std::pair<Reviews, Reviews> parts;
  for (const Review* review : reviews) {
    (held.count(review->movie) > 0 ? parts.second : parts.first)
        .push_back(review);
  }
  return parts;
}

}  // namespace

Splits load_retrieval_imdb(const Task& task, const LoadOptions& options) {
  const Imdb imdb =
      read_imdb(task.name, options.folder, /*movies=*/true, options.progress);
  std::set<std::string_view> seen;
  const Reviews test = distinct(imdb.test, seen);
  const auto [train, validation] =
      split_by_movie(distinct(imdb.train, seen), 2000.0 / 25000);
  const int64_t length = kept_length(task, options);
  Splits splits{.train = make_pairs(train, 1, task.info, length),
                .validation = make_pairs(validation, 2, task.info, length),
                .test = make_pairs(test, 3, task.info, length),
                .source = imdb.source + ", paired by movie"};
  for (const auto& split : splits.all()) {
    TORCH_CHECK_VALUE(split->size() > 0, task.name,
                      ": expected movies with several reviews in every split, "
                      "got none in one of them");
  }
  return splits;
}

}  // namespace luna::data
