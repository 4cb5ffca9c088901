#pragma once

// Wrong calls, as lists of single mistakes in the arguments of right ones.

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/problems.h"

namespace luna::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

enum class Kind { kValue, kType, kAny };

/// Stands for the argument's shape in the parts of a mistake.
inline constexpr const char* kShape = "[shape]";

/// One mistake in the arguments of a call, and what the message must hold.
struct Mistake {
  const char* what;
  std::function<void(Arguments&)> make;
  std::vector<std::string> parts;  ///< the name first
  Kind kind = Kind::kValue;
};

/// The call throws that kind of error, whose message holds the op and parts.
void expect_refused(const std::string& op, const std::function<void()>& call,
                    std::vector<std::string> parts, Kind kind);
/// So does the problem with each of the mistakes (and not without any).
void expect_refused(const std::string& op, const Problem& problem,
                    const std::vector<Mistake>& mistakes);

Mistake rank(const char* name);
Mistake dtype(const char* name);
Mistake integers(const char* name);
Mistake last_stride(const char* name);
Mistake device(const char* name);
/// 37 in `dim`. Where two sizes do not fit, the message may blame either
/// ("this|that").
Mistake size(const char* name, int64_t dim, const std::string& either = "",
             const std::string& value = "37");

/// The mistakes that can be made with any tensor of [B,H,length,width].
std::vector<Mistake> mistakes_with(const std::vector<const char*>& names);
/// For a problem with 2 samples and a float key_weight [2,m].
std::vector<Mistake> weight_mistakes();
/// For a problem of packed sequences with lengths {40, 10}.
std::vector<Mistake> packing_mistakes(const char* name);
Mistake several_samples(const char* cu_seqlens);
std::vector<Mistake> state_mistakes(const char* name);
Mistake fewer_key_heads(int64_t heads);
/// For a feature map of M = 3, d = 4, L = 3, h = 5 and for H = 2.
std::vector<Mistake> parameter_mistakes();
std::vector<Mistake> seed_mistakes();

void add(std::vector<Mistake>& list, const std::vector<Mistake>& more);

/// Ones of another shape, of the dtype and device of `tensor`.
at::Tensor like(const at::Tensor& tensor, std::vector<int64_t> sizes);
/// Ones of the same shape but at `dim`.
at::Tensor resized(const at::Tensor& tensor, int64_t dim, int64_t size);
/// The same numbers, the last two axes swapped in memory.
at::Tensor sideways(const at::Tensor& tensor);

}  // namespace luna::testing
