#include "data/jpeg_file.h"

#include <c10/util/Exception.h>

#include <csetjmp>
#include <cstdio>
#include <limits>

#include <jpeglib.h>

#include <jerror.h>

namespace luna::data {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;
/// More memory is taken for pixels only once the whole file has been decoded.
constexpr int64_t kTrustedBytes = int64_t{32} << 20;
/// libjpeg keeps 2 bytes for each coefficient of a picture in several scans
/// (progressive), before any pixel. A photograph's file is not that much
/// smaller.
constexpr int64_t kLeastCoefficientBytes = int64_t{48} << 20;
constexpr int64_t kCoefficientBytesPerByte = 24;

/// libjpeg reports errors by calls that may not return: a jump. No object with
/// a destructor may be made between setjmp and the jump.
struct Errors {
  jpeg_error_mgr manager;  // first: libjpeg hands out its address
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

void fail(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<Errors*>(jpeg->err);
  jpeg->err->format_message(jpeg, errors->message);
  std::longjmp(errors->jump, 1);
}

/// libjpeg makes up what is missing and warns; Pillow refuses such files.
void refuse_missing_data(j_common_ptr jpeg, int level) {
  const int code = jpeg->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) {
    fail(jpeg);
  }
}

/// Before jpeg_start_decompress: libjpeg's own limit (max_memory_to_use) would
/// end in a message about its backing store.
int64_t coefficient_bytes(const jpeg_decompress_struct& jpeg) {
  if (!jpeg_has_multiple_scans(const_cast<j_decompress_ptr>(&jpeg))) return 0;
  int64_t bytes = 0;
  for (int i = 0; i < jpeg.num_components; ++i) {
    const jpeg_component_info& part = jpeg.comp_info[i];
    bytes += int64_t{part.width_in_blocks} * part.height_in_blocks *
             int64_t{sizeof(JBLOCK)};
  }
  return bytes;
}

/// Pixels into `pixels`, false and a message if libjpeg gave up. Of more than
/// `most_bytes` of them none is kept.
bool decode(jpeg_decompress_struct& jpeg, Errors& errors,
            const std::string& bytes, int64_t most_bytes, Pixels& pixels) {
  if (setjmp(errors.jump) != 0) return false;
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()),
               bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  if (jpeg.num_components != 1 && jpeg.num_components != 3) {
    std::snprintf(errors.message, sizeof errors.message,
                  "expected grey or RGB, got %d components",
                  jpeg.num_components);
    return false;
  }
  pixels.height = jpeg.image_height;
  pixels.width = jpeg.image_width;
  pixels.channels = 3;
  // A block of 64 pixels takes a bit or more of the file.
  const int64_t count = pixels.height * pixels.width;
  if (count > kMostPixels ||
      static_cast<uint64_t>(count) > bytes.size() * 8 * 256) {
    std::snprintf(errors.message, sizeof errors.message,
                  "expected fewer pixels for a file of this size");
    return false;
  }
  if (coefficient_bytes(jpeg) >
      kLeastCoefficientBytes + kCoefficientBytesPerByte * std::ssize(bytes)) {
    std::snprintf(errors.message, sizeof errors.message,
                  "expected fewer pixels for a file of this size in several "
                  "scans (progressive)");
    return false;
  }
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  const bool kept = count * 3 <= most_bytes;
  pixels.bytes.resize(kept ? count * 3 : pixels.width * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row =
        pixels.bytes.data() +
        (kept ? int64_t{jpeg.output_scanline} * pixels.width * 3 : 0);
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  if (!kept) pixels.bytes.clear();
  return true;
}

Pixels decode_once(const std::string& bytes, const std::string& path,
                   int64_t most_bytes) {
  Errors errors{};
  jpeg_decompress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = fail;
  errors.manager.emit_message = refuse_missing_data;
  jpeg_create_decompress(&jpeg);
  Pixels pixels;
  bool good = false;
  try {
    good = decode(jpeg, errors, bytes, most_bytes, pixels);
  } catch (...) {  // no memory for the pixels
    jpeg_destroy_decompress(&jpeg);
    throw;
  }
  jpeg_destroy_decompress(&jpeg);
  TORCH_CHECK_VALUE(good, path,
                    ": expected a JPEG file, got: ", errors.message);
  return pixels;
}

}  // namespace

Pixels decode_jpeg_rgb(const std::string& bytes, const std::string& path) {
  Pixels pixels = decode_once(bytes, path, kTrustedBytes);
  if (!pixels.bytes.empty()) return pixels;
  return decode_once(bytes, path, std::numeric_limits<int64_t>::max());
}

}  // namespace luna::data
