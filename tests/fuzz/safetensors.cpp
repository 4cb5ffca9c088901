// The header of a safetensors file, and the tensors that it says are there.
#include <luna/io/safetensors.h>

#include <algorithm>

#include "fuzz/fuzz.h"
#include "io/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace luna;
  const std::string path = "fuzz.safetensors";
  fuzz::read_or_refuse(path, [&] {
    const auto header =
        io::read_header({reinterpret_cast<const std::byte*>(data), size}, path);
    int64_t sum = 0;
    for (const io::TensorEntry& entry : header.entries) {
      fuzz::require(
          entry.offset >= 0 && entry.bytes >= 0 &&
              entry.offset + entry.bytes <= static_cast<int64_t>(size),
          "tensors inside the file");
      for (int64_t i = 0; i < entry.bytes; ++i) sum += data[entry.offset + i];
    }
    fuzz::require(sum >= 0 && header.by_name.size() == header.entries.size(),
                  "an index of all tensors");
    const auto name = [&](uint32_t i) { return header.entries[i].name; };
    fuzz::require(
        std::ranges::adjacent_find(header.by_name, std::ranges::greater_equal{},
                                   name) == header.by_name.end(),
        "names in order, each once");
  });
  return 0;
}
