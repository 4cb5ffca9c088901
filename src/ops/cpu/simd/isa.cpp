#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/targets.h"

#include <c10/util/Exception.h>
#include <hwy/highway.h>

#include <cstdlib>
#include <iterator>
#include <string>

namespace luna::cpu {
namespace {

struct Isa {
  const char* name;
  decltype(HWY_AVX2) target;
};

// Best first. Better targets have lower bits in Highway.
constexpr Isa kIsas[] = {
    {"avx512", HWY_AVX3}, {"avx2", HWY_AVX2}, {"scalar", HWY_STATIC_TARGET}};

const Isa& choose() {
  const auto supported = hwy::SupportedTargets();
  const char* wanted = std::getenv("LUNA_ISA");
  for (const Isa& isa : kIsas) {
    const bool named = wanted == nullptr || std::string(wanted) == isa.name;
    if (!named) continue;
    if ((supported & isa.target) != 0 || &isa == std::end(kIsas) - 1) {
      return isa;
    }
    TORCH_CHECK_VALUE(wanted == nullptr, "LUNA_ISA: expected a set that this ",
                      "machine has, got \"", wanted, "\"");
  }
  TORCH_CHECK_VALUE(false, "LUNA_ISA: expected avx512, avx2 or scalar, got \"",
                    wanted == nullptr ? "" : wanted, "\"");
}

const Isa& chosen() {
  static const Isa& isa = [&]() -> const Isa& {
    const Isa& best = choose();
    // Everything better than the chosen one is switched off.
    hwy::DisableTargets(best.target - 1);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return best;
  }();
  return isa;
}

}  // namespace

const char* isa_name() { return chosen().name; }

void apply_isa_override() { chosen(); }

}  // namespace luna::cpu
