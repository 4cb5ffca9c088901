// The manifest of a packed data file, and the index of a sharded model.
#include <luna/data/packed.h>
#include <luna/io/weights.h>

#include <cstring>

#include "data/packed_format.h"
#include "data/xz.h"
#include "fuzz/fuzz.h"
#include "support/small_folders.h"

namespace {

using namespace luna;

/// A packed file with that manifest and rest, whose head is right: damage is
/// found by its checksum, which hides what lies behind from a fuzzer.
std::string with_head(std::string_view manifest, std::string_view rest) {
  std::string file(data::kPackedHead, '\0');
  const auto size = static_cast<uint32_t>(manifest.size());
  std::memcpy(file.data(), data::kPackedMagic.data(), 8);
  std::memcpy(file.data() + 8, &data::kPackedVersion, 4);
  std::memcpy(file.data() + 12, &size, 4);
  const auto crc = [](std::string_view text, uint64_t before) {
    return data::crc64(
        {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, before);
  };
  const uint64_t sum =
      crc(manifest, crc(std::string_view(file).substr(0, 16), 0));
  std::memcpy(file.data() + 16, &sum, 8);
  return file.append(manifest).append(rest);
}

void read_packed(const std::string& path) {
  fuzz::read_or_refuse(path, [&] {
    const auto set = data::open_packed(path);
    int64_t ids = 0;
    for (int64_t i = 0; i < set->size(); ++i) {
      const auto sample = (*set)[i];
      for (const uint8_t id : sample.ids) ids += id;
      fuzz::require(sample.label >= 0 && sample.label < set->info().classes,
                    "labels of classes");
    }
    fuzz::require(ids >= 0, "ids that can be read");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, bytes] = fuzz::choose(data, size, 3);
  if (kind == 0) {  // up to the first NUL the manifest, then the sections
    const size_t end = std::min(bytes.find('\0'), bytes.size());
    read_packed(fuzz::put("head.luna",
                          with_head(bytes.substr(0, end), bytes.substr(end))));
  } else if (kind == 1) {
    read_packed(fuzz::put("whole.luna", bytes));
  } else {
    static const bool written = [] {
      const auto all = testing::small_vit_weights();
      const auto half = all.begin() + std::ssize(all) / 2;
      io::write_safetensors((fuzz::folder() / "a.safetensors").string(),
                            {all.begin(), half});
      io::write_safetensors((fuzz::folder() / "b.safetensors").string(),
                            {half, all.end()});
      return true;
    }();
    (void)written;
    const std::string path = fuzz::put("model.safetensors.index.json", bytes);
    // The shards may be named, too: where one has what the index does not.
    fuzz::read_or_refuse(fuzz::folder().string(),
                         [&] { io::open_weights(path); });
  }
  return 0;
}
