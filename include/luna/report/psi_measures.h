#pragma once

#include <vector>

#include "luna/report/learned_psi.h"

namespace luna::report {

/// Functions of u, sampled where u is, each sample as likely: [function][u].
using Functions = std::vector<std::vector<double>>;
/// k(u, v) for all pairs of samples.
using Kernel = std::vector<std::vector<double>>;

/// How many functions there are but for repetitions: (sum of e)^2 / sum of e^2
/// over the eigenvalues e of their products. 1 if all are multiples of one; 0
/// of zeros.
double effective_channels(const Functions& functions);

/// sum_c f_c(u) f_c(v).
Kernel kernel_of(const Functions& functions);
/// exp(-(u - v)^2 / 2s^2), s the standard deviation of u: softmax's exp(uv) but
/// for factors of u, which cancel in a row, and of v.
Kernel bell_kernel(const std::vector<double>& u);
/// uv.
Kernel straight_kernel(const std::vector<double>& u);

/// How alike two kernels of as many samples are, whatever their size: centred
/// kernel alignment, from 0 to 1. 0 where one of them is constant.
double kernel_alignment(const Kernel& a, const Kernel& b);

}  // namespace luna::report
