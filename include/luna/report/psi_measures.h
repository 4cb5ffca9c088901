#pragma once

#include <vector>

#include "luna/report/learned_psi.h"

namespace luna::report {

/// Functions of u, sampled: [function][u].
using Functions = std::vector<std::vector<double>>;

/// How many functions there are but for repetitions: (sum of e)^2 / sum of e^2
/// over the eigenvalues e of their products, u weighted as a standard normal
/// number, which it is close to at the start. 1 if all are multiples of one; 0
/// of zeros.
double effective_channels(const Functions& functions,
                          const std::vector<double>& u);

/// How alike two kernels sum_c f_c(u) f_c(v) are, whatever their size and the
/// order of their functions: centred kernel alignment, from 0 to 1, u weighted
/// as above. 0 where one of them is constant.
double kernel_alignment(const Functions& a, const Functions& b,
                        const std::vector<double>& u);

/// Functions whose kernel is exp(-(u - v)^2 / 2) over the range, to rounding:
/// softmax's exp(uv) but for factors of u, which cancel in a row, and of v.
Functions bell_kernel(const std::vector<double>& u);
/// Whose kernel is uv.
Functions straight_kernel(const std::vector<double>& u);

}  // namespace luna::report
