#pragma once

#include <luna/data/splits.h>

#include <string>
#include <vector>

namespace luna::data {

struct Review {
  int64_t label = 0;    ///< 0: negative, 1: positive
  std::string movie{};  ///< tt0064354
  std::string text{};   ///< bytes as they are in the file
};

struct Imdb {
  std::vector<Review> train{}, test{};
  std::string source{};
};

/// Reads the folder aclImdb or the tab-separated form: negative reviews
/// first, each by their number, so that both forms give the same order.
/// `movies`: their ids are needed (in aclImdb they are files of their own).
Imdb read_imdb(const std::string& task, const std::string& folder, bool movies,
               const LoadProgress& progress);

/// How a user gets the files.
std::string how_to_get_imdb();

}  // namespace luna::data
