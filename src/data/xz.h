#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace luna::data {

/// What the bytes are: chooses how xz models them.
enum class XzContent { kText, kResiduals };

/// Told the share that is done; may throw to stop.
using ShareProgress = std::function<void(double)>;

std::vector<uint8_t> encode_xz(std::span<const uint8_t> bytes,
                               XzContent content,
                               const ShareProgress& progress = {});

/// The content of an xz file, `most` bytes at most. `where` starts the message
/// if there are more, or it is no xz file, cut short or damaged.
std::vector<uint8_t> decode_xz(
    const std::string& where, std::span<const uint8_t> bytes,
    size_t most = std::numeric_limits<size_t>::max());

/// CRC-64 (ECMA-182, as in xz); `before` is that of the bytes before.
uint64_t crc64(std::span<const uint8_t> bytes, uint64_t before = 0);

}  // namespace luna::data
