#pragma once

#include <luna/data/dataset.h>

#include <span>
#include <string>

// Samples for people to look at.

namespace luna::data {

/// Bytes as text: UTF-8 as it is; control characters and bytes that are no
/// UTF-8 as \x1b, so that no sample can do anything to a terminal.
std::string printable_text(std::span<const uint8_t> bytes);

/// A sequence of the task in words: text, symbols of ListOps, or numbers.
std::string sequence_text(const TaskInfo& info, std::span<const uint8_t> ids);

/// A picture for a terminal: two pixels in each half block, in colour.
std::string picture_blocks(const TaskInfo& info, std::span<const uint8_t> ids);
/// The same in plain letters, the brighter the denser, two a pixel.
std::string picture_letters(const TaskInfo& info, std::span<const uint8_t> ids);

/// A PNG file of pictures side by side, each pixel three wide.
std::string contact_sheet(const Dataset& data,
                          std::span<const int64_t> indices);

}  // namespace luna::data
