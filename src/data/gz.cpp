#include "data/gz.h"

#include <c10/util/Exception.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

namespace luna::data {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr int kGzipOnly = 16;  // added to the window's bits

struct Inflater {
  Inflater() {
    TORCH_CHECK(inflateInit2(&stream, kGzipOnly + MAX_WBITS) == Z_OK,
                "decode_gz: zlib could not start");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream{};
};

}  // namespace

std::string decode_gz(const std::string& where, std::string_view bytes) {
  Inflater inflater;
  z_stream& stream = inflater.stream;
  // zlib does not write to its input, but says so only if asked to.
  auto* input = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  const auto* const end = input + bytes.size();
  stream.next_in = input;
  std::string out;
  int result = Z_OK;
  while (result == Z_OK) {
    stream.avail_in = static_cast<uInt>(std::min<size_t>(
        end - stream.next_in, std::numeric_limits<uInt>::max()));
    const size_t have = out.size();
    if (out.capacity() - have < kChunk) out.reserve(2 * have + kChunk);
    out.resize(have + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(out.data()) + have;
    stream.avail_out = kChunk;
    result = inflate(&stream, Z_NO_FLUSH);
    out.erase(out.size() - stream.avail_out);
    const bool another = result == Z_STREAM_END && stream.next_in < end;
    if (another) result = inflateReset(&stream);
  }
  TORCH_CHECK_VALUE(result != Z_BUF_ERROR, where,
                    ": expected a whole gz file, got one that is cut short");
  TORCH_CHECK_VALUE(result == Z_STREAM_END, where,
                    ": expected an intact gz file, got something else or a "
                    "damaged one");
  return out;
}

}  // namespace luna::data
