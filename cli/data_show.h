#pragma once

#include <cstdint>
#include <string>

namespace luna::cli {

struct ShowOptions {
  int64_t index = 0;
  int64_t count = -1;  ///< -1: one, or a sheet's worth
  bool full = false;   ///< long texts to their end
  bool json = false;
  std::string png{};  ///< write a contact sheet there instead
};

/// Prints samples of a packed file: text as text, ListOps as symbols,
/// pictures as half blocks on a terminal and as letters elsewhere.
void show_samples(const std::string& path, const ShowOptions& options);

}  // namespace luna::cli
