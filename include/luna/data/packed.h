#pragma once

#include <luna/data/dataset.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

// A split as one file, opened by mapping it into memory. docs/data.md has the
// format. Every byte is covered by a check: a file that is cut short or has a
// bit changed is refused when it is opened, with the name of the file and of
// the part that is damaged.

namespace luna::data {

struct PackOptions {
  std::string split{};    ///< train, validation, test: written for the reader
  bool compress = false;  ///< xz, pictures by a predictor: small, slow to open
  /// Where the samples come from, for the reader: source, seed, ...
  std::map<std::string, std::string> origin{};
  /// Told the share that is done; may throw to stop: nothing is written then.
  std::function<void(double)> progress{};
};

/// What the file says of itself.
struct PackedInfo {
  TaskInfo task{};
  std::string split{};
  int64_t samples = 0;
  int64_t longest = 0;
  int64_t ids = 0;  ///< of all sequences together
  bool compressed = false;
  std::map<std::string, std::string> origin{};
};

/// Writes beside `path` and renames.
void write_packed(const std::string& path, const Dataset& data,
                  const PackOptions& options = {});

/// Opens and checks the whole file. A compressed one is decoded into memory.
std::shared_ptr<Dataset> open_packed(const std::string& path);

/// Reads and checks the head of a file alone.
PackedInfo read_packed_info(const std::string& path);

/// Where the split of a packed task lies: FOLDER/train.luna.
std::string split_file(const std::string& folder, const std::string& split);

/// open_packed(split_file(...)), with an error that says how to make it.
std::shared_ptr<Dataset> open_split(const std::string& folder,
                                    const std::string& split);

}  // namespace luna::data
