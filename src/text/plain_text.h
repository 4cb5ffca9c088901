// Text made uniform before it is translated.
#pragma once

#include <string>
#include <string_view>

namespace luna::text {

/// Unicode's canonical composition, as PyPI's tokenizers knows it.
std::string to_nfc(std::string_view text);

/// One space for each row of white space, none at either end.
std::string squeeze_space(std::string_view text);

/// Quotation marks, dashes, ellipses and the like as ASCII has them.
std::string plain_punctuation(std::string_view text);

}  // namespace luna::text
