#pragma once

#include <luna/bench/memory.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/errors.h"

namespace luna::testing {

/// `read` refuses the files in `folder` by a ValueError or a TypeError with
/// these parts in its message, soon, and without more memory than they and 64
/// MiB.
inline void expect_refused(const std::filesystem::path& folder,
                           const std::function<void()>& read,
                           const std::vector<std::string>& parts) {
  int64_t allowed = int64_t{64} << 20;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      allowed += static_cast<int64_t>(entry.file_size());
    }
  }
  const auto start = std::chrono::steady_clock::now();
  const bench::ResidentMeter meter;
  const auto refusal = [&] {
    try {
      read();
    } catch (const c10::TypeError&) {
      throw;
    } catch (const c10::Error& error) {
      EXPECT_TRUE(dynamic_cast<const c10::ValueError*>(&error))
          << "not a refusal: " << error.what_without_backtrace();
      throw;
    }
  };
  expect_error<c10::Error>(refusal, parts);
#ifndef __SANITIZE_ADDRESS__  // which takes memory of its own
  EXPECT_LE(meter.peak(), allowed);
#endif
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 20);
}

}  // namespace luna::testing
