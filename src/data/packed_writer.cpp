#include <c10/util/Exception.h>
#include <luna/io/atomic.h>

#include <bit>
#include <vector>

#include "data/packed_format.h"
#include "data/predictor.h"
#include "data/sequences.h"
#include "data/xz.h"

// Sections are written as they lie in memory.
static_assert(std::endian::native == std::endian::little);

namespace luna::data {
namespace {

using Bytes = std::span<const uint8_t>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()),
          sizeof(T) * values.size()};
}

/// The samples of any data set as flat arrays.
struct Flat {
  std::vector<int64_t> labels{}, offsets{0};
  std::vector<uint8_t> ids{};

  explicit Flat(const Dataset& data) {
    const auto append = [&](Bytes sequence) {
      ids.insert(ids.end(), sequence.begin(), sequence.end());
      offsets.push_back(std::ssize(ids));
    };
    for (int64_t i = 0; i < data.size(); ++i) {
      const Sample sample = data[i];
      append(sample.ids);
      if (data.info().pairs) append(sample.second);
      labels.push_back(sample.label);
    }
  }
};

}  // namespace

void write_packed(const std::string& path, const Dataset& data,
                  const PackOptions& options) {
  const TaskInfo& task = data.info();
  const std::string where = "write_packed: " + path;
  check_info(where, task);
  const Flat flat(data);
  PackedManifest manifest{
      .info = {.task = task,
               .split = options.split,
               .samples = data.size(),
               .longest = check_samples(where, task,
                                        {flat.ids, flat.offsets, flat.labels}),
               .origin = options.origin}};
  const std::array<Bytes, 3> contents = {
      bytes_of(flat.labels), bytes_of(flat.offsets), bytes_of(flat.ids)};
  std::array<std::vector<uint8_t>, 3> packed;
  std::array<Bytes, 3> stored = contents;
  for (size_t i = 0; i < contents.size(); ++i) {
    const bool ids = i == 2, pictures = ids && task.height > 0;
    PackedSection& section = manifest.sections[i];
    section = {.name = kSectionNames[i],
               .bytes = std::ssize(contents[i]),
               .crc = crc64(contents[i]),
               .coding = std::string(kRaw)};
    if (options.compress) {
      section.coding = pictures ? kPicturesXz : kXz;
      const auto encode = [&](Bytes bytes, XzContent content) {
        return encode_xz(bytes, content,
                         ids ? options.progress : ShareProgress{});
      };
      packed[i] =
          pictures ? encode(to_residuals(contents[i], task.height, task.width),
                            XzContent::kResiduals)
                   : encode(contents[i], XzContent::kText);
      stored[i] = packed[i];
    }
    section.stored = std::ssize(stored[i]);
  }
  const std::string head = write_head(manifest);
  io::write_file_atomically(path, [&](io::FileWriter& file) {
    file.write(head);
    int64_t at = std::ssize(head);
    for (size_t i = 0; i < stored.size(); ++i) {
      const std::string gap(manifest.sections[i].at - at, '\0');
      file.write(gap);
      file.write(stored[i].data(), stored[i].size());
      at = manifest.sections[i].at + manifest.sections[i].stored;
    }
    if (options.progress) options.progress(1.0);
  });
}

}  // namespace luna::data
