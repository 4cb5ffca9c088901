#include "data/png_file.h"

#include <c10/util/Exception.h>
#include <luna/io/text_file.h>
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <limits>

namespace luna::data {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;
/// More memory is taken for pixels only once the whole file has been decoded.
constexpr int64_t kTrustedBytes = int64_t{32} << 20;

/// libpng reports errors by a jump; the message is kept here. No object with a
/// destructor may be made between setjmp and the jump.
struct Source {
  const std::string* bytes = nullptr;
  size_t position = 0;
  char message[128] = {};
  std::vector<png_bytep> rows{};
};

void fail(png_structp png, png_const_charp message) {
  auto* const source = static_cast<Source*>(png_get_error_ptr(png));
  std::strncpy(source->message, message, sizeof source->message - 1);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void read(png_structp png, png_bytep out, size_t count) {
  auto* const source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->bytes->size() - source->position < count) {
    png_error(png, "the file is cut short");
  }
  std::memcpy(out, source->bytes->data() + source->position, count);
  source->position += count;
}

/// Deflate makes at most 1,032 bytes of one: what says more is not believed.
bool is_possible(png_structp png, png_infop info, const Pixels& pixels,
                 size_t file_bytes) {
  return pixels.height * pixels.width <= kMostPixels &&
         pixels.height * png_get_rowbytes(png, info) <= file_bytes * 1032;
}

/// Grey with 16 bits is refused: Pillow cuts its values at 255.
void check_convertible(png_structp png, png_infop info) {
  if (png_get_bit_depth(png, info) == 16 &&
      !(png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR)) {
    png_error(png, "expected at most 8 bits for grey, got 16");
  }
}

void convert_to_rgb(png_structp png) {
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
}

void check_plain(png_structp png, png_infop info) {
  if (png_get_bit_depth(png, info) != 8 ||
      png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) {
    png_error(png, "expected 8 bits a channel and no palette");
  }
  if (png_get_interlace_type(png, info) != PNG_INTERLACE_NONE) {
    png_error(png, "expected no interlacing");
  }
}

/// Pixels into `pixels`, false and a message if libpng gave up. Of more than
/// `most_bytes` of them none is kept.
bool decode(png_structp png, png_infop info, bool rgb, int64_t most_bytes,
            Source& source, Pixels& pixels) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &source, read);
  png_set_chunk_cache_max(png, 1);  // no texts, which may be packed 1 to 1,000
  png_read_info(png, info);
  pixels.height = png_get_image_height(png, info);
  pixels.width = png_get_image_width(png, info);
  if (!is_possible(png, info, pixels, source.bytes->size())) {
    png_error(png, "expected fewer pixels for a file of this size");
  }
  if (rgb) {
    check_convertible(png, info);
    convert_to_rgb(png);
  } else {
    check_plain(png, info);
  }
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  pixels.channels = png_get_channels(png, info);
  const int64_t row_bytes = pixels.width * pixels.channels;
  const bool kept = pixels.height * row_bytes <= most_bytes;
  pixels.bytes.resize(kept ? pixels.height * row_bytes : row_bytes);
  source.rows.resize(pixels.height);
  for (int64_t y = 0; y < pixels.height; ++y) {
    source.rows[y] = pixels.bytes.data() + (kept ? y * row_bytes : 0);
  }
  png_read_image(png, source.rows.data());
  png_read_end(png, nullptr);
  if (!kept) pixels.bytes.clear();
  return true;
}

Pixels decode_once(const std::string& bytes, const std::string& path, bool rgb,
                   int64_t most_bytes) {
  Source source{.bytes = &bytes};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail,
                                           ignore_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  TORCH_CHECK(info != nullptr, "read_png: no memory for ", path);
  Pixels pixels;
  bool good = false;
  try {
    good = decode(png, info, rgb, most_bytes, source, pixels);
  } catch (...) {  // no memory for the pixels
    png_destroy_read_struct(&png, &info, nullptr);
    throw;
  }
  png_destroy_read_struct(&png, &info, nullptr);
  TORCH_CHECK_VALUE(good, path, ": expected a PNG file, got: ", source.message);
  return pixels;
}

Pixels decode_file(const std::string& bytes, const std::string& path,
                   bool rgb) {
  Pixels pixels = decode_once(bytes, path, rgb, kTrustedBytes);
  if (!pixels.bytes.empty()) return pixels;
  return decode_once(bytes, path, rgb, std::numeric_limits<int64_t>::max());
}

}  // namespace

Pixels read_png(const std::string& path) {
  return decode_file(io::read_text(path), path, /*rgb=*/false);
}

Pixels decode_png_rgb(const std::string& bytes, const std::string& path) {
  return decode_file(bytes, path, /*rgb=*/true);
}

std::string encode_png(const Pixels& pixels) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(pixels.width);
  image.height = static_cast<png_uint_32>(pixels.height);
  image.format = pixels.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  const int good = png_image_write_to_memory(&image, bytes.data(), &size, 0,
                                             pixels.bytes.data(), 0, nullptr);
  TORCH_CHECK(good != 0, "encode_png: ", image.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace luna::data
