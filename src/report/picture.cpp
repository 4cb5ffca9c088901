#include "report/picture.h"

#include "data/png_file.h"
#include "io/base64.h"

namespace luna::report {

std::string picture_address(const data::Pixels& picture) {
  return "data:image/png;base64," + io::base64(data::encode_png(picture));
}

}  // namespace luna::report
