#pragma once

// universal_attention's problems, as its tests draw them.

#include "support/problems.h"
#include "support/random.h"

namespace luna::testing {

inline Problem problem_of(const UniversalSpec& spec,
                          at::ScalarType dtype = at::kDouble) {
  Random random(21);
  return universal_problem(spec, random, dtype);
}

class UniversalOpTest : public OpTest {
 protected:
  static Problem problem(UniversalSpec spec) {
    spec.eps = eps_for(GetParam().dtype);
    return problem_of(spec, GetParam().dtype);
  }
};

}  // namespace luna::testing
