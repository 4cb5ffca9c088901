#include <sstream>

#include "support/problems.h"

namespace luna::testing {
namespace {

std::string name_of(Weight weight) {
  static const char* const names[] = {"none", "bool", "float", "bool per head",
                                      "float per head"};
  return names[static_cast<int>(weight)];
}

std::string name_of(Layout layout) {
  static const char* const names[] = {"contiguous", "heads inside", "sliced"};
  return names[static_cast<int>(layout)];
}

std::string list(const std::vector<int64_t>& lengths) {
  std::ostringstream out;
  out << "{";
  for (int64_t length : lengths) out << " " << length;
  out << " }";
  return out.str();
}

template <typename Spec>
void add_linear(std::ostringstream& out, const Spec& s) {
  out << " batch=" << s.batch << " heads=" << s.heads << " n=" << s.n
      << " m=" << s.m << " value_width=" << s.value_width
      << " weight=" << name_of(s.weight) << " lengths_q=" << list(s.lengths_q)
      << " lengths_k=" << list(s.lengths_k) << " causal=" << s.causal
      << " state=" << s.state << " layout=" << name_of(s.layout);
}

void add_sizes(std::ostringstream& out, const FeatureMapSizes& s) {
  out << " width=" << s.width << " projections=" << s.projections
      << " channels=" << s.channels << " hidden=" << s.hidden
      << " projection heads=" << s.heads << " shared_trunk=" << s.shared_trunk;
}

}  // namespace

std::string describe(const LinearSpec& s) {
  std::ostringstream out;
  out << "linear_attention: width=" << s.width << " normalize=" << s.normalize;
  add_linear(out, s);
  return out.str();
}

std::string describe(const UniversalSpec& s) {
  std::ostringstream out;
  out << "universal_attention: nonneg=" << s.nonneg << " table=" << s.table;
  add_sizes(out, s.sizes);
  add_linear(out, s);
  return out.str();
}

std::string describe(const FeatureMapSpec& s) {
  std::ostringstream out;
  out << "feature_map: x=" << list(s.leading) << " nonneg=" << s.nonneg
      << " table=" << s.table << " layout=" << name_of(s.layout);
  add_sizes(out, s.sizes);
  return out.str();
}

std::string describe(const PackSpec& s) {
  std::ostringstream out;
  out << "pack_attention: batch=" << s.batch << " heads=" << s.heads
      << " l=" << s.l << " m=" << s.m << " width=" << s.width
      << " value_width=" << s.value_width << " weight=" << name_of(s.weight)
      << " lengths_k=" << list(s.lengths_k)
      << " shared_query=" << s.shared_query << " scale=" << s.scale.value_or(0)
      << " layout=" << name_of(s.layout);
  return out.str();
}

std::string describe(const UnpackSpec& s) {
  std::ostringstream out;
  out << "unpack_attention: batch=" << s.batch << " heads=" << s.heads
      << " n=" << s.n << " l=" << s.l << " width=" << s.width
      << " value_width=" << s.value_width << " weight=" << name_of(s.weight)
      << " lengths_q=" << list(s.lengths_q) << " scale=" << s.scale.value_or(0)
      << " layout=" << name_of(s.layout);
  return out.str();
}

std::string describe(const NestedSpec& s) {
  std::ostringstream out;
  out << "nested_causal_attention: batch=" << s.batch << " heads=" << s.heads
      << " n=" << s.n << " l=" << s.l << " width=" << s.width
      << " value_width=" << s.value_width << " mask=" << s.mask
      << " lengths=" << list(s.lengths) << " shared_query=" << s.shared_query
      << " state=" << s.state << " activation=" << s.activation
      << " scale=" << s.scale.value_or(0) << " layout=" << name_of(s.layout);
  return out.str();
}

}  // namespace luna::testing
