// Measures WordPiece on one core, line by line:
//
//   luna_bench_tokenizer TOKENIZER TEXT...
//
// TOKENIZER: a tokenizer.json, a vocab.txt or a folder with one; TEXT: files.
// Exit code 1 if a file is read at less than the goal of 10 MB/s.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "luna/io/text_file.h"
#include "luna/text/wordpiece.h"

namespace {

constexpr double kGoal = 10;  // MB/s
constexpr int kPasses = 7;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// False if the goal was missed. Of several passes the fastest counts: what
/// makes one slower is somebody else's work.
bool measure(const luna::text::WordPiece& tokenizer, const std::string& path) {
  using Clock = std::chrono::steady_clock;
  const std::string text = luna::io::read_text(path);
  const auto lines = lines_of(text);
  double best = 0;
  size_t ids = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    ids = 0;
    const auto start = Clock::now();
    for (const auto line : lines) ids += tokenizer.encode(line).ids.size();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best,
                    static_cast<double>(text.size()) / seconds.count() / 1e6);
  }
  fmt::print("{}: {:.1f} MB/s, {} lines, {} ids (goal {:.0f} MB/s)\n", path,
             best, lines.size(), ids, kGoal);
  return best >= kGoal;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: luna_bench_tokenizer TOKENIZER TEXT...\n");
    return 2;
  }
  try {
    const auto tokenizer = luna::text::WordPiece::open(argv[1]);
    bool reached = true;
    for (int i = 2; i < argc; ++i) reached &= measure(tokenizer, argv[i]);
    return reached ? 0 : 1;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "luna_bench_tokenizer: error: {}\n",
               error.what_without_backtrace());
    return 1;
  }
}
