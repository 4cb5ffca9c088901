#include "data/xz.h"

#include <c10/util/Exception.h>
#include <lzma.h>

#include <algorithm>

namespace luna::data {
namespace {

constexpr size_t kChunk = size_t{1} << 20;
/// Small enough that two threads have work on a set of a few megabytes.
constexpr uint64_t kBlock = uint64_t{4} << 20;
/// More than any preset's dictionary needs.
constexpr uint64_t kDecoderMemory = uint64_t{1} << 30;

class Stream {
 public:
  Stream() = default;
  ~Stream() { lzma_end(&stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  lzma_stream* get() { return &stream_; }

  /// Everything in `bytes` goes in, what comes out is returned; `result` is
  /// LZMA_STREAM_END if all went well. Stops soon after `most` bytes.
  std::vector<uint8_t> run(std::span<const uint8_t> bytes, lzma_ret& result,
                           const ShareProgress& progress,
                           size_t most = std::numeric_limits<size_t>::max()) {
    std::vector<uint8_t> out;
    stream_.next_in = bytes.data();
    stream_.avail_in = bytes.size();
    do {
      const size_t have = out.size();
      if (out.capacity() - have < kChunk) {
        out.reserve(2 * out.capacity() + kChunk);
      }
      out.resize(have + kChunk);
      stream_.next_out = out.data() + have;
      stream_.avail_out = kChunk;
      result = lzma_code(&stream_, LZMA_FINISH);
      out.resize(out.size() - stream_.avail_out);
      if (progress) {
        uint64_t in = 0, unused = 0;
        lzma_get_progress(&stream_, &in, &unused);
        progress(static_cast<double>(in) /
                 static_cast<double>(std::max<size_t>(bytes.size(), 1)));
      }
    } while (result == LZMA_OK && out.size() <= most);
    return out;
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

const char* reason(lzma_ret result) {
  switch (result) {
    case LZMA_FORMAT_ERROR:
      return "expected an xz file, got something else";
    case LZMA_BUF_ERROR:
      return "expected a whole xz file, got one that is cut short";
    case LZMA_DATA_ERROR:
      return "expected an intact xz file, got a damaged one";
    case LZMA_MEM_ERROR:
    case LZMA_MEMLIMIT_ERROR:
      return "expected an xz file with a dictionary that fits in memory, got "
             "a larger one";
    default:
      return "expected an xz file that liblzma reads, got one it does not";
  }
}

}  // namespace

std::vector<uint8_t> encode_xz(std::span<const uint8_t> bytes,
                               XzContent content,
                               const ShareProgress& progress) {
  lzma_options_lzma options;
  TORCH_CHECK(!lzma_lzma_preset(&options, 6), "encode_xz: no preset 6");
  if (content == XzContent::kResiduals) {
    // The neighbour's size tells a residual's, its position in memory does
    // not.
    options.lc = 4;
    options.lp = options.pb = 0;
    // Nothing comes twice but by chance: looking far for it took four fifths of
    // the time and half a per cent more bytes.
    options.dict_size = LZMA_DICT_SIZE_MIN;
    options.depth = 1;
  }
  lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options},
                           {LZMA_VLI_UNKNOWN, nullptr}};
  lzma_mt settings = {};
  settings.threads = std::max<uint32_t>(1, lzma_cputhreads());
  settings.block_size = kBlock;
  settings.timeout = 200;  // ms, so that progress is told
  settings.filters = filters;
  settings.check = LZMA_CHECK_CRC64;
  Stream stream;
  lzma_ret result = lzma_stream_encoder_mt(stream.get(), &settings);
  std::vector<uint8_t> out;
  if (result == LZMA_OK) out = stream.run(bytes, result, progress);
  TORCH_CHECK(result == LZMA_STREAM_END, "encode_xz: liblzma failed with code ",
              int{result});
  return out;
}

std::vector<uint8_t> decode_xz(const std::string& where,
                               std::span<const uint8_t> bytes, size_t most) {
  Stream stream;
  lzma_ret result =
      lzma_stream_decoder(stream.get(), kDecoderMemory, LZMA_CONCATENATED);
  std::vector<uint8_t> out;
  if (result == LZMA_OK) out = stream.run(bytes, result, {}, most);
  TORCH_CHECK_VALUE(out.size() <= most, where, ": expected ", most,
                    " bytes unpacked, got more");
  TORCH_CHECK_VALUE(result == LZMA_STREAM_END, where, ": ", reason(result));
  return out;
}

uint64_t crc64(std::span<const uint8_t> bytes, uint64_t before) {
  return lzma_crc64(bytes.data(), bytes.size(), before);
}

}  // namespace luna::data
