#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <luna/io/memory_map.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "data/packed_format.h"
#include "data/predictor.h"
#include "data/sequences.h"
#include "data/xz.h"

namespace luna::data {
namespace {

using Bytes = std::span<const uint8_t>;

Bytes bytes_of(const io::MemoryMap& map) {
  return {reinterpret_cast<const uint8_t*>(map.data()), map.size()};
}

/// A view of the mapped file, or of what its sections were decoded to.
class PackedDataset final : public Dataset {
 public:
  explicit PackedDataset(const std::string& path)
      : map_(io::MemoryMap::open(path)),
        manifest_(read_head(path, bytes_of(*map_))) {
    samples_ = {.ids = section(2),
                .offsets = numbers(section(1)),
                .labels = numbers(section(0))};
    const int64_t longest = check_samples(path, info(), samples_);
    TORCH_CHECK_VALUE(longest == manifest_.info.longest, path,
                      ": longest: expected ", longest, ", got ",
                      manifest_.info.longest);
    if (manifest_.info.compressed) map_.reset();
  }

  const TaskInfo& info() const override { return manifest_.info.task; }
  int64_t size() const override { return manifest_.info.samples; }
  int64_t longest() const override { return manifest_.info.longest; }
  Sample operator[](int64_t index) const override {
    return sample_at(info(), samples_, index);
  }

 private:
  static std::span<const int64_t> numbers(Bytes bytes) {
    return {reinterpret_cast<const int64_t*>(bytes.data()), bytes.size() / 8};
  }

  Bytes section(size_t index) {
    const PackedSection& s = manifest_.sections[index];
    const std::string where = map_->path() + ": section " + s.name;
    Bytes bytes = bytes_of(*map_).subspan(s.at, s.stored);
    if (manifest_.info.compressed) {
      std::vector<uint8_t>& decoded = decoded_[index];
      decoded = s.coding == kRaw ? std::vector(bytes.begin(), bytes.end())
                                 : decode_xz(where, bytes, s.bytes);
      TORCH_CHECK_VALUE(std::ssize(decoded) == s.bytes, where, ": expected ",
                        s.bytes, " bytes, got ", decoded.size());
      if (s.coding == kPicturesXz) {
        from_residuals(decoded, info().height, info().width);
      }
      bytes = decoded;
    }
    const uint64_t crc = crc64(bytes);
    TORCH_CHECK_VALUE(crc == s.crc, where, ": expected CRC-64 ",
                      fmt::format("{:016x}, got {:016x}", s.crc, crc),
                      ": the file is damaged");
    return bytes;
  }

  std::shared_ptr<io::MemoryMap> map_;
  PackedManifest manifest_;
  std::array<std::vector<uint8_t>, 3> decoded_{};
  FlatSamples samples_{};
};

}  // namespace

std::shared_ptr<Dataset> open_packed(const std::string& path) {
  return std::make_shared<PackedDataset>(path);
}

PackedInfo read_packed_info(const std::string& path) {
  return read_head(path, bytes_of(*io::MemoryMap::open(path))).info;
}

std::string split_file(const std::string& folder, const std::string& split) {
  return (std::filesystem::path(folder) / (split + ".luna")).string();
}

std::shared_ptr<Dataset> open_split(const std::string& folder,
                                    const std::string& split) {
  const std::string path = split_file(folder, split);
  TORCH_CHECK_VALUE(
      std::filesystem::exists(path), path,
      ": expected a packed split, got no such file; make it by: luna data "
      "pack TASK --out ",
      folder.empty() ? "DIR" : folder);
  return open_packed(path);
}

}  // namespace luna::data
