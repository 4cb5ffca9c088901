#include "data/imdb.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <luna/io/text_file.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "data/source_files.h"

namespace luna::data {
namespace {

namespace fs = std::filesystem;

/// The number in front of a name such as 127_8.txt, or -1.
int64_t number_of(const fs::path& file) {
  const std::string name = file.filename().string();
  int64_t number = -1;
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end == name.data() || *end != '_' ||
      !name.ends_with(".txt")) {
    return -1;
  }
  return number;
}

/// Movie ids by review number: a line of urls_pos.txt has one.
std::vector<std::string> read_movies(const std::string& path) {
  std::vector<std::string> movies;
  read_tsv(path, read_source(path), 1, [&](const TsvLine& line) {
    const std::string_view url = line.columns[0];
    const size_t from = url.find("/title/");
    TORCH_CHECK_VALUE(from != std::string_view::npos, line.where,
                      ": expected an address with /title/, got \"",
                      url.substr(0, 60), "\"");
    const std::string_view rest = url.substr(from + 7);
    movies.emplace_back(rest.substr(0, rest.find('/')));
  });
  return movies;
}

void read_label_folder(const fs::path& folder, int64_t label, bool movies,
                       std::vector<Review>& reviews,
                       const std::function<void(size_t)>& progress) {
  const std::string name = label == 1 ? "pos" : "neg";
  const fs::path place = folder / name;
  TORCH_CHECK_VALUE(fs::is_directory(place), place.string(),
                    ": expected a folder of reviews, got none");
  std::vector<std::pair<int64_t, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(place)) {
    const int64_t number = number_of(entry.path());
    if (number >= 0) files.emplace_back(number, entry.path());
  }
  TORCH_CHECK_VALUE(!files.empty(), place.string(),
                    ": expected reviews named like 127_8.txt, got none");
  std::sort(files.begin(), files.end());
  std::vector<std::string> ids;
  const std::string urls = (folder / ("urls_" + name + ".txt")).string();
  if (movies) ids = read_movies(urls);
  for (const auto& [number, file] : files) {
    TORCH_CHECK_VALUE(!movies || number < std::ssize(ids), urls, ": expected ",
                      number + 1, " lines for ", file.string(), ", got ",
                      ids.size());
    reviews.push_back({.label = label,
                       .movie = movies ? ids[number] : "",
                       .text = io::read_text(file.string())});
    if (reviews.size() % 512 == 0) progress(reviews.size());
  }
}

std::vector<Review> read_folder(const fs::path& folder, bool movies,
                                const std::function<void(size_t)>& progress) {
  std::vector<Review> reviews;
  for (const int64_t label : {0, 1}) {
    read_label_folder(folder, label, movies, reviews, progress);
  }
  return reviews;
}

std::vector<Review> read_file(const std::string& path) {
  std::vector<Review> reviews;
  read_tsv(path, read_source(path), 5, [&](const TsvLine& line) {
    const auto& c = line.columns;  // label, number, rating, movie, text
    reviews.push_back({.label = parse_label(line.where, c[0], 2),
                       .movie = std::string(c[3]),
                       .text = std::string(c[4])});
  });
  // As read_folder has them.
  std::stable_sort(
      reviews.begin(), reviews.end(),
      [](const Review& a, const Review& b) { return a.label < b.label; });
  return reviews;
}

}  // namespace

std::string how_to_get_imdb() {
  return "get aclImdb_v1.tar.gz from "
         "https://ai.stanford.edu/~amaas/data/sentiment/, unpack it, and give "
         "its folder";
}

Imdb read_imdb(const std::string& task, const std::string& folder, bool movies,
               const LoadProgress& progress) {
  const std::vector<std::string> places = {"", "imdb"};
  const FoundSource found = find_source(
      task, folder,
      {{"the unpacked aclImdb", "train/pos", {"", "aclImdb", "imdb/aclImdb"}},
       {"tab-separated: label, number, rating, movie, text",
        "imdb_train.tsv.xz", places},
       {"the same, not compressed", "imdb_train.tsv", places}},
      how_to_get_imdb());
  const fs::path place = found.folder;
  constexpr double kReviews = 50000;
  Imdb imdb;
  if (found.form == 0) {
    const auto from = [&](size_t before) {
      return [&progress, before](size_t count) {
        if (!progress) return;
        const auto done = static_cast<double>(before + count);
        progress(std::min(1.0, done / kReviews), "reading reviews");
      };
    };
    imdb.source = "IMDB reviews (aclImdb)";
    imdb.train = read_folder(place / "train", movies, from(0));
    imdb.test = read_folder(place / "test", movies, from(imdb.train.size()));
  } else {
    const std::string ending = found.form == 1 ? ".tsv.xz" : ".tsv";
    imdb.source = "IMDB reviews (tsv)";
    if (progress) progress(0.0, "reading reviews");
    imdb.train = read_file((place / ("imdb_train" + ending)).string());
    if (progress) progress(0.5, "reading reviews");
    imdb.test = read_file((place / ("imdb_test" + ending)).string());
  }
  if (progress) progress(1.0, "reading reviews");
  return imdb;
}

}  // namespace luna::data
