#pragma once

#include <string>
#include <string_view>

#include "luna/text/bleu.h"

namespace luna::text {

/// The line with white space between its words.
std::string bleu_tokenize(std::string_view line, BleuTokens tokens);

}  // namespace luna::text
