#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/machine_json.h"
#include "command.h"
#include "info_config.h"
#include "luna/bench/machine.h"
#include "luna/nn/attention_registry.h"
#include "luna/report/table.h"
#include "luna/version.h"
#include "ops/gpu_paths.h"

namespace luna::cli {
namespace {

std::string mark(bool has) { return has ? "yes" : "–"; }

void print_text(const bench::Machine& m) {
  fmt::print("luna {}, torch {}\n", m.luna_version, m.torch_version);
  if (*commit() != '\0') fmt::print("built of commit {}\n", commit());
  fmt::print("\n");
  fmt::print("processor        {}, {} logical cores, {} thread{} in use\n",
             m.cpu, m.logical_cores, m.threads, m.threads == 1 ? "" : "s");
  fmt::print("instruction set  {} (LUNA_ISA=avx512|avx2|scalar chooses)\n",
             m.isa);
  fmt::print("memory           {:.1f} GiB\n",
             static_cast<double>(m.memory) / (1 << 30));
  fmt::print("CUDA devices     {}\n\n",
             m.cuda_devices.empty()
                 ? "none"
                 : fmt::format("{}", fmt::join(m.cuda_devices, ", ")));

  report::Table traits({{"attention", false},
                        {"causal", false},
                        {"cross", false},
                        {"streams", false},
                        {"memory", false},
                        {"what it is", false}});
  report::Table papers({{"attention", false}, {"published", false}});
  for (const nn::AttentionInfo& a : nn::attentions()) {
    traits.add_row({a.name, mark(a.traits.causal), mark(a.traits.cross),
                    mark(a.traits.streams), mark(a.traits.memory), a.summary});
    papers.add_row({a.name, a.publication});
  }
  report::Table paths(
      {{"on a GPU", false}, {"kernels", false}, {"take", false}});
  for (const ops::GpuPath& path : ops::gpu_paths()) {
    paths.add_row({path.op, path.kernels, path.takes});
  }
  fmt::print("{}\n{}\n{}", traits.text(), papers.text(), paths.text());
}

void print_json(const bench::Machine& m) {
  auto paths = nlohmann::ordered_json::array();
  for (const ops::GpuPath& path : ops::gpu_paths()) {
    paths.push_back(
        {{"op", path.op}, {"kernels", path.kernels}, {"takes", path.takes}});
  }
  const nlohmann::ordered_json json = {
      {"luna", m.luna_version},
      {"commit", commit()},
      {"torch", m.torch_version},
      {"machine", bench::machine_json(m)},
      {"attentions", nlohmann::ordered_json::parse(nn::attentions_json())},
      {"gpu_paths", paths}};
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

Command add_info(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "info",
      "Versions, devices, instruction set, attention mechanisms; or what a "
      "config makes");
  app->allow_extras();
  app->footer(
      "Examples:\n"
      "  luna info --json\n"
      "  luna info configs/lra/universal/image-universal.json --set "
      "model.layers=4");
  struct Options {
    bool json = false;
    std::string config{};
    std::vector<std::string> overrides{};
  };
  const auto o = std::make_shared<Options>();
  app->add_option("config", o->config,
                  "A training config: its model, parameters and schedule");
  app->add_option("--set", o->overrides,
                  "key=value over the config's, such as model.width=128; may "
                  "be given again")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_flag("--json", o->json, "JSON instead of text");
  return {app, [o] {
            if (!o->config.empty()) {
              print_config(o->config, o->overrides, o->json);
            } else if (!o->overrides.empty()) {
              throw UsageError("expected a config that --set is to change");
            } else {
              const bench::Machine machine = bench::this_machine();
              o->json ? print_json(machine) : print_text(machine);
            }
            return static_cast<int>(kOk);
          }};
}

}  // namespace luna::cli
