#include "ops/gpu_paths.h"

#include <fmt/format.h>

namespace luna::ops {
namespace {

std::string fused_shapes() {
  std::string text;
  const FusedShape* before = nullptr;
  for (const FusedShape& s : kFusedShapes) {
    const bool same = before != nullptr && before->causal == s.causal &&
                      before->width == s.width &&
                      before->per_head == s.per_head;
    if (!same) {
      text += fmt::format("{}{}{} with", before == nullptr ? "" : ", ",
                          s.causal ? "causal " : "", s.width);
    }
    text += fmt::format("{} {}{}", same ? " or" : "", s.projections,
                        s.per_head ? "" : " shared by the heads");
    before = &s;
  }
  return text;
}

std::string slots_and_widths(int64_t width, int64_t slots) {
  return fmt::format(
      "bfloat16; widths that are multiples of 8, up to {}; up to {} slots",
      width, slots);
}

std::vector<GpuPath> make_paths() {
  const std::string fused = fmt::format(
      "bfloat16 on a Hopper GPU; {} channels; width of queries and values with "
      "projections: {}",
      kFusedChannels, fused_shapes());
  const std::string products =
      fmt::format("bfloat16, not causal, not packed, {} features or more",
                  kProductFeatures);
  const std::string rest = "everything else";
  const std::string square =
      fmt::format("bfloat16 and float32; states of {0} features by {0} columns",
                  kSquareState);
  const std::string heads = fmt::format(
      "of what fused takes: width 64 with 8 projections, not causal, not "
      "packed, without a state, up to {} tokens and {} for each (sequence, "
      "head)",
      kFusedShortTokens, kFusedShortTokensPerHead);
  std::vector<GpuPath> paths = {
      {"universal_attention", "fused, heads whole", heads, true},
      {"universal_attention", "fused", fused},
      {"universal_attention", "features in memory, matrix products", products},
      {"universal_attention", "features in memory, tensor cores",
       "bfloat16 and float16"},
      {"universal_attention", "features in memory, exact sums", rest},
      {"linear_attention", "matrix products", products},
      {"linear_attention", "tensor cores", "bfloat16 and float16"},
      {"linear_attention", "exact sums", rest}};
  paths.push_back({"unpack_attention", "a block a token",
                   fmt::format("one token a sequence, without gradients and "
                               "dropout, up to {} slots",
                               kUnpackTokenSlots),
                   true});
  for (const char* op : {"pack_attention", "unpack_attention"}) {
    paths.push_back(
        {op, "tensor cores",
         fmt::format(
             "{}; fastest on a Hopper GPU up to width {} with more than {} "
             "slots (backward: up to {})",
             slots_and_widths(kSoftmaxMmaWidth, kSoftmaxMmaSlots),
             kSoftmaxWgmmaWidth, kSoftmaxWgmmaLeastSlots,
             kSoftmaxWgmmaBackwardSlots)});
    paths.push_back({op, "portable", rest});
  }
  paths.push_back({"nested_causal_attention", "tensor cores",
                   slots_and_widths(kNestedMmaWidth, kNestedMmaSlots)});
  paths.push_back({"nested_causal_attention", "portable", rest});
  paths.push_back({"nested_causal_attention_step", "portable", rest});
  paths.push_back({"universal_attention_step", "states by the copy engine",
                   fmt::format("{}; {} projections of {} channels", square,
                               kSquareProjections, kSquareChannels)});
  paths.push_back({"universal_attention_step", "portable", rest});
  paths.push_back(
      {"linear_attention_step", "states by the copy engine", square});
  paths.push_back({"linear_attention_step", "portable", rest});
  return paths;
}

}  // namespace

const std::vector<GpuPath>& gpu_paths() {
  static const std::vector<GpuPath> paths = make_paths();
  return paths;
}

std::string slower_path(std::string_view op) {
  for (const GpuPath& path : gpu_paths()) {
    if (path.op != op || path.part) continue;
    return fmt::format(
        "{}: slower kernels are used here than the fastest ({}), which take: "
        "{}; `luna info` lists them all",
        op, path.kernels, path.takes);
  }
  return std::string(op);
}

}  // namespace luna::ops
