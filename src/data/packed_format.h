#pragma once

#include <luna/data/packed.h>

#include <array>
#include <span>
#include <string>

// The head of a packed file:
//
//   0   8 bytes  "lunadata"
//   8   u32      version
//   12  u32      bytes of the manifest
//   16  u64      CRC-64 of bytes 0 ... 15 and the manifest
//   24  JSON     the manifest: task, counts, and for each section where it
//                lies, its size in the file and unpacked, its CRC-64
//
// then the sections labels, offsets (int64, little endian) and ids (u8), each
// from a multiple of 64, zeros in between, nothing after the last.

namespace luna::data {

inline constexpr std::string_view kPackedMagic = "lunadata";
inline constexpr uint32_t kPackedVersion = 1;
inline constexpr size_t kPackedHead = 24;
inline constexpr size_t kPackedAlignment = 64;

struct PackedSection {
  std::string name{};
  int64_t at = 0;      ///< first byte in the file
  int64_t stored = 0;  ///< bytes in the file
  int64_t bytes = 0;   ///< bytes unpacked
  uint64_t crc = 0;    ///< of the bytes unpacked
  std::string coding{};
};

/// How a section's bytes are stored.
inline constexpr std::string_view kRaw = "raw", kXz = "xz",
                                  kPicturesXz = "median-edge+xz";

struct PackedManifest {
  PackedInfo info{};
  std::array<PackedSection, 3> sections{};  ///< labels, offsets, ids
};

inline constexpr std::array<const char*, 3> kSectionNames = {"labels",
                                                             "offsets", "ids"};

/// The bytes of the head, padded to where the first section starts.
/// Sections' `at` are filled in.
std::string write_head(PackedManifest& manifest);

/// Reads and checks head and layout of a file of which `bytes` are given;
/// `path` starts the messages.
PackedManifest read_head(const std::string& path,
                         std::span<const uint8_t> bytes);

}  // namespace luna::data
