#include "report/picture.h"

#include <c10/util/Exception.h>
#include <png.h>

#include "report/base64.h"

namespace luna::report {

std::string picture_address(const std::vector<std::uint8_t>& pixels,
                            std::int64_t height, std::int64_t width) {
  TORCH_CHECK_VALUE(
      height > 0 && width > 0 &&
          height * width == static_cast<std::int64_t>(pixels.size()),
      "picture_address: expected ", height, " x ", width, " pixels, got ",
      pixels.size());
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.format = PNG_FORMAT_GRAY;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> file(size);
  const int written = png_image_write_to_memory(&image, file.data(), &size, 0,
                                                pixels.data(), 0, nullptr);
  TORCH_CHECK(written != 0, "picture_address: libpng: ", image.message);
  file.resize(size);
  return "data:image/png;base64," + base64(file);
}

}  // namespace luna::report
