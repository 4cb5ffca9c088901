// config.json of a BERT and of a ViT, beside weights that are right, and the
// config of a training run.
#include <luna/train/read_config.h>

#include <array>

#include "convert/hugging_face_config.h"
#include "fuzz/fuzz.h"
#include "support/small_folders.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace luna;
  static const std::array weights = [] {
    const auto open = [](const char* name, const io::NamedTensors& tensors) {
      const std::string path = (fuzz::folder() / name).string();
      io::write_safetensors(path, tensors);
      return io::open_weights(path);
    };
    return std::array{open("bert.safetensors", testing::small_bert_weights()),
                      open("vit.safetensors", testing::small_vit_weights())};
  }();
  const auto [kind, bytes] = fuzz::choose(data, size, 3);
  if (kind == 2) {
    const std::string path = fuzz::put("train.json", bytes);
    fuzz::read_or_refuse(path, [&] { train::read_train_config(path); });
    return 0;
  }
  const std::string path = "fuzz/config.json", text(bytes);
  fuzz::read_or_refuse(path, [&, kind = kind] {
    const auto config = convert::read_config(path, text, weights[kind], {});
    const auto again = convert::read_config(
        path, convert::change_config(text, config), weights[kind], {});
    fuzz::require(again.labels == config.labels &&
                      again.architecture == config.architecture,
                  "the same config when it is written and read");
  });
  return 0;
}
