#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "luna/bench/machine.h"
#include "luna/nn/attention_registry.h"
#include "luna/report/table.h"

namespace luna::cli {
namespace {

std::string mark(bool has) { return has ? "yes" : "–"; }

void print_text(const bench::Machine& m) {
  fmt::print("luna {}, torch {}\n\n", m.luna_version, m.torch_version);
  fmt::print("processor        {}, {} logical cores, {} threads in use\n",
             m.cpu, m.logical_cores, m.threads);
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
  fmt::print("{}\n{}", traits.text(), papers.text());
}

void print_json(const bench::Machine& m) {
  const nlohmann::ordered_json json = {
      {"luna", m.luna_version},
      {"torch", m.torch_version},
      {"machine",
       {{"cpu", m.cpu},
        {"logical_cores", m.logical_cores},
        {"threads", m.threads},
        {"isa", m.isa},
        {"memory_bytes", m.memory},
        {"cuda_devices", m.cuda_devices}}},
      {"attentions", nlohmann::ordered_json::parse(nn::attentions_json())}};
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

Command add_info(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "info", "Versions, devices, instruction set, attention mechanisms");
  app->allow_extras();
  app->footer("Example:\n  luna info --json");
  const auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "JSON instead of text");
  return {app, [json] {
            const bench::Machine machine = bench::this_machine();
            *json ? print_json(machine) : print_text(machine);
            return static_cast<int>(kOk);
          }};
}

}  // namespace luna::cli
