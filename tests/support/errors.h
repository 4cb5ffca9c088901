#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace luna::testing {

/// Whether `text` holds one of the alternatives in "this|that".
inline bool holds(const std::string& text, const std::string& alternatives) {
  std::istringstream parts(alternatives);
  for (std::string part; std::getline(parts, part, '|');) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

/// `call` throws an `Error` whose message holds every part.
template <typename Error>
void expect_error(const std::function<void()>& call,
                  const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_TRUE(dynamic_cast<const Error*>(&error))
        << "another kind of error: " << message;
    for (const std::string& part : parts) {
      EXPECT_TRUE(holds(message, part))
          << "no '" << part << "' in: " << message;
    }
    return;
  }
  ADD_FAILURE() << "no error";
}

}  // namespace luna::testing
