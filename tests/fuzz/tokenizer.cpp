// tokenizer.json, and vocab.txt with tokenizer_config.json; what is read must
// then cut text without leaving its vocabulary or the text.
#include <luna/text/wordpiece.h>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace luna;
  const auto [kind, bytes] = fuzz::choose(data, size, 3);
  std::string path;
  if (kind == 0) {
    path = fuzz::put("tokenizer.json", bytes);
  } else if (kind == 1) {
    path = fuzz::put("vocab.txt", bytes);
    fuzz::put("tokenizer_config.json", "{}");
  } else {
    path = fuzz::put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b");
    fuzz::put("tokenizer_config.json", bytes);
  }
  // A message may name either of the two files.
  const std::string named = kind == 0 ? path : fuzz::folder().string();
  fuzz::read_or_refuse(named, [&, bytes = bytes] {
    const auto tokenizer = text::WordPiece::open(path);
    const std::string_view text = "The cat\xc3\xa9, \xe4\xb8\xad [MASK] abab!";
    for (const auto& encoding :
         {tokenizer.encode(text), tokenizer.encode("a b", text, {9}),
          tokenizer.encode(bytes.substr(0, 64))}) {
      fuzz::require(encoding.type_ids.size() == encoding.ids.size() &&
                        encoding.offsets.size() == encoding.ids.size(),
                    "ids, types and offsets of one length");
      for (const int64_t id : encoding.ids) {
        fuzz::require(id >= 0 && id < tokenizer.size(), "ids of tokens");
      }
      for (const auto& [begin, end] : encoding.offsets) {
        fuzz::require(0 <= begin && begin <= end && end <= 64,
                      "offsets inside the text");
      }
    }
  });
  return 0;
}
