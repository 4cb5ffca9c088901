#include "models/recorded_search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "nn/decoding.h"

namespace luna::models {
namespace {

// Of the tensors that recordings keep when they are not in use.
constexpr int64_t kMostSearches = 48;
constexpr int64_t kMostBytes = int64_t{2} << 30;

/// The next one, from 1.
int64_t power_of_two(int64_t least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
}

/// Where the weights of a model are.
std::vector<const void*> places_of(const Translator& model) {
  std::vector<const void*> places;
  for (const auto& tensors : {model.parameters(), model.buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      places.push_back(tensor.const_data_ptr());
    }
  }
  return places;
}

/// What a recording depends on; two of equal keys do the same work.
std::vector<double> key_of(const DecoderState& state, int64_t sentences,
                           int64_t room, const BeamOptions& options) {
  std::vector<double> key{options.length_penalty};
  const auto add = [&](int64_t number) {
    key.push_back(static_cast<double>(number));
  };
  for (const int64_t number :
       {sentences, room, options.beam, options.no_repeat_ngram, options.end}) {
    add(number);
  }
  const auto add_row = [&](const at::Tensor& tensor) {
    add(static_cast<int64_t>(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes().slice(1)) add(size);
  };
  for (const DecoderLayerState& layer : state.layers) {
    for (const at::Tensor& tensor : layer.stream.tensors) add_row(tensor);
    for (const at::Tensor* tensor : layer.source->rows()) add_row(*tensor);
  }
  return key;
}

}  // namespace

int64_t recorded_sentences(int64_t sentences, int64_t beam) {
  constexpr int64_t kLeastRows = 16;
  return power_of_two(std::max(sentences, kLeastRows / beam));
}

int64_t recorded_source(int64_t tokens) {
  constexpr int64_t kLeast = 16;
  return power_of_two(std::max(tokens, kLeast));
}

int64_t fewer_sentences(int64_t sentences, int64_t live, int64_t beam) {
  constexpr int64_t kRows = 64;
  while (sentences * beam > kRows && live <= sentences / 4) sentences /= 4;
  return sentences;
}

RecordedSearch::RecordedSearch(Translator& model, const DecoderState& state,
                               int64_t sentences, int64_t room,
                               const BeamOptions& options)
    : model_(model),
      options_(options),
      state_(state.fixed(sentences * options.beam, room)),
      beams_(Beams::start({}, sentences, options.beam, room, options,
                          state_.place.device())) {
  bytes_ =
      row_bytes(room) * sentences * options.beam +
      static_cast<int64_t>(beams_.ids.nbytes() + beams_.ended_ids.nbytes());
  for (const DecoderLayerState& layer : state_.layers) {
    bytes_ += static_cast<int64_t>(layer.own->weight.nbytes());
  }
}

void RecordedSearch::load(const DecoderState& state, const Beams& beams,
                          const at::Tensor& rows) {
  state_.take(state, rows);
  beams_.copy(beams.room() == beams_.room() ? beams
                                            : beams.with_room(beams_.room()));
}

void RecordedSearch::compute() {
  Beams next = beams_;
  const auto rows =
      next.advance(model_.step(beams_.last.flatten(), state_), options_);
  beams_.copy(next);
  if (options_.beam > 1) state_.take(state_, rows, /*same_source=*/true);
}

void RecordedSearch::step() {
  if (graph_) return graph_->replay();
  compute();
  if (tried_) return;
  tried_ = true;
  try {
    graph_ = ops::capture_graph(beams_.said.device(), [this] { compute(); });
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE(
        "beam_search: steps are not recorded as CUDA graphs, which makes them "
        "slower: ",
        error.what_without_backtrace());
  }
}

int64_t RecordedSearch::row_bytes(int64_t tokens) {
  for (DecoderLayerState& layer : state_.layers) {
    if (layer.cache) layer.cache->length = tokens;
  }
  return state_.bytes() / beams_.last.numel();
}

RecordedSearches::RecordedSearches(Translator& model)
    : model_(model), weights_(places_of(model)) {}

RecordedSearches& RecordedSearches::of(Translator& model) {
  auto& own = model.recorded;
  if (!own || &own->model_ != &model || own->weights_ != places_of(model)) {
    own.reset(new RecordedSearches(model));
  }
  return *own;
}

std::shared_ptr<RecordedSearch> RecordedSearches::find(
    const DecoderState& state, int64_t sentences, int64_t room,
    const BeamOptions& options) {
  auto key = key_of(state, sentences, room, options);
  const auto found = std::ranges::find(searches_, key, &Entry::key);
  if (found != searches_.end()) {
    std::rotate(found, found + 1, searches_.end());
    return searches_.back().search;
  }
  auto made =
      std::make_shared<RecordedSearch>(model_, state, sentences, room, options);
  int64_t bytes = made->bytes();
  for (const Entry& entry : searches_) bytes += entry.search->bytes();
  while (!searches_.empty() &&
         (bytes > kMostBytes || std::ssize(searches_) >= kMostSearches)) {
    bytes -= searches_.front().search->bytes();
    searches_.erase(searches_.begin());
  }
  searches_.push_back({std::move(key), made});
  return made;
}

int64_t RecordedSearches::recorded() const {
  return std::ranges::count_if(
      searches_, [](const Entry& e) { return e.search->is_recorded(); });
}

}  // namespace luna::models
