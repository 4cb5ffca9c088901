#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "luna/io/weights.h"
#include "luna/report/format.h"
#include "luna/report/table.h"
#include "luna/train/run_folder.h"

namespace luna::cli {
namespace {

struct Options {
  std::string path{};
  std::string out{};
  bool json = false;
  bool checksum = false;
};

std::string crc32_of(const io::Weights& weights, const std::string& name) {
  const at::Tensor tensor = weights.tensor(name);
  const auto* data = static_cast<const Bytef*>(tensor.const_data_ptr());
  return fmt::format(
      "{:08x}", tensor.nbytes() == 0 ? 0 : crc32_z(0, data, tensor.nbytes()));
}

int64_t total_bytes(const io::Weights& weights) {
  int64_t bytes = 0;
  for (const io::TensorEntry& entry : weights.entries()) bytes += entry.bytes;
  return bytes;
}

void print_json(const io::Weights& weights, bool checksum) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const io::TensorEntry& entry : weights.entries()) {
    nlohmann::ordered_json tensor = {
        {"name", entry.name},
        {"dtype", io::safetensors_dtype_name(entry.dtype)},
        {"shape", entry.sizes},
        {"bytes", entry.bytes}};
    if (checksum) tensor["crc32"] = crc32_of(weights, entry.name);
    tensors.push_back(std::move(tensor));
  }
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const io::Safetensors& file : weights.files()) {
    files.push_back(file.path());
  }
  const nlohmann::ordered_json json = {{"files", files},
                                       {"metadata", weights.metadata()},
                                       {"bytes", total_bytes(weights)},
                                       {"tensors", tensors}};
  fmt::print("{}\n", json.dump(2));
}

void print_text(const io::Weights& weights, bool checksum) {
  std::vector<report::Column> columns = {
      {"tensor", false}, {"dtype", false}, {"shape", false}, {"bytes", true}};
  if (checksum) columns.push_back({"crc32", false});
  report::Table table(columns);
  for (const io::TensorEntry& entry : weights.entries()) {
    std::vector<std::string> row = {
        entry.name, io::safetensors_dtype_name(entry.dtype),
        fmt::format("[{}]", fmt::join(entry.sizes, ", ")),
        report::grouped(entry.bytes)};
    if (checksum) row.push_back(crc32_of(weights, entry.name));
    table.add_row(std::move(row));
  }
  fmt::print("{}\n{} tensors, {} bytes\n", table.text(),
             report::grouped(std::ssize(weights.entries())),
             report::grouped(total_bytes(weights)));
  for (const auto& [key, value] : weights.metadata()) {
    fmt::print("{} = {}\n", key, value);
  }
}

/// A run's weights lie one folder below.
void refuse_run(const std::string& path) {
  const train::RunFolder run(path);
  if (!run.holds_run()) return;
  const bool has_best = std::filesystem::exists(run.best());
  TORCH_CHECK_VALUE(false, path, ": expected weights, got a run's folder",
                    has_best ? "; did you mean " + run.best() + "?"
                             : ", which has no best weights yet");
}

void copy(const io::Weights& weights, const std::string& out) {
  io::NamedTensors tensors;
  for (const io::TensorEntry& entry : weights.entries()) {
    tensors.emplace_back(entry.name, weights.tensor(entry.name));
  }
  io::write_safetensors(out, tensors, weights.metadata());
}

}  // namespace

Command add_weights(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "weights", "Check and list the tensors of safetensors files");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna weights runs/text/best --checksum\n"
      "  luna weights sharded_model --out model.safetensors");
  const auto options = std::make_shared<Options>();
  app->add_option("path", options->path,
                  "A .safetensors file, an index of shards, or a folder with "
                  "model.safetensors or model.safetensors.index.json")
      ->required();
  app->add_flag("--json", options->json, "JSON instead of text");
  app->add_flag("--checksum", options->checksum,
                "CRC-32 of each tensor's bytes; reads the whole file");
  app->add_option("--out", options->out,
                  "Also write all tensors and the metadata to this one file");
  return {app, [options] {
            refuse_run(options->path);
            const io::Weights weights = io::open_weights(options->path);
            if (!options->out.empty()) copy(weights, options->out);
            options->json ? print_json(weights, options->checksum)
                          : print_text(weights, options->checksum);
            return static_cast<int>(kOk);
          }};
}

}  // namespace luna::cli
