#include "parameters.h"

#include "luna/report/format.h"
#include "luna/report/table.h"

namespace luna::cli {

std::string parameters_text(const models::ParameterCounts& counts) {
  report::Table table({{"part", false}, {"parameters"}});
  const auto add = [&](const char* part, int64_t count) {
    if (count > 0) table.add_row({part, report::grouped(count)});
  };
  add("token embedding", counts.tokens);
  add("position embedding", counts.positions);
  add("attention", counts.attention);
  add("memory and its norms", counts.memory);
  add("FFN", counts.ffn);
  add("norms", counts.norms);
  add("head", counts.head);
  add("other", counts.other);
  table.start_group();
  add("all", counts.total());
  add("without the token embedding", counts.total() - counts.tokens);
  if (counts.memory > 0) add("attention with its memory", counts.own());
  return table.text();
}

nlohmann::ordered_json parameters_json(const models::ParameterCounts& counts) {
  return {{"all", counts.total()},
          {"attention_own", counts.own()},
          {"parts",
           {{"tokens", counts.tokens},
            {"positions", counts.positions},
            {"attention", counts.attention},
            {"memory", counts.memory},
            {"ffn", counts.ffn},
            {"norms", counts.norms},
            {"head", counts.head},
            {"other", counts.other}}}};
}

}  // namespace luna::cli
