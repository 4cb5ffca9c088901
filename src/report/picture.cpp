#include "report/picture.h"

#include <c10/util/Exception.h>

#include "data/png_file.h"
#include "io/base64.h"

namespace luna::report {

std::string picture_address(const std::vector<std::uint8_t>& pixels,
                            std::int64_t height, std::int64_t width) {
  TORCH_CHECK_VALUE(
      height > 0 && width > 0 &&
          height * width == static_cast<std::int64_t>(pixels.size()),
      "picture_address: expected ", height, " x ", width, " pixels, got ",
      pixels.size());
  return "data:image/png;base64," +
         io::base64(data::encode_png({height, width, 1, pixels}));
}

}  // namespace luna::report
