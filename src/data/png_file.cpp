#include "data/png_file.h"

#include <c10/util/Exception.h>
#include <luna/io/text_file.h>
#include <png.h>

#include <csetjmp>
#include <cstring>

namespace luna::data {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;

/// libpng reports errors by a jump; the message is kept here. No object with a
/// destructor may be made between setjmp and the jump.
struct Source {
  const std::string* bytes = nullptr;
  size_t position = 0;
  char message[128] = {};
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

/// Pixels into `pixels`, false and a message if libpng gave up.
bool decode(png_structp png, png_infop info, Source& source, Pixels& pixels) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &source, read);
  png_read_info(png, info);
  const int channels = png_get_channels(png, info);
  if (png_get_bit_depth(png, info) != 8 ||
      png_get_color_type(png, info) == PNG_COLOR_TYPE_PALETTE) {
    png_error(png, "expected 8 bits a channel and no palette");
  }
  if (png_get_interlace_type(png, info) != PNG_INTERLACE_NONE) {
    png_error(png, "expected no interlacing");
  }
  pixels.height = png_get_image_height(png, info);
  pixels.width = png_get_image_width(png, info);
  pixels.channels = channels;
  if (pixels.height * pixels.width > kMostPixels) {
    png_error(png, "expected at most 2^28 pixels");
  }
  pixels.bytes.resize(pixels.height * pixels.width * channels);
  for (int64_t y = 0; y < pixels.height; ++y) {
    png_read_row(png, pixels.bytes.data() + y * pixels.width * channels,
                 nullptr);
  }
  png_read_end(png, nullptr);
  return true;
}

}  // namespace

Pixels read_png(const std::string& path) {
  const std::string bytes = io::read_text(path);
  Source source{.bytes = &bytes};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail,
                                           ignore_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  TORCH_CHECK(info != nullptr, "read_png: no memory for ", path);
  Pixels pixels;
  bool good = false;
  try {
    good = decode(png, info, source, pixels);
  } catch (...) {  // no memory for the pixels
    png_destroy_read_struct(&png, &info, nullptr);
    throw;
  }
  png_destroy_read_struct(&png, &info, nullptr);
  TORCH_CHECK_VALUE(good, path, ": expected a PNG file, got: ", source.message);
  return pixels;
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
