// How byte-level BPE cuts text into words, and the letters that stand for
// bytes in its vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace luna::text {

/// The word that begins at `position`, which moves behind it and must be in
/// the text. Words follow each other without a gap, by the regular expression
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A byte that is not UTF-8 is none of letter, number and space.
std::string_view next_byte_word(std::string_view text, size_t& position);

/// A printable character for every byte: itself if it is one in Latin-1, else
/// the next free one from U+0100 on. In UTF-8.
const std::array<std::string, 256>& byte_letters();

/// The bytes in the order of their letters.
const std::array<uint8_t, 256>& bytes_by_letter();

}  // namespace luna::text
