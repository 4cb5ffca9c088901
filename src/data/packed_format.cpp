#include "data/packed_format.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/sequences.h"
#include "data/xz.h"
#include "io/bounded_json.h"
#include "io/json_fields.h"

namespace luna::data {
namespace {

using Json = nlohmann::ordered_json;
using Fields = io::JsonFields<nlohmann::json>;

std::string required_text(const Fields& fields, const std::string& name) {
  fields.get(name, "a string");
  return *fields.text(name);
}

int64_t aligned(int64_t at) {
  constexpr int64_t a = kPackedAlignment;
  return (at + a - 1) / a * a;
}

std::string manifest_text(const PackedManifest& manifest) {
  const PackedInfo& info = manifest.info;
  const TaskInfo& task = info.task;
  Json sections = Json::array();
  for (const PackedSection& s : manifest.sections) {
    sections.push_back({{"name", s.name},
                        {"at", s.at},
                        {"stored", s.stored},
                        {"bytes", s.bytes},
                        {"crc64", fmt::format("{:016x}", s.crc)},
                        {"coding", s.coding}});
  }
  Json json = {{"task", task.task},       {"vocabulary", task.vocabulary},
               {"classes", task.classes}, {"pairs", task.pairs},
               {"height", task.height},   {"width", task.width},
               {"split", info.split},     {"samples", info.samples},
               {"longest", info.longest}, {"origin", info.origin},
               {"sections", sections}};
  // Files of grey pictures are what they were before there were others.
  if (task.channels != 1) json["channels"] = task.channels;
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

PackedSection read_section(const Fields& section) {
  const auto size = [&](const char* name) {
    section.get(name, "a whole number");
    return *section.integer(name, 0, std::numeric_limits<int64_t>::max());
  };
  const std::string crc = required_text(section, "crc64");
  PackedSection result{.name = required_text(section, "name"),
                       .at = size("at"),
                       .stored = size("stored"),
                       .bytes = size("bytes"),
                       .coding = required_text(section, "coding")};
  const char* end = crc.data() + crc.size();
  const auto read = std::from_chars(crc.data(), end, result.crc, 16);
  TORCH_CHECK_VALUE(read.ec == std::errc() && read.ptr == end,
                    section.place("crc64"), ": expected 16 hex digits, got ",
                    io::in_quotes(crc));
  return result;
}

/// Reads the manifest, whose CRC was right: what is wrong here was written so.
PackedManifest parse_manifest(const std::string& path, std::string_view text) {
  const std::string where = path + ": manifest";
  const auto json = io::parse_bounded_json<nlohmann::json>(where, text);
  const Fields fields(json, where);
  const auto size = [&](const char* name) {
    fields.get(name, "a whole number");
    return *fields.integer(name, 0, std::numeric_limits<int64_t>::max());
  };
  PackedManifest manifest;
  PackedInfo& info = manifest.info;
  fields.get("pairs", "true or false");
  info.task = {.task = required_text(fields, "task"),
               .vocabulary = size("vocabulary"),
               .classes = size("classes"),
               .pairs = *fields.boolean("pairs"),
               .height = size("height"),
               .width = size("width"),
               .channels = fields.integer("channels", 1, 3).value_or(1)};
  info.split = required_text(fields, "split");
  info.samples = size("samples");
  info.longest = size("longest");
  const Fields origin = fields.object("origin");
  for (const auto& [name, value] : fields.find("origin")->items()) {
    info.origin[name] = required_text(origin, name);
  }
  const auto& sections = fields.get("sections", "an array");
  const size_t count = manifest.sections.size();
  TORCH_CHECK_VALUE(sections.is_array() && sections.size() == count,
                    fields.place("sections"), ": expected an array of ", count,
                    ", got ", Fields::shown(sections), " of ", sections.size());
  for (size_t i = 0; i < count; ++i) {
    manifest.sections[i] =
        read_section({sections[i], fmt::format("{}: section {}", where, i)});
  }
  info.ids = manifest.sections[2].bytes;
  info.compressed =
      std::any_of(manifest.sections.begin(), manifest.sections.end(),
                  [](const PackedSection& s) { return s.coding != kRaw; });
  return manifest;
}

void check_sections(const std::string& path, const PackedManifest& manifest,
                    int64_t at) {
  const PackedInfo& info = manifest.info;
  check_info(path, info.task);
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 64;
  TORCH_CHECK_VALUE(info.samples >= 0 && info.samples < most, path,
                    ": samples: expected a count, got ", info.samples);
  const std::array<int64_t, 3> bytes = {
      8 * info.samples, 8 * (sequences_of(info.task) * info.samples + 1), -1};
  for (size_t i = 0; i < manifest.sections.size(); ++i) {
    const PackedSection& s = manifest.sections[i];
    const std::string where = path + ": section " + kSectionNames[i];
    TORCH_CHECK_VALUE(s.name == kSectionNames[i], where,
                      ": expected it here, got ", s.name);
    TORCH_CHECK_VALUE(
        s.coding == kRaw || s.coding == kXz || s.coding == kPicturesXz, where,
        ": coding: expected raw, xz or median-edge+xz, got ", s.coding);
    TORCH_CHECK_VALUE(s.coding != kPicturesXz || info.task.height > 0, where,
                      ": coding: expected pictures, got none");
    TORCH_CHECK_VALUE(s.at == aligned(at) && s.stored >= 0 && s.stored < most &&
                          s.bytes >= 0 && s.bytes < most,
                      where, ": expected it to start at byte ", aligned(at),
                      ", got byte ", s.at, " and ", s.stored, " bytes");
    TORCH_CHECK_VALUE(s.coding != kRaw || s.stored == s.bytes, where,
                      ": expected ", s.bytes, " bytes, got ", s.stored);
    TORCH_CHECK_VALUE(bytes[i] < 0 || s.bytes == bytes[i], where, ": expected ",
                      bytes[i], " bytes for ", info.samples, " samples, got ",
                      s.bytes);
    at = s.at + s.stored;
  }
}

}  // namespace

std::string write_head(PackedManifest& manifest) {
  // The places depend on the manifest's length and that on the places: a few
  // rounds settle it, as both only grow.
  std::string text;
  int64_t start = 0;
  for (;;) {
    text = manifest_text(manifest);
    const int64_t end = kPackedHead + std::ssize(text);
    if (aligned(end) == start) break;
    int64_t at = start = aligned(end);
    for (PackedSection& s : manifest.sections) {
      s.at = aligned(at);
      at = s.at + s.stored;
    }
  }
  std::string head(kPackedHead, '\0');
  const auto size = static_cast<uint32_t>(text.size());
  std::memcpy(head.data(), kPackedMagic.data(), 8);
  std::memcpy(head.data() + 8, &kPackedVersion, 4);
  std::memcpy(head.data() + 12, &size, 4);
  const auto bytes = [](const std::string& s, size_t count) {
    return std::span(reinterpret_cast<const uint8_t*>(s.data()), count);
  };
  const uint64_t crc = crc64(bytes(text, size), crc64(bytes(head, 16)));
  std::memcpy(head.data() + 16, &crc, 8);
  head += text;
  head.resize(start, '\0');
  return head;
}

PackedManifest read_head(const std::string& path,
                         std::span<const uint8_t> bytes) {
  const auto size = std::ssize(bytes);
  TORCH_CHECK_VALUE(size > 0, path,
                    ": expected a file of luna data pack, got an empty file");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  const std::string_view magic = text.substr(0, kPackedMagic.size());
  TORCH_CHECK_VALUE(magic == kPackedMagic.substr(0, magic.size()), path,
                    ": expected a file of luna data pack, which starts with ",
                    kPackedMagic, ", got something else or a damaged start");
  TORCH_CHECK_VALUE(bytes.size() >= kPackedHead, path,
                    ": expected a whole head of ", kPackedHead,
                    " bytes, got a file cut short at ", size, " bytes");
  uint32_t version = 0, manifest_size = 0;
  uint64_t crc = 0;
  std::memcpy(&version, bytes.data() + 8, 4);
  std::memcpy(&manifest_size, bytes.data() + 12, 4);
  std::memcpy(&crc, bytes.data() + 16, 8);
  TORCH_CHECK_VALUE(version == kPackedVersion, path, ": version: expected ",
                    kPackedVersion, ", got ", version,
                    ": of another luna, or damaged");
  const int64_t end = static_cast<int64_t>(kPackedHead) + manifest_size;
  TORCH_CHECK_VALUE(end <= size, path, ": manifest: expected ", manifest_size,
                    " bytes, got a file cut short at ", size,
                    " bytes or a damaged head");
  TORCH_CHECK_VALUE(crc64(bytes.subspan(kPackedHead, manifest_size),
                          crc64(bytes.first(16))) == crc,
                    path, ": head: expected CRC-64 ",
                    fmt::format("{:016x}", crc),
                    ", got another: the file is damaged");
  PackedManifest manifest =
      parse_manifest(path, text.substr(kPackedHead, manifest_size));
  check_sections(path, manifest, end);
  const PackedSection& last = manifest.sections.back();
  TORCH_CHECK_VALUE(
      last.at + last.stored == size, path, ": expected ", last.at + last.stored,
      " bytes, got ", size, ": the file ",
      size < last.at + last.stored ? "is cut short" : "has something appended");
  int64_t before = end;
  for (const PackedSection& s : manifest.sections) {
    const auto gap = bytes.subspan(before, s.at - before);
    TORCH_CHECK_VALUE(
        std::all_of(gap.begin(), gap.end(), [](uint8_t b) { return b == 0; }),
        path, ": expected zeros before section ", s.name,
        ", got something else: the file is damaged");
    before = s.at + s.stored;
  }
  return manifest;
}

}  // namespace luna::data
