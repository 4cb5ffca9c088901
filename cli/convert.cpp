#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "luna/convert/hugging_face.h"

namespace luna::cli {
namespace {

struct Options {
  std::string model{};
  std::string out{};
  std::string attention = "universal";
};

int run(const Options& options) {
  convert::OpenOptions open;
  open.attention = options.attention;
  const auto model = convert::HuggingFaceModel::open(options.model, open);
  model.write(options.out);
  fmt::print("{}: {} with {} attention, {} new tensors, {} without a use\n",
             options.out, model.architecture(), options.attention,
             model.fresh().size(), model.unused().size());
  return kOk;
}

}  // namespace

Command add_convert(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "convert",
      "Swap the attention of a Hugging Face BERT or ViT. Nothing is trained: "
      "the result must be, before it is as good as the original");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna convert --model path/to/bert --attention universal --out linear");
  const auto options = std::make_shared<Options>();
  app->add_option("--model", options->model, "A Hugging Face folder")
      ->required();
  app->add_option("--attention", options->attention,
                  "A head-level mechanism of luna info; softmax copies the "
                  "model (default universal)");
  app->add_option("--out", options->out,
                  "Folder to make, in place of what is there")
      ->required();
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
