#pragma once

namespace luna::ops {

/// Makes the first call of a vector function (exp, log, sqrt...) in one thread.
/// In LibTorch's MKL 2024.2 that call is not safe in several:
/// mkl_vml_serv_cpu_detect stores the CPU's kind, then the number that its
/// tables know it by. A thread that reads in between takes, on an Intel CPU
/// with AVX-512, the function of the lowest accuracy
/// (github.com/pytorch/pytorch/issues/188792): its share of that one result is
/// wrong by 1e-9, and the same program gives other bits. Programs that want the
/// same bits each time call this before they compute; `luna` does.
void settle_vector_functions();

}  // namespace luna::ops
